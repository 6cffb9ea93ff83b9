"""The statistics of the pass against what a few lines of textbook code say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.datasets.probe import make_probe
from rksp.measure.forward import ForwardWatch, _spread, attention_stats, block_stats, router_stats
from rksp.measure.snapshots import collect
from rksp.models.anatomy.attention_calls import AttentionCall
from rksp.models.resolve import resolve_tiny


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def forward_of(model, batch, **more):
    return collect(model, batch, consume=lambda t: None, **more).forward


def tiny(name, **more):
    source = resolve_tiny(name)
    model = source.build(0)
    return model, make_probe(source, num_sequences=2, sequence_length=32)


def test_output_statistics():
    model, probe = tiny("gpt2")
    stats = forward_of(model, probe.batch)
    with torch.no_grad():
        logits = model(**probe.inputs).logits.flatten(0, 1)
    assert stats.loss == pytest.approx(
        float(F.cross_entropy(logits, probe.labels.flatten())), rel=1e-5
    )
    assert stats.uniform_loss == pytest.approx(math.log(512))
    assert stats.logit_std == pytest.approx(float(logits.std(-1).mean()), rel=1e-4)
    shifted = logits + 5.0  # the spread is of the logits about their mean
    torch.testing.assert_close(_spread(shifted), logits.std(-1), rtol=1e-3, atol=1e-4)


def test_ignored_labels_and_missing_ones():
    model, probe = tiny("gpt2")
    labels = probe.labels.clone()
    labels[:, 1:] = -100
    stats = forward_of(model, Batch(inputs=probe.inputs, labels=labels))
    with torch.no_grad():
        first = model(**probe.inputs).logits[:, 0]
    assert stats.loss == pytest.approx(float(F.cross_entropy(first, labels[:, 0])), rel=1e-5)
    stats = forward_of(model, probe.inputs)
    assert stats.loss is None and stats.not_measured["loss"] == "the probe has no labels"
    short = Batch(inputs=probe.inputs, labels=labels[:, :3])
    assert "line up" in forward_of(model, short).not_measured["loss"]
    large = Batch(inputs=probe.inputs, labels=labels + 1000)
    assert "outside" in forward_of(model, large).not_measured["loss"]


def test_block_scales():
    x = torch.randn(4000, 16, generator=generator())
    stats = block_stats("b", x, 3 * x)
    assert stats.rms_in == pytest.approx(1, abs=0.02)
    assert stats.rms_out == pytest.approx(3 * stats.rms_in)
    assert stats.update_ratio == pytest.approx(2) and stats.kurtosis == pytest.approx(3, abs=0.1)
    assert stats.absmax == pytest.approx(3 * float(x.abs().max()))
    one_dimension = torch.zeros(10, 16)
    one_dimension[:, 0] = 1
    assert block_stats("b", x[:10], one_dimension).kurtosis == pytest.approx(16)
    assert block_stats("b", 0 * x, x).update_ratio is None
    assert block_stats("b", x, x * float("nan")).absmax is None


def test_uniform_attention_has_full_entropy():
    q = torch.randn(2, 4, 20, 8, generator=generator())
    stats = attention_stats(AttentionCall(query=q, key=torch.zeros(2, 4, 20, 8), is_causal=True))
    assert stats.entropy == pytest.approx(1, abs=1e-6) and stats.logit_std == 0
    assert stats.collapsed_heads == 0 and stats.max_logit == 0


def test_attention_on_one_key_has_none():
    keys = torch.eye(20).repeat(1, 3, 1, 1)
    stats = attention_stats(AttentionCall(query=100 * keys, key=keys, scale=1.0))
    assert stats.entropy < 1e-6 and stats.collapsed_heads == 3
    assert stats.max_logit == pytest.approx(100)


@pytest.mark.parametrize("form", ["causal", "boolean", "additive"])
def test_attention_against_the_softmax_written_out(form):
    g = generator(3)
    q, k = torch.randn(2, 4, 12, 8, generator=g), torch.randn(2, 2, 12, 8, generator=g)
    visible = torch.ones(12, 12, dtype=torch.bool).tril()
    mask = {
        "causal": None,
        "boolean": visible[None, None],
        "additive": torch.zeros(12, 12).masked_fill(~visible, torch.finfo(torch.float32).min)[
            None, None
        ],
    }[form]
    given = {"mask": mask, "is_causal": form == "causal", "scale": 0.7}
    stats = attention_stats(AttentionCall(query=q, key=k, **given))
    entropies, spreads = [], []
    for b in range(2):
        for h in range(4):
            for i in range(1, 12):
                logits = 0.7 * k[b, h // 2, : i + 1] @ q[b, h, i]
                p = logits.softmax(0)
                entropies.append(float(-(p * p.log()).sum()) / math.log(i + 1))
                spreads.append(float(logits.std(correction=0)))
    assert stats.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    assert stats.logit_std == pytest.approx(sum(spreads) / len(spreads), rel=1e-4)


def test_attention_without_a_choice_says_nothing():
    q = torch.randn(2, 4, 1, 8, generator=generator())
    assert attention_stats(AttentionCall(query=q, key=q, is_causal=True)) is None


def test_softcap():
    q = 10 * torch.randn(1, 2, 9, 8, generator=generator())
    call = AttentionCall(query=q, key=q, scale=1.0)
    assert attention_stats(call).max_logit > 50
    assert attention_stats(replace(call, softcap=50.0)).max_logit <= 50


def test_eager_and_fused_attention_give_the_same_numbers():
    from transformers import AutoModelForCausalLM

    model, probe = tiny("llama")
    eager = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    fused, written = (forward_of(m, probe.batch).attention for m in (model, eager))
    assert [a.block for a in fused] == [a.block for a in written] == [0, 1, 2, 3]
    for left, right in zip(fused, written, strict=True):
        assert left.entropy == pytest.approx(right.entropy, rel=1e-5)
        assert left.logit_std == pytest.approx(right.logit_std, rel=1e-5)
        assert left.block == right.block


def test_attention_of_a_bare_module():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    stats = forward_of(model, torch.randn(2, 6, 16, generator=generator()))
    assert len(stats.attention) == 3 and len(stats.blocks) == 3


def test_without_attention_there_is_a_reason():
    stats = forward_of(*_batch(tiny("mamba")))
    assert stats.attention == () and "no attention" in stats.not_measured["attention"]
    assert "attention" not in forward_of(*_batch(tiny("gpt2"))).not_measured


def _batch(pair):
    return pair[0], pair[1].batch


def test_router_statistics():
    router = nn.Linear(6, 4, bias=False)
    x = torch.randn(100, 6, generator=generator())
    with torch.no_grad():
        router.weight.zero_()
    flat = router_stats("r", x, router)
    assert flat.entropy == pytest.approx(1) and flat.logit_std == 0
    with torch.no_grad():
        router.weight[2] = 0
        router.weight[1] = torch.tensor([100.0, 0, 0, 0, 0, 0])
    steep = router_stats("r", x.abs(), router)
    assert steep.max_violation == pytest.approx(3) and steep.dead_experts == 3
    assert steep.entropy < 0.2
    assert router_stats("r", x.abs(), router, choices=4).dead_experts == 0
    assert router_stats("r", x[:50].abs(), router).dead_experts is None


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_routers_are_found(name):
    stats = forward_of(*_batch(tiny(name)))
    assert stats.routers, stats.not_measured
    for router in stats.routers:
        assert 0.5 < router.entropy <= 1 + 1e-6


def test_zoo_routers_and_dense_models():
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
    tokens = torch.arange(40).reshape(2, 20)
    assert len(forward_of(build_member("zoo_moe", shape, seed=0), tokens).routers) == 2
    dense = forward_of(build_member("zoo_pre_ln", shape, seed=0), tokens)
    assert dense.routers == () and dense.not_measured["routers"] == "the model has no experts"


def test_aligned_response_of_one_layer():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return x + self.linear(x)

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    x = torch.randn(2, 20, 8, generator=generator())
    stats = forward_of(model, x)
    with torch.no_grad():
        values, state = [], x
        for block in model:
            change = block.linear(state)
            values.append(float(state.abs().sum(-1).mean() / change.square().mean().sqrt()))
            # Law: moving every weight by e against the signs changes the output by e ‖x‖₁.
            moved = F.linear(state, block.linear.weight + 0.1 * state[0, 0].sign())
            torch.testing.assert_close(
                (moved - change)[0, 0], torch.full((8,), 0.1 * float(state[0, 0].abs().sum()))
            )
            state = state + change
    assert stats.aligned_response == pytest.approx(math.sqrt(values[0] * values[1]), rel=1e-5)
    # Ten times the weights react a tenth as much.
    with torch.no_grad():
        model[0].linear.weight *= 10
    slower = forward_of(nn.Sequential(model[0]), x).aligned_response
    assert slower == pytest.approx(values[0] / 10, rel=1e-5)


def test_activation_maximum_and_the_first_bad_module():
    model, probe = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[2].mlp.c_fc.bias[0] = 70_000.0
    stats = forward_of(model, probe.batch)
    assert stats.activation_name == "transformer.h.2.mlp.c_fc" or stats.activation_absmax > 7e4
    assert stats.activation_absmax >= 65_504 and stats.non_finite is None
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.bias[0] = math.nan
    stats = forward_of(model, probe.batch)
    assert stats.non_finite == "transformer.h.1.mlp.c_proj"
    assert stats.loss is None and "finite" in stats.not_measured["loss"]
    assert math.isfinite(stats.activation_absmax)
    assert stats.blocks[1].absmax is None


def test_same_numbers_every_time():
    model, probe = tiny("qwen3_moe")
    assert forward_of(model, probe.batch) == forward_of(model, probe.batch)


@pytest.mark.parametrize("lead", [-2.0, 0.0, 9.0, 30.0])
def test_what_copying_costs_is_that_of_double_precision(lead):
    logits = 0.5 * torch.randn(2, 40, 5000, generator=generator())
    own = torch.randint(0, 5000, (2, 40), generator=generator(1))
    labels = torch.where(own % 7 == 0, -100, own.flip(1))
    logits.scatter_(2, own.unsqueeze(2), lead)
    exact = logits.double()
    others = exact.scatter(2, own.unsqueeze(2), -math.inf)
    cost = (exact.logsumexp(-1) - others.logsumexp(-1))[labels >= 0].mean()
    found = ForwardWatch().finish([], logits, labels, own).copied
    assert found == pytest.approx(float(cost), rel=1e-5)
