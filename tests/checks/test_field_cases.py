"""Failed runs that people reported: the failing setting trips the right check, its twin does not.

Each is a small model that shows the reported quantity, or, where the report is about a setting,
that setting. What a thread does not state is chosen here and said so.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from support.check_evidence import BAD, TUNED, found, healthy, measured, on_meta, tiny, token_batch
from support.small_zoo import zoo
from torch import nn

from rksp.documents.finding import Level


def test_18_t5_from_scratch_with_an_output_layer_of_unit_variance():
    """transformers PR 26441: an initial loss near 110 instead of 11."""
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1}
    model = zoo(**sizes, vocab_size=32_128)
    batch = token_batch(32_128)
    with torch.no_grad():
        model.head.weight.normal_(0.0, 1.0)
    failing = found(measured(model, batch))
    assert failing["initial-loss"].level is Level.ERROR
    assert failing["initial-loss"].value == pytest.approx(110, rel=0.06)
    assert failing["output-logit-scale"].value == pytest.approx(math.sqrt(768), rel=0.05)
    with torch.no_grad():
        model.head.weight.mul_(768**-0.5)
    stable = found(measured(model, batch))
    assert not {"initial-loss", "output-logit-scale"} & set(stable)


def test_19_gemma_4_from_random_weights_with_attention_scale_one():
    """Automodel #3443: QK-norm at head dimension 256; logits 16, 0.43 of 7 bits at 128 keys."""
    sizes = {"hidden_size": 512, "num_attention_heads": 2, "num_hidden_layers": 1, "qk_norm": True}
    sizes |= {"max_position_embeddings": 128}
    batch = token_batch(256, length=128)
    failing = found(measured(zoo(**sizes, attention_scale=1.0), batch))
    assert failing["attention-logit-scale"].level is Level.ERROR
    assert failing["attention-logit-scale"].value == pytest.approx(16, rel=0.1)
    assert failing["attention-entropy"].level is Level.ERROR
    assert failing["attention-entropy"].value == pytest.approx(0.43 / 7, abs=0.03)
    stable = found(measured(zoo(**sizes), batch))
    assert not {"attention-logit-scale", "attention-entropy"} & set(stable)


def test_10_t5_base_overflows_in_a_feed_forward_output():
    """transformers #5651: 66,246 in `wo`, beyond fp16; float32 is fine."""
    model = zoo(num_hidden_layers=1, norm="pre_ln", bias=False)
    batch = token_batch(256)
    reached = []
    down = model.blocks[0].feed_forward.down
    hook = down.register_forward_hook(lambda m, x, y: reached.append(float(y.abs().max())))
    measured(model, batch)
    hook.remove()
    with torch.no_grad():
        down.weight.mul_(66_246 / max(reached))
    failing = found(measured(model, batch, precision="fp16"))
    assert failing["fp16-activation-range"].level is Level.ERROR
    assert failing["fp16-activation-range"].value == pytest.approx(66_246, rel=1e-3)
    assert failing["fp16-activation-range"].layer.endswith("down")
    assert "fp16-activation-range" not in found(measured(model, batch, precision="fp32"))


def test_12_infinity_in_the_first_down_projection():
    """unsloth-zoo PR 600: +Inf in layer 0, `mlp.down_proj`, is named as its producer."""
    model, batch = tiny("llama"), token_batch(512)
    assert "non-finite-activation" not in found(measured(model, batch))
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(3e38).mul_(10)
    failing = found(measured(model, batch))["non-finite-activation"]
    assert failing.layer == "model.layers.0.mlp.down_proj"


class Root(nn.Module):
    """√(x·[x > 0] + shift): finite, but without the shift 0/0 backward wherever x is negative."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * (x > 0) + self.shift).sqrt()


def test_13_a_finite_loss_with_a_nan_gradient():
    """unsloth-zoo PR 866: the forward peak is small, only the backward pass breaks."""
    results = {}
    for shift in (0.0, 1e-6):
        model = tiny("gpt2")
        for block in model.transformer.h:
            block.mlp.act = Root(shift)
        results[shift] = found(measured(model, token_batch(512), respond=True))
    failing = results[0.0]["non-finite-gradient"]
    assert failing.level is Level.ERROR
    assert "The loss is 6." in failing.message
    assert "non-finite-gradient" not in results[1e-6]


@pytest.mark.parametrize("family", ["gemma4", "qwen3_moe", "glm4_moe"])
def test_13_families_that_overflow_backward_in_fp16(family: str):
    config = {"model_type": family}
    recipe = {"precision": "fp16", "learning_rate": 1e-5}
    assert "fp16-family" in found(healthy(config=config, recipe=recipe, start=TUNED))
    assert "fp16-family" not in found(healthy(config=config, recipe=recipe))
    assert found(healthy(config=config, recipe={"precision": "bf16"})) == {}


@pytest.mark.parametrize(("ratio", "trips"), [(3.39, True), (1.02, False)])
def test_3_bigscience_104b_drawn_too_wide(ratio: float, trips: bool):
    """std 0.02 at width 11,600 against 0.006, in multiples of √(2/5d)."""
    model = zoo(init_std=ratio * math.sqrt(0.4 / 64))
    seen = found(measured(model, token_batch(256), precision="fp16"))
    assert ("init-std" in seen and seen["init-std"].level is Level.WARNING) == trips


@pytest.mark.parametrize(
    ("inner", "name"), [(20_480, "feed-forward-ratio"), (65_536, "width-depth-ratio")]
)
def test_3_bigscience_104b_with_the_previous_models_feed_forward(inner: int, name: str):
    """32 × 16,384 with 20,480; the correction leaves an unusually wide and shallow model."""
    config = SimpleNamespace(hidden_size=16_384, intermediate_size=inner, num_attention_heads=128)
    sizes = {"width": 16_384, "depth": 32, "input_std": 0.005}
    seen = found(healthy(facts=sizes, config=vars(config)))
    assert name in seen
    assert ("feed-forward-ratio" in seen) == (inner == 20_480)


def test_3_bigscience_104b_with_heads_of_145():
    config = {"hidden_size": 11_600, "num_attention_heads": 80}
    assert found(healthy(config=config))["head-dimension"].value == 145


@pytest.mark.parametrize(("std", "trips"), [(0.006, True), (0.02, False)])
def test_23_olmo_drawn_too_narrow(std: float, trips: bool):
    """OLMo PR 285 at width 4096, as multiples of √(2/5d) at width 1024 (width from its config).

    It is noted only: DeepSeek-LLM 7B trained at the same 0.61.
    """
    model = zoo(
        hidden_size=1024, num_hidden_layers=1, init_std=std * math.sqrt(4096 / 1024), vocab_size=64
    )
    evidence = measured(model, token_batch(64, sequences=1))
    assert ("init-std" in found(evidence)) == trips


@pytest.mark.parametrize(("spread", "trips"), [(10.0, True), (1.0, False)])
def test_33_a_router_with_large_logits(spread: float, trips: bool):
    """KempnerForge PR 119: log-sum-exp 14 and rising without z-loss, 2 to 3 with it."""
    model = zoo(feed_forward="moe", num_experts=8, num_experts_per_tok=1, norm="pre_ln")
    with torch.no_grad():
        for block in model.blocks:
            block.feed_forward.router.weight.normal_(0.0, spread / math.sqrt(64))
    evidence = measured(model, token_batch(256))
    inputs = evidence.forward.routers[0].logit_std
    assert inputs == pytest.approx(spread, rel=0.25)
    assert ("router-logit-scale" in found(evidence)) == trips


def marin_32b(**more: object):
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    kind = Qwen3Config if more.get("qk_norm") else LlamaConfig
    config = kind(
        hidden_size=5120,
        num_hidden_layers=64,
        intermediate_size=27_648,
        num_attention_heads=40,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128_256,
    )
    build = AutoModelForCausalLM.from_config
    return config, on_meta(build, config, (("model.layers", 64),), 5120)


def test_35_marin_32b_without_qk_norm():
    """Spiked from 70,000 steps on at 7e-4; moved to QK-norm it trained on."""
    seen = {}
    for qk_norm in (False, True):
        config, facts = marin_32b(qk_norm=qk_norm)
        assert facts.parameters == pytest.approx(32e9, rel=0.05)
        evidence = healthy(recipe={"learning_rate": 7e-4}, likely_edge=None)
        seen[qk_norm] = found(
            type(evidence)(recipe=evidence.recipe, config=config, facts=facts)  # nothing was run
        )
    assert seen[False]["missing-qk-norm"].level is Level.WARNING
    assert "missing-qk-norm" not in seen[True]


@pytest.mark.parametrize("norm", ["post_ln", "deepnorm"])
def test_32_post_norm_is_not_accused_by_itself(norm: str):
    """It trains with warm-up (69 of 69 published runs); without, the warm-up is what is missing."""
    model, batch = zoo(norm=norm, num_hidden_layers=12), token_batch(256)
    assert [f.message for f in found(measured(model, batch)).values() if f.level in BAD] == []
    assert "warmup" in found(measured(model, batch, warmup_steps=0))
