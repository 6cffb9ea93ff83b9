"""Each check trips on its failing setting and not on its stable twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from check_evidence import ATTENTION, BLOCK, RECIPE, ROUTER, found, healthy

from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import CHECKS, run_checks
from rksp.documents.finding import Level


def growing(factor: float, blocks: int = 8) -> dict[str, object]:
    """A residual stream that grows by a factor a block."""
    return {"blocks": tuple(replace(BLOCK, rms_out=factor**i) for i in range(1, blocks + 1))}


def attending(**more: float) -> dict[str, object]:
    return {"attention": (ATTENTION, replace(ATTENTION, **more))}


def routing(**more: float) -> dict[str, object]:
    return {"routers": (ROUTER, replace(ROUTER, **more))}


UNBOUNDED = {"parameters": 32_000_000_000, "depth": 64, "width": 5120}
UNMEASURED = dict.fromkeys(("loss", "grad_norm", "grad_rms", "grad_max", "update_rms"))

# name → (what trips it, its level, the stable twin)
CASES = {
    "initial-loss": (
        healthy(forward={"loss": 110.0}),
        Level.ERROR,
        healthy(forward={"loss": 11.3}),
    ),
    "initial-loss, mildly": (
        healthy(forward={"loss": 14.0}),
        Level.WARNING,
        healthy(forward={"loss": 12.0}),
    ),
    "output-logit-scale": (
        healthy(forward={"logit_std": 27.7}),
        Level.ERROR,
        healthy(forward={"logit_std": 1.0}),
    ),
    "tied-embedding-scale": (
        healthy(facts={"embedding_std": 1.0}, forward={"logit_std": 27.7}),
        Level.WARNING,
        healthy(facts={"embedding_std": 1.0}, forward={"logit_std": 1.0}),  # scaled down, as in T5
    ),
    "attention-logit-scale": (
        healthy(forward=attending(logit_std=16.0)),
        Level.ERROR,
        healthy(forward=attending(logit_std=1.0)),
    ),
    "attention-logit-scale, trained": (
        healthy(forward=attending(max_logit=140.0), is_pretrained=True),
        Level.WARNING,
        healthy(forward=attending(max_logit=60.0), is_pretrained=True),
    ),
    "attention-entropy": (
        healthy(forward=attending(entropy=0.06)),
        Level.ERROR,
        healthy(forward=attending(entropy=0.88)),
    ),
    "missing-qk-norm": (
        healthy(facts=UNBOUNDED, recipe={"learning_rate": 7e-4}),
        Level.WARNING,
        healthy(facts=UNBOUNDED | {"qk_norms": 128}, recipe={"learning_rate": 7e-4}),
    ),
    "missing-qk-norm, usual rate": (
        healthy(facts=UNBOUNDED, recipe={"learning_rate": 1.5e-4}),
        Level.NOTE,
        healthy(facts=UNBOUNDED, config={"attn_logit_softcapping": 50.0}),
    ),
    "head-dimension": (
        healthy(config={"hidden_size": 11600, "num_attention_heads": 80}),
        Level.NOTE,
        healthy(config={"hidden_size": 11264, "num_attention_heads": 88}),
    ),
    "non-finite-activation": (
        healthy(forward={"non_finite": "h.0.mlp"}),
        Level.ERROR,
        healthy(),
    ),
    "fp16-activation-range": (
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(forward={"activation_absmax": 66_246.0}, recipe={"precision": "bf16"}),
    ),
    "fp8-activation-range": (
        healthy(forward={"activation_absmax": 1120.0}),
        Level.NOTE,
        healthy(forward={"activation_absmax": 400.0}),
    ),
    "low-precision-parameters": (
        healthy(recipe={"precision": "fp16-pure"}),
        Level.ERROR,
        healthy(recipe={"precision": "fp16"}),
    ),
    "low-precision-parameters, bf16": (
        healthy(recipe={"precision": "bf16-pure"}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16"}),
    ),
    "lost-updates": (
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-5}),
        Level.WARNING,
        healthy(recipe={"precision": "bf16-pure", "learning_rate": 1e-4}),
    ),
    "fp16-family": (
        healthy(config={"model_type": "gemma3_text"}, recipe={"precision": "fp16"}),
        Level.WARNING,
        healthy(config={"model_type": "gemma3_text"}, recipe={"precision": "bf16"}),
    ),
    "fp16-rate": (
        healthy(recipe={"precision": "fp16", "learning_rate": 6e-4}),
        Level.WARNING,
        healthy(recipe={"precision": "fp16", "learning_rate": 3e-4}),
    ),
    "non-finite-gradient": (
        healthy(response=UNMEASURED | {"reason": "the gradient is not finite"}),
        Level.ERROR,
        healthy(response=UNMEASURED | {"reason": "the gradient is zero"}),
    ),
    "fp16-gradient-range": (
        healthy(response={"grad_max": 1e5}, recipe={"precision": "fp16"}),
        Level.ERROR,
        healthy(response={"grad_max": 1e5}, recipe={"precision": "bf16"}),
    ),
    "gradient-scale": (
        healthy(response={"grad_norm": 5000.0}, recipe={"max_grad_norm": None}),
        Level.ERROR,
        healthy(response={"grad_norm": 30.0}, recipe={"max_grad_norm": None}),
    ),
    "gradient-scale, clipped": (
        healthy(response={"grad_norm": 132.0}),
        Level.NOTE,
        healthy(response={"grad_norm": 90.0}),
    ),
    "no-clipping": (
        healthy(recipe={"max_grad_norm": None, "learning_rate": 3e-3}, likely_edge=1.0),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": 1.0, "learning_rate": 3e-3}, likely_edge=1.0),
    ),
    "no-clipping, near the edge": (
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-4),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}, likely_edge=5e-3),
    ),
    "no-clipping, large gradient": (
        healthy(recipe={"max_grad_norm": None}, response={"grad_norm": 400.0}),
        Level.WARNING,
        healthy(recipe={"max_grad_norm": None}),
    ),
    "optimizer-epsilon": (
        healthy(recipe={"adam_epsilon": 1e-3}),
        Level.WARNING,
        healthy(recipe={"adam_epsilon": 1e-3, "optimizer": "sgd"}),
    ),
    "optimizer-epsilon, zero": (
        healthy(recipe={"adam_epsilon": 0.0}),
        Level.ERROR,
        healthy(recipe={"adam_epsilon": 1e-15}),
    ),
    "learning-rate": (
        healthy(recipe={"learning_rate": 6e-2}),
        Level.ERROR,
        healthy(recipe={"learning_rate": 6e-4}),
    ),
    "learning-rate, under the edge": (
        healthy(recipe={"learning_rate": 5e-3}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 9e-4}),
    ),
    "published-rate": (
        healthy(recipe={"learning_rate": 1e-2}),
        Level.WARNING,
        healthy(recipe={"learning_rate": 1e-3}),
    ),
    "warmup": (
        healthy(recipe={"warmup_steps": 0}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "optimizer": "sgd"}),
    ),
    "warmup, too short": (
        healthy(recipe={"warmup_steps": 100}),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 100, "max_steps": 3000}),
    ),
    "warmup, fine-tuning": (
        healthy(recipe={"warmup_steps": 0, "learning_rate": 1e-3}, is_pretrained=True),
        Level.WARNING,
        healthy(recipe={"warmup_steps": 0, "learning_rate": 2e-5}, is_pretrained=True),
    ),
    "batch-scaling": (
        healthy(recipe={"batch_size": 1, "sequence_length": 256, "learning_rate": 6e-4}),
        Level.WARNING,
        healthy(recipe={"batch_size": 64, "sequence_length": 256, "learning_rate": 6e-4}),
    ),
    "init-std": (
        healthy(facts={"width": 11600}),
        Level.WARNING,
        healthy(facts={"width": 11600, "input_std": 0.006}),
    ),
    "init-std, too small": (
        healthy(facts={"width": 4096, "input_std": 0.006}),
        Level.WARNING,
        healthy(facts={"width": 64, "input_std": 0.006}),  # narrow models keep the usual 0.02
    ),
    "residual-scaling": (
        healthy(forward=growing(1.5)),
        Level.WARNING,
        healthy(forward=growing(1.1)),
    ),
    "residual-scaling, unscaled": (
        healthy(facts={"depth": 64, "output_std": 0.02}),
        Level.NOTE,
        healthy(facts={"depth": 64, "output_std": 0.02 / math.sqrt(128)}),
    ),
    "zero-init-branch": (
        healthy(forward={"blocks": (BLOCK, replace(BLOCK, update_ratio=0.0))}),
        Level.NOTE,
        healthy(forward={"blocks": (BLOCK, replace(BLOCK, update_ratio=None))}),
    ),
    "feed-forward-ratio": (
        healthy(config={"hidden_size": 16384, "intermediate_size": 20480}),
        Level.WARNING,
        healthy(config={"hidden_size": 16384, "intermediate_size": 65536}),
    ),
    "feed-forward-ratio, experts": (
        healthy(config={"hidden_size": 2048, "intermediate_size": 768}),
        Level.WARNING,
        healthy(config={"hidden_size": 2048, "intermediate_size": 768, "num_experts": 64}),
    ),
    "missing-normalization": (
        healthy(facts={"block_norms": 0}, recipe={"learning_rate": 5e-3}),
        Level.ERROR,
        healthy(facts={"block_norms": 12}, recipe={"learning_rate": 5e-3}),
    ),
    "width-depth-ratio": (
        healthy(facts={"width": 16384, "depth": 32}),
        Level.NOTE,
        healthy(facts={"width": 16384, "depth": 4}),  # cut down to be looked at
    ),
    "router-collapse": (
        healthy(forward=routing(entropy=0.02)),
        Level.ERROR,
        healthy(forward=routing(entropy=0.7)),
    ),
    "router-logit-scale": (
        healthy(forward=routing(logit_std=6.0)),
        Level.WARNING,
        healthy(forward=routing(logit_std=1.0)),
    ),
    "dead-experts": (
        healthy(forward=routing(dead_experts=7), config={"num_local_experts": 8}),
        Level.WARNING,
        healthy(forward=routing(dead_experts=7), config={"num_local_experts": 64}),
    ),
}
NUMBERLESS = {
    "non-finite-activation",
    "fp16-family",
    "non-finite-gradient",
    "missing-normalization",
}


@pytest.mark.parametrize("case", CASES)
def test_failing_setting_trips_it_and_the_stable_twin_does_not(case: str):
    failing, level, stable = CASES[case]
    name = case.split(",")[0]
    finding = found(failing)[name]
    assert finding.level is level
    assert (finding.value is None) == (name in NUMBERLESS)
    assert finding.fix.endswith(".")
    assert finding.message.endswith(".")
    assert name not in found(stable)


def test_every_check_has_a_case_at_its_worst_level():
    worst = {check.name: check.level for check in CHECKS}
    reached: dict[str, list[Level]] = {}
    for case, (_, level, _) in CASES.items():
        reached.setdefault(case.split(",")[0], []).append(level)
    assert set(reached) == set(worst)
    order = list(Level)
    milder = {n for n in worst if min(map(order.index, reached[n])) > order.index(worst[n])}
    assert milder == {"router-logit-scale"}  # the error is the next test's
    assert found(healthy(forward=routing(logit_std=20.0)))["router-logit-scale"].level == "error"


def test_a_healthy_run_has_no_findings():
    assert run_checks(healthy()) == ()


def test_what_is_not_known_is_not_judged():
    assert run_checks(CheckEvidence(recipe=RECIPE)) == ()
    nothing = dict.fromkeys(("loss", "logit_std", "activation_absmax"))
    bare = healthy(
        facts=dict.fromkeys(("input_std", "output_std", "embedding_std")),
        forward=nothing | {"attention": (), "routers": ()},
        response=UNMEASURED | {"reason": "the gradient is zero"},
        do_not_exceed=None,
        likely_edge=None,
    )
    assert run_checks(bare) == ()


def test_trained_weights_are_not_judged_as_initializations():
    evidence = healthy(
        facts={"input_std": 0.3, "embedding_std": 2.0},
        forward={"loss": 40.0, "logit_std": 30.0} | attending(logit_std=9.0, entropy=0.05),
        is_pretrained=True,
    )
    assert found(evidence) == {}
    assert len(found(replace(evidence, is_pretrained=False))) >= 5
