"""Checks of the learning rate: its edge, optimizer and schedule, and whether labels cover them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence, published_rate, swept_edge
from rksp.documents.finding import Level
from rksp.ground.flags import count
from rksp.ground.text import short
from rksp.recipe.coverage import not_covered
from rksp.recipe.optimizers.table import optimizer_spec

NEAR_EDGE = 1 / 3  # half a decade under it, which is how well the edge is known
_HIGH_RATIO = 5.0
_BOUNDED = 3.0  # QK-norm raised the highest stable rate at least this much
_WARMUP_SHARE, _WARMUP_STEPS, _WARMUP_TOKENS = 0.03, 300, 300e6
_FAST, _FAST_STEPS, _FAST_SHARE = 0.25, 1000, 0.2
_GENTLE_RATE, _ADAPTER_RATE = 1e-4, 5e-4
_GENTLE_SHARE = 0.02  # of a public edge; MPT's 125M and 1B broke at 0.03 of it, DiT held at 0.01
_REFERENCE_BATCH = 0.5e6  # tokens; Brown et al., 2020, Table 2.1, 125M to 760M parameters
_BATCH_RATIO, _WILD_BATCH_RATIO = 10.0, 30.0


@check("RKSP501")
def _rate_over_edge(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, edge = evidence.recipe.learning_rate, evidence.likely_edge
    ceiling = evidence.do_not_exceed
    if rate is None or edge is None or ceiling is None or rate <= ceiling:
        return
    is_over = rate >= edge
    bound, name = (edge, "likely edge") if is_over else (ceiling, "learning rate not to exceed,")
    yield Observation(
        f"The learning rate {short(rate, 6)} is {short(rate / bound)} times the {name} "
        f"{short(bound, 2)}.",
        rate / edge,
        level=Level.ERROR if is_over else Level.WARNING,
        rate=ceiling,
    )


@check("RKSP502")
def _published_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, size = evidence.recipe.learning_rate, evidence.active_parameters
    ratio, edge = evidence.rate_over_published, evidence.public_edge
    is_bounded = evidence.bounds_attention
    if rate is None or size is None or ratio is None or edge is None:
        return
    limit = edge / 2 * (_BOUNDED if is_bounded else 1.0)
    if rate > limit:
        yield Observation(
            f"The learning rate {short(rate, 6)} is above {short(limit, 2)}, which is half of the "
            f"one at which public runs of {count(size)} active parameters began to fail"
            f"{' (times 3, because attention is bounded)' * is_bounded}.",
            ratio,
            rate=limit,
        )
    elif ratio > _HIGH_RATIO:
        usual = published_rate(size)
        yield Observation(
            f"The learning rate is {short(ratio)} times the {usual:.2g} of GPT-3's recipe for "
            f"{count(size)} active parameters.",
            ratio,
            level=Level.NOTE,
            rate=_HIGH_RATIO * usual,
        )


@check("RKSP503")
def _warmup(evidence: CheckEvidence) -> Iterator[Observation]:
    steps, wanted = evidence.recipe.warmup_steps, _wanted_warmup(evidence)
    if steps < wanted:
        said = f"The warm-up takes {steps} of" if steps else "There is no warm-up in"
        yield Observation(
            f"{said} {evidence.recipe.max_steps} steps.",
            float(steps),
            fix=f"Warm up for {wanted} steps (--warmup-steps {wanted}).",
        )


def _wanted_warmup(evidence: CheckEvidence) -> int:
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or not optimizer_spec(recipe.optimizer).needs_warmup:
        return 0
    gentle = _GENTLE_RATE if recipe.peft == "none" else _ADAPTER_RATE
    if not evidence.start.is_scratch and rate <= gentle:
        return 0
    if recipe.warmup_steps * evidence.tokens >= _WARMUP_TOKENS:
        return 0
    size = evidence.block_parameters
    own = swept_edge(recipe.optimizer, size) if size else None
    edge = min((e for e in (evidence.public_edge, own) if e is not None), default=None)
    if edge is not None and rate <= min(_GENTLE_RATE, _GENTLE_SHARE * edge):
        return 0
    if edge is not None and evidence.start.is_scratch and rate > _FAST * edge:
        return min(_FAST_STEPS, math.ceil(_FAST_SHARE * recipe.max_steps))
    return min(_WARMUP_STEPS, math.ceil(_WARMUP_SHARE * recipe.max_steps))


@check("RKSP504")
def _batch(evidence: CheckEvidence) -> Iterator[Observation]:
    rate, tokens = evidence.recipe.learning_rate or 0.0, evidence.tokens
    scaled = (evidence.rate_over_published or 0.0) * math.sqrt(_REFERENCE_BATCH / tokens)
    if tokens < _REFERENCE_BATCH and scaled > _BATCH_RATIO:
        times = f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"
        yield Observation(
            f"With {tokens:,} tokens a step the learning rate is {times} times GPT-3's, "
            "scaled by the square root of the batch.",
            scaled,
            level=Level.WARNING if scaled > _WILD_BATCH_RATIO else Level.NOTE,
            rate=rate * _BATCH_RATIO / scaled,
        )


_OF_EDGE = 0.75
_OVER_PUBLISHED = 2.0  # times the top of what was published


@check("RKSP507", weights="random")
def _own_rate(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe, size = evidence.recipe, evidence.active_parameters
    rate, known = recipe.learning_rate or 0.0, optimizer_spec(recipe.optimizer)
    if not size or recipe.optimizer == "adamw" or evidence.settings.scales_rates_by_width:
        return
    edge = swept_edge(recipe.optimizer, evidence.block_parameters or size)
    limit = math.inf if edge is None else _OF_EDGE * edge
    if known.rates.over_adamw is not None and known.family in ("sign-like", "layerwise"):
        limit = min(limit, _OVER_PUBLISHED * known.rates.over_adamw * published_rate(size))
    if rate > limit:
        yield Observation(
            f"The learning rate {short(rate, 6)} is above {short(limit, 2)}, the highest that "
            f"is known to work with {recipe.optimizer} at {size / 1e6:,.0f}M active parameters.",
            rate / limit,
            rate=limit,
        )


_TRAVEL, _NO_TRAVEL = 1e-5, 1e-6  # fine-tuning by reinforcement travels 1e-4
_LOST_IN_FP32 = 1e-9  # half a unit in the last place of a weight of 0.02


@check("RKSP505")
def _warmup_length(evidence: CheckEvidence) -> Iterator[Observation]:
    warmup, steps = evidence.recipe.warmup_steps, evidence.recipe.max_steps
    if warmup >= steps and warmup > 1:
        share = steps / warmup
        yield Observation(
            f"The warm-up of {warmup} steps lasts for the whole run of {steps} steps: the learning "
            f"rate only rises, to {share:.0%} of its peak.",
            1 / share,
            fix=f"Warm up for {max(1, steps // 10)} steps, or train for longer.",
        )


@check("RKSP506")
def _travel(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    rate = recipe.learning_rate
    if rate is None or optimizer_spec(recipe.optimizer).family in ("plain", "layerwise"):
        return
    farthest = rate * recipe.max_steps
    if farthest < _TRAVEL or rate < _LOST_IN_FP32:
        is_still = farthest < _NO_TRAVEL or rate < _LOST_IN_FP32
        yield Observation(
            f"A learning rate of {short(rate, 6)} over {recipe.max_steps} steps moves a weight "
            f"by at most {farthest:.1g}, so nothing is learned.",
            farthest,
            level=Level.ERROR if is_still else Level.WARNING,
        )


@check("RKSP901")
def _not_covered(evidence: CheckEvidence) -> Iterator[Observation]:
    # The model of fine-tuning says itself what its runs do not hold.
    parts = [] if not evidence.start.is_scratch else list(not_covered(evidence.recipe))
    if evidence.recipe.precision == "fp8":
        parts.append("fp8")
    if evidence.settings.scales_rates_by_width:
        parts.append("rates scaled by width (μP)")
    if parts:
        yield Observation(
            f"The labelled runs behind P(failed) include no {', no '.join(parts)}.",
            float(len(parts)),
        )
