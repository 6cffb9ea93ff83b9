"""QK-clip and QK-norm: each against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.intervention_steps import RECIPE, TwoParameters, few_batches, take_step
from support.small_zoo import small_member
from torch import nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.attention_calls import watching_attention
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.interventions.weights import QKClip, QKNorm
from rksp.watch.moment import Moment


def _logits(model: nn.Module, batch) -> list[torch.Tensor]:
    """Largest visible logit of each head, layer by layer, from what attention was called with."""
    found = []

    def look(call):
        key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
        scores = call.query.double() @ key.double().mT * call.factor
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(hidden, -torch.inf).amax((0, 2, 3)))

    with torch.no_grad(), watching_attention(model, look):
        model(batch.inputs)
    return found


def _watched(clip: QKClip, model: nn.Module, batch) -> None:
    """A step of the contract's life without any change of the weights by others."""
    moment = Moment(step=0, model=model)
    armed = clip.arm(moment)
    model(batch.inputs)
    for handle in armed:
        handle.remove()
    clip.after_update(moment)


FAMILIES_OF_ATTENTION = ["zoo_pre_ln", "gpt2", "llama", "gpt_neox", "opt_post"]


@pytest.mark.parametrize("family", FAMILIES_OF_ATTENTION)
def test_clip_brings_the_largest_logit_to_tau_and_other_heads_stay(family):
    model = small_member(family, init_std=0.5)
    with torch.no_grad():  # OPT and GPT-2 start with biases of zero
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=torch.Generator().manual_seed(0), std=0.3)
    batch = few_batches(1)[0]
    before = _logits(model, batch)
    tau = float(torch.cat(before[:1]).median())
    clip = QKClip(tau=tau)
    clip.bind(model, None)
    others = {n: p.detach().clone() for n, p in model.named_parameters()}
    _watched(clip, model, batch)
    after = _logits(model, batch)
    assert (before[0] > tau).any() and (before[0] <= tau).any()
    assert after[0].tolist() == pytest.approx(before[0].clamp(max=tau).tolist(), rel=1e-4)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, others[n])}
    assert changed and all("attn" in n or "attention" in n for n in changed)
    assert clip.actions[0].detail["largest"] == pytest.approx(
        float(torch.cat(before).max()), rel=1e-4
    )


def test_clip_scales_values_and_outputs_not_and_leaves_small_logits_alone():
    model, batch = small_member(init_std=0.5), few_batches(1)[0]
    attention = model.blocks[0].attention
    kept = attention.qkv.weight[32:].detach().clone()
    for tau, count in ((1e6, 0), (1e-3, 1)):
        clip = QKClip(tau=tau)
        clip.bind(model, None)
        _watched(clip, model, batch)
        assert len(clip.actions) == count
    assert torch.equal(attention.qkv.weight[32:], kept)
    assert clip.actions[0].detail["heads"] == 8


def test_clip_of_latent_attention_spares_the_shared_rotary_key():
    torch.manual_seed(0)
    config = DeepseekV3Config(
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64},
        **{"num_key_value_heads": 4, "intermediate_size": 16, "first_k_dense_replace": 1},
        **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2},
        **{"v_head_dim": 4, "initializer_range": 0.5, "max_position_embeddings": 32},
        **{"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0},
    )
    model, batch = DeepseekV3ForCausalLM(config), few_batches(1)[0]
    before = _logits(model, batch)[0]
    attention = model.model.layers[0].self_attn
    kept = attention.kv_a_proj_with_mqa.weight.detach().clone()
    tau = float(before.median())
    clip = QKClip(tau=tau)
    clip.bind(model, None)
    _watched(clip, model, batch)
    after = _logits(model, batch)[0]
    assert after.tolist() == pytest.approx(before.clamp(max=tau).tolist(), rel=1e-4)
    assert torch.equal(attention.kv_a_proj_with_mqa.weight, kept)
    with pytest.raises(NotCovered, match="latent"):
        QKNorm().bind(model, None)


def test_clip_in_a_run_keeps_logits_near_tau():
    largest = {}
    for tau in (1e6, 2.0):
        model = small_member(init_std=0.3)
        optimizer = make_optimizer(model, RECIPE.model_copy(update={"learning_rate": 0.05}))
        clip = QKClip(tau=tau)
        clip.bind(model, optimizer)
        for step, batch in enumerate(few_batches(12)):
            take_step(model, optimizer, clip, step, batch)
        largest[tau] = float(torch.cat(_logits(model, few_batches(12)[11])).max())
    assert largest[1e6] > 10.0 > 4.0 > largest[2.0]


@pytest.mark.parametrize("family", FAMILIES_OF_ATTENTION)
def test_norm_makes_every_head_unit_and_trains_its_gains(family):
    model = small_member(family, init_std=0.5)
    optimizer = make_optimizer(model, RECIPE)
    norm = QKNorm()
    norm.bind(model, optimizer)
    batch = few_batches(1)[0]
    sizes, query_scale = [], 0.5

    def look(call):
        query = call.query / (query_scale if family == "opt_post" else 1.0)  # OPT scales ahead
        sizes.append([float(t.square().mean(-1).sub(1).abs().max()) for t in (query, call.key)])

    with torch.no_grad(), watching_attention(model, look):
        model(batch.inputs)
    assert np.array(sizes).shape == (2, 2) and np.max(sizes) < 1e-3
    gains = {n: p for n, p in model.named_parameters() if n.endswith("norm_gain")}
    assert len(gains) == 4
    take_step(model, optimizer, norm, 0, batch)
    assert all(float((p - 1).abs().max().detach()) > 1e-3 for p in gains.values())


def test_inserted_norm_equals_the_architecture_that_has_it():
    with_norm = small_member("zoo_qk_norm")
    without = small_member("zoo_rmsnorm")
    without.load_state_dict(with_norm.state_dict(), strict=False)
    QKNorm(epsilon=torch.finfo(torch.float32).eps).bind(without, None)
    batch = few_batches(1)[0]
    expected, found = (m(batch.inputs).logits.detach() for m in (with_norm, without))
    assert torch.allclose(expected, found, atol=1e-5)


def test_norm_joins_the_optimizer_of_a_pair():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE.model_copy(update={"optimizer": "muon"}))
    QKNorm().bind(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert all(group["lr"] == 0.0 for part in optimizer.parts for group in part.param_groups)


def test_models_that_normalize_or_do_not_attend_are_not_covered():
    for kind in (QKClip, QKNorm):
        with pytest.raises(NotCovered, match=r"QK-norm|normalizes"):
            kind().bind(small_member("zoo_qk_norm"), None)
        with pytest.raises(NotCovered, match=r"found no query|no known attention"):
            kind().bind(TwoParameters(), None)
    model = small_member("llama")
    model.config._attn_implementation = "eager"
    with pytest.raises(NotCovered, match="sdpa"):
        QKClip().bind(model, None)
