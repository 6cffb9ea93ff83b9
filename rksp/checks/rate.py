"""Checks of the learning rate: against the safe one, published ones, warm-up and batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, published_rate
from rksp.checks.finding import Level
from rksp.optimizers.table import optimizer_spec

_OVER_EDGE = 2.0
NEAR_EDGE = 1 / 3  # half a decade under it, which is how well the edge is known
_NOTED = 0.1
_HIGH_RATIO, _WILD_RATIO = 2.0, 10.0
_WARMUP_SHARE, _WARMUP_STEPS = 0.03, 1000
_FINE_TUNING_RATE = 1e-4
_REFERENCE_BATCH = 0.5e6  # tokens; Brown et al., 2020, Table 2.1, 125M to 760M parameters
_BATCH_RATIO, _WILD_BATCH_RATIO = 10.0, 30.0


def _safe_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, edge = evidence.recipe.learning_rate, evidence.likely_edge
    safe = evidence.safe_learning_rate
    if rate is None:
        return
    if edge is not None and rate > NEAR_EDGE * edge:
        yield Observation(
            level=Level.ERROR if rate > _OVER_EDGE * edge else Level.WARNING,
            message=f"The rate {rate:g} is {rate / edge:.3g} times the likely edge {edge:.2g}.",
            value=rate / edge,
            fix=f"Lower the rate to {_NOTED * edge:.1g}"
            + (f", or to the safe {safe:.2g}." if safe is not None else "."),
        )
    elif safe is not None and rate > safe and (edge is None or rate > _NOTED * edge):
        yield Observation(
            level=Level.NOTE,
            message=f"The rate {rate:g} is {rate / safe:.3g} times the safe one {safe:.2g}.",
            value=rate / safe,
            fix=f"Lower the rate to {safe:.2g}.",
        )


def _published_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio = evidence.rate_over_published
    if ratio is not None and ratio > _HIGH_RATIO:
        size = evidence.facts.parameters
        yield Observation(
            level=Level.WARNING if ratio > _WILD_RATIO else Level.NOTE,
            message=(
                f"The rate is {ratio:.3g} times the {published_rate(size):.2g} that GPT-3's recipe "
                f"has for {size:,.0f} parameters."
            ),
            value=ratio,
            fix=f"Lower the rate to {_HIGH_RATIO * published_rate(size):.1g}.",
        )


def _warmup(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.learning_rate is None or optimizer_spec(recipe.optimizer).family == "plain":
        return
    if evidence.is_pretrained and recipe.learning_rate <= _FINE_TUNING_RATE:
        return
    wanted = min(_WARMUP_STEPS, math.ceil(_WARMUP_SHARE * recipe.max_steps))
    if recipe.warmup_steps < wanted:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Warm-up is {recipe.warmup_steps} of {recipe.max_steps} steps."
                if recipe.warmup_steps
                else f"There is no warm-up in {recipe.max_steps} steps."
            ),
            value=float(recipe.warmup_steps),
            fix=f"Warm up for {wanted} steps (--warmup-steps {wanted}).",
        )


def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio = evidence.rate_over_published
    tokens = evidence.recipe.batch_size * evidence.recipe.sequence_length
    if ratio is None or tokens >= _REFERENCE_BATCH or ratio <= 0:
        return
    scaled = ratio * math.sqrt(_REFERENCE_BATCH / tokens)
    if scaled > _BATCH_RATIO:
        yield Observation(
            level=Level.WARNING if scaled > _WILD_BATCH_RATIO else Level.NOTE,
            message=(
                f"With {tokens:,} tokens a step the rate is {scaled:.3g} times GPT-3's, scaled by "
                "the square root of the batch."
            ),
            value=scaled,
        )


CHECKS = (
    Check(
        code="RKSP501",
        name="learning-rate",
        level=Level.ERROR,
        title="The learning rate is above what this model bears",
        measures=(
            "The peak rate over the likely edge (where failure is as likely as not) and the safe "
            "one."
        ),
        why=(
            "Above the edge a lower rate would train better, or nothing does. Both numbers come "
            "from the calibrated classifier, whose card says how well it does; the other checks "
            "are independent of it."
        ),
        source="measured on our runs (rksp lab)",
        healthy=(
            "at most the safe rate, or a tenth of the edge; a warning above a third of the edge, "
            f"an error above {_OVER_EDGE:g} times the edge"
        ),
        fix="Lower the rate to the safe one.",
        failing="rksp score gpt2 --lr 6e-2",
        stable="rksp score gpt2 --lr 6e-4",
        look=_safe_rate,
    ),
    Check(
        code="RKSP502",
        name="published-rate",
        level=Level.WARNING,
        title="The learning rate is far above published recipes",
        measures=(
            "AdamW's peak rate over 6e-4 · (parameters / 125M)^-0.32, a line through GPT-3's "
            "recipes; not for fine-tuning."
        ),
        why=(
            "It is a habit, not a limit: Marin's 8B ran well at 6 times the line and not at 12; a "
            "LLaMA-13B reproduction spiked at 2.2 times and was smooth at 0.9; with QK-norm 7 "
            "times has worked at 13B."
        ),
        source="Brown et al., 2020, Table 2.1; Marin PR 1236; open_llama #74; OLMo 2",
        healthy=f"at most {_HIGH_RATIO:g} times; a warning above {_WILD_RATIO:g} times",
        fix="Lower the rate.",
        failing="an 8B Llama at 2e-3",
        stable="an 8B Llama at 3e-4",
        look=_published_rate,
    ),
    Check(
        code="RKSP503",
        name="warmup",
        level=Level.WARNING,
        title="Warm-up is missing or short",
        measures=(
            f"Warm-up steps against {_WARMUP_SHARE:.0%} of the run, at most {_WARMUP_STEPS}; not "
            f"for SGD, nor for fine-tuning at {_FINE_TUNING_RATE:g} or less."
        ),
        why=(
            "The first gradients point where curvature is highest, and Adam's second moment is "
            "not yet an average. Warm-up takes the model to flatter places before the rate is "
            "full; post-norm models need it most. MPT-125M with 100 warm-up steps exploded; its "
            "makers advised a longer one, and a default of 1000 was proposed."
        ),
        source="llm-foundry #232, #759 and PR 330; Gilmer et al., 2021; Xiong et al., 2020",
        healthy=f"at least {_WARMUP_SHARE:.0%} of the run, or {_WARMUP_STEPS} steps",
        fix=f"Warm up for {_WARMUP_SHARE:.0%} of the run.",
        failing="--warmup-steps 100 --max-steps 100000",
        stable="--warmup-steps 1000 --max-steps 100000",
        look=_warmup,
    ),
    Check(
        code="RKSP504",
        name="batch-scaling",
        level=Level.WARNING,
        title="The learning rate is high for so small a batch",
        measures=(
            "The rate over GPT-3's for the size, scaled by √(tokens per step / 0.5M); only below "
            "0.5M."
        ),
        why=(
            "A small batch gives a noisier gradient, and a normalized update follows noise as far "
            "as signal; for Adam-like optimizers the rate scales about with the square root of "
            "the batch. Tensor2Tensor's big model on one GPU, 1,500 tokens a step, diverged until "
            "the batch grew."
        ),
        source="Malladi et al., 2022 (arXiv 2205.10287); tensor2tensor #529; levels are our choice",
        healthy=f"at most {_BATCH_RATIO:g} times; a warning above {_WILD_BATCH_RATIO:g} times",
        fix="Raise the batch (accumulate gradients), or lower the rate.",
        failing="213M parameters, learning rate 4e-4, 1,500 tokens a step: 14",
        stable="213M parameters, learning rate 4e-4, 16,384 tokens a step: 4.4",
        look=_batch,
    ),
)
