"""Checks of the gradient, its clipping, and what an optimizer keeps of it: betas, weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.checks.precision import FP16_MAX
from rksp.checks.rate import NEAR_EDGE
from rksp.documents.finding import LEVELS, Level
from rksp.documents.shown import GRADIENT_NOT_FINITE
from rksp.ground.text import short

_NORM, _WILD_NORM = 100.0, 1000.0
_SKIPPED = 1024.0  # torch's loss scale starts at 65536 and halves with each overflow: ten steps
_USUAL_RATE = 2.0  # times the published rate
_STARVED = 5e-4  # epsilon over the bound of a clipped gradient's entries: 4.8B parameters at 1e-8
_FAST = 100.0  # 4.8B at 0.3 had 1,600; DCLM trained 7B at 12
_OVER_TYPICAL = 5.0  # Llama 2 70B trained with 2.6 times what clipping leaves
_LARGE_EPSILON, _HUGE_EPSILON = 1e-4, 1e-2


@check("RKSP401")
def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    loss = evidence.forward.loss
    if evidence.gradient.reason == GRADIENT_NOT_FINITE:
        subject = "The" if loss is None else f"The loss is {loss:.3g}, but its"
        yield Observation(f"{subject} gradient holds NaN or infinity.")


@check("RKSP402")
def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = evidence.gradient.grad_max or 0.0
    if evidence.in_fp16 and largest > _SKIPPED:
        yield Observation(
            f"The largest gradient entry is {largest:.3g} before loss scaling.",
            largest,
            level=Level.ERROR if largest > FP16_MAX else Level.WARNING,
        )


@check("RKSP403")
def _scale(evidence: CheckEvidence) -> Iterator[Observation]:
    norm = evidence.gradient.grad_norm or 0.0
    if norm > _NORM:
        is_clipped, is_wild = evidence.is_clipped, norm > _WILD_NORM
        said = f", clipped to {evidence.recipe.max_grad_norm:g}" if is_clipped else ""
        yield Observation(
            f"The first gradient has norm {norm:.3g}{said}.",
            norm,
            level=LEVELS[is_wild + (not is_clipped)],
        )


@check("RKSP404")
def _no_clipping(evidence: CheckEvidence) -> Iterator[Observation]:
    if evidence.is_clipped:
        return
    ratio, norm = evidence.rate_over_published or 0.0, evidence.gradient.grad_norm or 0.0
    share = (evidence.recipe.learning_rate or 0.0) / (evidence.likely_edge or math.inf)
    for value, limit, reason in (
        (ratio, _USUAL_RATE, f"the learning rate is {short(ratio)} times GPT-3's for this size"),
        (share, NEAR_EDGE, f"the learning rate is {short(share)} times the likely edge"),
        (norm, _NORM, f"the first gradient has norm {norm:.3g}"),
    ):
        if value > limit:
            yield Observation(f"Gradients are not clipped, and {reason}.", value)
            return


@check("RKSP405")
def _epsilon(evidence: CheckEvidence) -> Iterator[Observation]:
    if not evidence.has_adam:
        return
    epsilon, typical = evidence.recipe.adam_epsilon, _typical_entry(evidence)
    if epsilon == 0:
        yield Observation(
            "Adam's epsilon is 0, so the update of a parameter without a gradient is 0/0.",
            0.0,
            fix="Set epsilon to 1e-8.",
        )
    elif typical is None:
        yield from _epsilon_alone(evidence)
    elif epsilon > _OVER_TYPICAL * typical:
        yield Observation(
            f"Adam's epsilon {epsilon:g} is larger than {_OVER_TYPICAL:g} times the typical "
            f"gradient entry {typical:.2g}.",
            epsilon / typical,
            level=Level.WARNING,
            fix=f"Set epsilon to {typical / 100:.0e} or less.",
        )
    else:
        yield from _starving_epsilon(evidence)


def _typical_entry(evidence: CheckEvidence) -> float | None:
    """Return the RMS of the clipped gradient: measured, else the largest that clipping allows."""
    gradient, clip = evidence.gradient, evidence.recipe.max_grad_norm
    if gradient.grad_rms is not None and gradient.grad_norm is not None:
        shrink = min(1.0, clip / gradient.grad_norm) if clip is not None else 1.0
        return gradient.grad_rms * shrink
    if clip is None or not evidence.parameters:
        return None
    return clip / math.sqrt(evidence.parameters)


def _epsilon_alone(evidence: CheckEvidence) -> Iterator[Observation]:
    epsilon = evidence.recipe.adam_epsilon
    if epsilon > _LARGE_EPSILON:
        yield Observation(
            f"Adam's epsilon is {epsilon:g}, which is larger than usual gradient entries.",
            epsilon,
            level=Level.ERROR if epsilon >= _HUGE_EPSILON else Level.WARNING,
        )


def _starving_epsilon(evidence: CheckEvidence) -> Iterator[Observation]:
    """Compare epsilon with gradients that shrink as a large model trains at a very high rate."""
    clip, epsilon = evidence.recipe.max_grad_norm, evidence.recipe.adam_epsilon
    ratio, size = evidence.rate_over_published, evidence.parameters
    if clip is None or ratio is None or ratio < _FAST or not size:
        return
    share = epsilon * math.sqrt(size) / clip
    if share > _STARVED:
        yield Observation(
            f"Adam's epsilon {epsilon:g} is {share:.2g} of the largest typical gradient entry "
            f"at {size / 1e9:.3g}B parameters. Gradients shrink further at {short(ratio)} "
            "times GPT-3's learning rate.",
            share,
            level=Level.WARNING,
            fix="Set epsilon to 1e-15 (--epsilon 1e-15).",
        )


_SMALL, _TINY = 1e-3, 1e-5  # PixArt-α clips at 0.01, and nothing published below
_LARGE = 1000.0


@check("RKSP406")
def _bound(evidence: CheckEvidence) -> Iterator[Observation]:
    bound = evidence.recipe.max_grad_norm
    if bound is not None and not _SMALL <= bound <= _LARGE:
        is_small = bound < _SMALL
        why = "is far below any published bound" if is_small else "no healthy gradient reaches"
        yield Observation(
            f"Gradients are clipped at {bound:g}, which {why}.",
            bound,
            level=Level.ERROR if bound < _TINY else Level.WARNING,
        )


_SLOW, _SLOWEST = 0.98, 0.995
_QUICK, _QUICK_IN = 0.85, ("nadamw", "cautious", "soap")
_SHORT, _LONG = 0.9, 0.9999
_LARGE_BATCH, _BRISK = 1e6, 5.0  # Falcon 7B trained at 3.7
_SHRINK = 0.1
_FOLLOW_BETAS = ("adamw", "nadamw", "cautious", "mars", "soap", "lamb")


@check("RKSP407")
def _betas(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    beta1, beta2, name = recipe.adam_beta1, recipe.adam_beta2, recipe.optimizer
    if name not in (*_FOLLOW_BETAS, "lion"):
        return
    has_second = name in _FOLLOW_BETAS
    if has_second and beta1**2 >= math.sqrt(beta2):
        yield Observation(
            f"β₁ = {beta1:g} and β₂ = {beta2:g} violate Adam's condition β₁² < √β₂: the second "
            "moment forgets before the first.",
            beta1**2 / math.sqrt(beta2) if beta2 else None,
        )
    elif beta1 >= _SLOW:
        yield Observation(
            f"β₁ = {beta1:g} averages over {1 / (1 - beta1):,.0f} gradients.",
            beta1,
            level=Level.ERROR if beta1 >= _SLOWEST else Level.WARNING,
        )
    elif name in _QUICK_IN and beta1 < _QUICK:
        yield Observation(
            f"β₁ = {beta1:g} is small for {name}.",
            beta1,
            level=Level.WARNING,
            fix="Set β₁ to 0.95 (--beta1 0.95).",
        )
    elif has_second and not _SHORT <= beta2 <= _LONG:
        yield Observation(
            f"β₂ = {beta2:g} averages over {1 / (1 - beta2):,.0f} squared gradients.",
            beta2,
            level=Level.WARNING,
            fix="Set β₂ to 0.95 (--beta2 0.95).",
        )


@check("RKSP408", weights="random")
def _batch_memory(evidence: CheckEvidence) -> Iterator[Observation]:
    beta2, ratio = evidence.recipe.adam_beta2, evidence.rate_over_published or 0.0
    if evidence.recipe.optimizer not in _FOLLOW_BETAS or not evidence.reads_tokens:
        return
    if beta2 < 0.999 or evidence.tokens < _LARGE_BATCH:
        return
    is_fast = ratio > _BRISK
    said = f", at {short(ratio)} times GPT-3's learning rate" if is_fast else ""
    yield Observation(
        f"β₂ = {beta2:g} averages over {1 / (1 - beta2):,.0f} steps of {evidence.tokens:,} tokens"
        f"{said}.",
        beta2,
        level=Level.WARNING if is_fast else Level.NOTE,
    )


@check("RKSP409")
def _decay(evidence: CheckEvidence) -> Iterator[Observation]:
    decay, rate = evidence.recipe.weight_decay, evidence.recipe.learning_rate or 0.0
    largest = 1.0 if evidence.recipe.optimizer in _FOLLOW_BETAS else math.inf
    shrink = rate * decay
    if shrink > _SHRINK:
        yield Observation(
            f"Weight decay removes {shrink:.0%} of every weight at each step.",
            shrink,
            fix=f"Lower weight decay to {0.001 / rate:.1g} or less (0.1 is usual).",
        )
    elif decay > largest:
        yield Observation(
            f"Weight decay is {decay:g}. Published recipes of AdamW use 0 to 0.4.",
            decay,
            level=Level.WARNING,
        )
