"""Checks of the learning rate: against measured and public edges, warm-up and batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence, Need
from rksp.checks.published import RATES, published_rate, swept_edge
from rksp.documents.finding import Level

NEAR_EDGE = 1 / 3  # half a decade under it, which is how well the edge is known
_HIGH_RATIO = 5.0
_BOUNDED = 3.0  # QK-norm raised the highest stable rate at least this much
_WARMUP_SHARE, _WARMUP_STEPS, _WARMUP_TOKENS = 0.03, 300, 300e6
_FAST, _FAST_STEPS, _FAST_SHARE = 0.25, 1000, 0.2
_FINE_TUNING_RATE, _ADAPTER_RATE = 1e-4, 5e-4
_REFERENCE_BATCH = 0.5e6  # tokens; Brown et al., 2020, Table 2.1, 125M to 760M parameters
_BATCH_RATIO, _WILD_BATCH_RATIO = 10.0, 30.0


def _rate_over_edge(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, edge = evidence.recipe.learning_rate, evidence.likely_edge
    start, ceiling = evidence.start_here, evidence.do_not_exceed
    if rate is None or edge is None or ceiling is None or rate <= min(ceiling, edge):
        return
    is_over = rate > edge
    bound, name = (edge, "likely edge") if is_over else (ceiling, "rate not to exceed,")
    yield Observation(
        level=Level.ERROR if is_over else Level.WARNING,
        message=f"The rate {rate:g} is {rate / bound:.3g} times the {name} {bound:.2g}.",
        value=rate / edge,
        rate=start or ceiling,
    )


def _published_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, edge = evidence.rate_over_published, evidence.public_edge
    rate, size = evidence.recipe.learning_rate, evidence.active_parameters
    if ratio is None or edge is None:
        return
    limit = edge / 2 * (_BOUNDED if evidence.bounds_attention else 1.0)
    if rate > limit:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"The rate {rate:g} is above {limit:.2g}, half of where public runs of "
                f"{size / 1e6:,.0f}M active parameters began to fail"
                + (", times 3 for bounded attention." if evidence.bounds_attention else ".")
            ),
            value=ratio,
            rate=limit,
        )
    elif ratio > _HIGH_RATIO:
        usual = published_rate(size)
        yield Observation(
            level=Level.NOTE,
            message=(
                f"The rate is {ratio:.3g} times the {usual:.2g} that GPT-3's recipe has for "
                f"{size / 1e6:,.0f}M active parameters."
            ),
            value=ratio,
            rate=_HIGH_RATIO * usual,
        )


def _warmup(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, wanted = evidence.recipe, _wanted_warmup(evidence)
    if recipe.warmup_steps >= wanted:
        return
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


def _wanted_warmup(evidence: CheckEvidence) -> int:
    """Steps of warm-up that this recipe should have; 0 where it needs none."""
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or not RATES[recipe.optimizer].needs_warmup:
        return 0
    gentle = _FINE_TUNING_RATE if recipe.peft == "none" else _ADAPTER_RATE
    if evidence.is_fine_tuning and rate <= gentle:
        return 0
    if recipe.warmup_steps * evidence.tokens >= _WARMUP_TOKENS:
        return 0
    size = evidence.block_parameters
    own = swept_edge(recipe.optimizer, size) if size else None
    edge = min((e for e in (evidence.public_edge, own) if e is not None), default=None)
    if edge is not None and not evidence.is_fine_tuning and rate > _FAST * edge:
        return min(_FAST_STEPS, math.ceil(_FAST_SHARE * recipe.max_steps))
    return min(_WARMUP_STEPS, math.ceil(_WARMUP_SHARE * recipe.max_steps))


def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    ratio, tokens = evidence.rate_over_published, evidence.tokens
    if ratio is None or tokens >= _REFERENCE_BATCH:
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
            rate=evidence.recipe.learning_rate * _BATCH_RATIO / scaled,
        )


CHECKS = (
    Check(
        code="RKSP501",
        name="learning-rate",
        level=Level.ERROR,
        title="The learning rate is above what this model bears",
        measures=(
            "The peak rate over the likely edge (where failure is as likely as not) and the rate "
            "not to exceed, below which 5 % of the edges lie."
        ),
        why=(
            "Above the edge a lower rate would train better, or nothing does. Both numbers come "
            "from the model of the edge, whose card says how well it does; the other checks are "
            "independent of it."
        ),
        source="measured on our runs (rksp lab) and on public ladders",
        healthy="at most the rate not to exceed; a warning above it, an error above the edge",
        fix="Lower the rate to the one to start with.",
        failing="rksp score gpt2 --lr 6e-2",
        stable="rksp score gpt2 --lr 6e-4",
        look=_rate_over_edge,
        needs=(Need.ANSWER,),
        field="learning_rate",
    ),
    Check(
        code="RKSP502",
        name="published-rate",
        level=Level.WARNING,
        title="The learning rate is above what public runs of this size bore",
        measures=(
            "The peak rate of AdamW and its kin against half of 10^1.52 · N^-0.39 · B^-0.02, the "
            "edge of public ladders (N active parameters without embeddings, B tokens a step), "
            f"times {_BOUNDED:g} if attention is bounded. A note above {_HIGH_RATIO:g} times "
            "GPT-3's line. Not for fine-tuning, nor under μP."
        ),
        why=(
            "The highest rate that trains falls with size. Marin's 8B ran well at 1e-3 and not at "
            "2e-3; DCLM's 7B, with QK-norm and z-loss, ran at 2e-3. Under μP the rate is that of "
            "a small base model, and this line says nothing."
        ),
        source=(
            "our fit to Step Law's ladders (arXiv 2503.04715); Marin PR 1236; Rybakov et al., "
            "2024 (arXiv 2410.16682) for QK-norm; Brown et al., 2020, Table 2.1"
        ),
        healthy=f"at most half the public edge, and {_HIGH_RATIO:g} times GPT-3's rate",
        fix="Lower the learning rate.",
        failing="an 8B Llama at 2e-3",
        stable="an 8B Llama at 1e-3",
        look=_published_rate,
        needs=(Need.SIZE,),
        field="learning_rate",
    ),
    Check(
        code="RKSP503",
        name="warmup",
        level=Level.WARNING,
        title="Warm-up is missing or short",
        measures=(
            f"Warm-up against {_WARMUP_SHARE:.0%} of the run, {_WARMUP_STEPS} steps or "
            f"{_WARMUP_TOKENS / 1e6:g}M tokens, whichever is least; {_FAST_STEPS} steps or those "
            f"tokens where the rate is above {_FAST:g} of a public edge. Not for SGD, Adafactor, "
            f"Muon and Scion, nor for fine-tuning at {_FINE_TUNING_RATE:g} "
            f"({_ADAPTER_RATE:g} with adapters) or less."
        ),
        why=(
            "The first gradients point where curvature is highest, and Adam's second moment is "
            "not yet an average. Warm-up takes the model to flatter places before the rate is "
            "full. MPT-125M with 100 warm-up steps (52M tokens) exploded; GPT-3 and OPT warm up "
            "over 375M tokens. Near the edge more is needed: of the Adam-like and Lion runs of "
            "the Marin sweep, at a third to two thirds of their edge, 14 of 26 failed with 500 "
            "steps instead of 2000 or 4000, and 9 of 26 with 1000; Muon and Scion trained without "
            "any."
        ),
        source=(
            "the Marin optimizer sweep (arXiv 2509.02046), our count; llm-foundry #232, #759 and "
            "PR 330; Gilmer et al., 2021; Xiong et al., 2020"
        ),
        healthy=(
            f"at least {_WARMUP_SHARE:.0%} of the run, {_WARMUP_STEPS} steps or "
            f"{_WARMUP_TOKENS / 1e6:g}M tokens"
        ),
        fix=f"Warm up for {_WARMUP_SHARE:.0%} of the run.",
        failing="--warmup-steps 100 --max-steps 100000 with 0.5M tokens a step",
        stable="--warmup-steps 750 --max-steps 600000 with 0.5M tokens a step (GPT-3 125M)",
        look=_warmup,
        field="warmup_steps",
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
        fix="Lower the learning rate, or raise the batch (accumulate gradients).",
        failing="213M parameters, learning rate 4e-4, 1,500 tokens a step: 14",
        stable="213M parameters, learning rate 4e-4, 16,384 tokens a step: 4.4",
        look=_batch,
        needs=(Need.SIZE,),
        field="batch_size",
    ),
)
