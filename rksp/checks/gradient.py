"""Checks of the gradient, its clipping, and what an optimizer keeps of it: betas, weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.checks.rate import NEAR_EDGE
from rksp.documents.finding import Level
from rksp.documents.shown import GRADIENT_NOT_FINITE
from rksp.ground.model import definite
from rksp.ground.text import short

_NORM, _WILD_NORM = 100.0, 1000.0
_FP16_MAX = 65504.0
_SKIPPED = 1024.0  # torch's loss scale starts at 65536 and halves with each overflow: ten steps
_USUAL_RATE = 2.0  # times the published rate
_STARVED = 5e-4  # epsilon over the bound of a clipped gradient's entries: 4.8B parameters at 1e-8
_FAST = 100.0  # 4.8B at 0.3 had 1,600; DCLM trained 7B at 12
_OVER_TYPICAL = 5.0  # Llama 2 70B trained with 2.6 times what clipping leaves
_LARGE_EPSILON, _HUGE_EPSILON = 1e-4, 1e-2


@check("RKSP401")
def _non_finite(evidence: CheckEvidence) -> Iterator[Observation]:
    gradient, forward = evidence.gradient, evidence.forward
    if definite(gradient).reason != GRADIENT_NOT_FINITE:
        return
    loss = forward.loss if forward is not None else None
    if loss is None:
        message = "The gradient holds NaN or infinity."
    else:
        message = f"The loss is {loss:.3g}, but its gradient holds NaN or infinity."
    yield Observation(message=message, value=None)


@check("RKSP402")
def _fp16_range(evidence: CheckEvidence) -> Iterator[Observation]:
    largest = evidence.gradient.grad_max if evidence.gradient is not None else None
    if largest is None or not evidence.in_fp16:
        return
    if largest > _SKIPPED:
        yield Observation(
            level=Level.ERROR if largest > _FP16_MAX else Level.WARNING,
            message=f"The largest gradient entry is {largest:.3g} before loss scaling.",
            value=largest,
        )


@check("RKSP403")
def _scale(evidence: CheckEvidence) -> Iterator[Observation]:
    norm = _norm(evidence)
    if norm is not None and norm > _NORM:
        is_clipped = evidence.is_clipped
        wild = Level.WARNING if is_clipped else Level.ERROR
        mild = Level.NOTE if is_clipped else Level.WARNING
        yield Observation(
            level=wild if norm > _WILD_NORM else mild,
            message=f"The first gradient has norm {norm:.3g}"
            + (f", clipped to {evidence.recipe.max_grad_norm:g}." if is_clipped else "."),
            value=norm,
        )


@check("RKSP404")
def _no_clipping(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if evidence.is_clipped:
        return
    edge = evidence.likely_edge
    reason, value = None, None
    ratio, norm, rate = evidence.rate_over_published, _norm(evidence), recipe.learning_rate
    if ratio is not None and ratio > _USUAL_RATE:
        reason, value = f"the learning rate is {short(ratio)} times GPT-3's for this size", ratio
    elif rate is not None and edge is not None and rate > NEAR_EDGE * edge:
        reason, value = (
            f"the learning rate is {short(rate / edge)} times the likely edge",
            rate / edge,
        )
    elif norm is not None and norm > _NORM:
        reason, value = f"the first gradient has norm {norm:.3g}", norm
    if reason is not None:
        yield Observation(message=f"Gradients are not clipped, and {reason}.", value=value)


@check("RKSP405")
def _epsilon(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if not evidence.has_adam:
        return
    epsilon = recipe.adam_epsilon
    if epsilon == 0:
        yield Observation(
            message="Adam's epsilon is 0, so the update of a parameter without a gradient is 0/0.",
            value=0.0,
            fix="Set epsilon to 1e-8.",
        )
        return
    typical = _typical_entry(evidence)
    if typical is None:
        yield from _epsilon_alone(evidence)
    elif epsilon > _OVER_TYPICAL * typical:
        yield Observation(
            level=Level.WARNING,
            message=(
                f"Adam's epsilon {epsilon:g} is larger than {_OVER_TYPICAL:g} times the typical "
                f"gradient entry {typical:.2g}."
            ),
            value=epsilon / typical,
            fix=f"Set epsilon to {typical / 100:.0e} or less.",
        )
    else:
        yield from _starving_epsilon(evidence)


def _typical_entry(evidence: CheckEvidence) -> float | None:
    """Return the RMS of the clipped gradient: measured, else the largest that clipping allows."""
    gradient, clip = evidence.gradient, evidence.recipe.max_grad_norm
    if gradient is not None and gradient.grad_rms is not None and gradient.grad_norm is not None:
        shrink = min(1.0, clip / gradient.grad_norm) if clip is not None else 1.0
        return gradient.grad_rms * shrink
    if clip is None or not evidence.parameters:
        return None
    return clip / math.sqrt(evidence.parameters)


def _epsilon_alone(evidence: CheckEvidence) -> Iterator[Observation]:
    epsilon = evidence.recipe.adam_epsilon
    if epsilon > _LARGE_EPSILON:
        yield Observation(
            level=Level.ERROR if epsilon >= _HUGE_EPSILON else Level.WARNING,
            message=f"Adam's epsilon is {epsilon:g}, which is larger than usual gradient entries.",
            value=epsilon,
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
            level=Level.WARNING,
            message=(
                f"Adam's epsilon {epsilon:g} is {share:.2g} of the largest typical gradient entry "
                f"at {size / 1e9:.3g}B parameters. Gradients shrink further at {short(ratio)} "
                "times GPT-3's learning rate."
            ),
            value=share,
            fix="Set epsilon to 1e-15 (--epsilon 1e-15).",
        )


def _norm(evidence: CheckEvidence) -> float | None:
    return evidence.gradient.grad_norm if evidence.gradient is not None else None


_SMALL, _TINY = 1e-3, 1e-5  # PixArt-α clips at 0.01, and nothing published below
_LARGE = 1000.0


@check("RKSP406")
def _bound(evidence: CheckEvidence) -> Iterator[Observation]:
    bound = evidence.recipe.max_grad_norm
    if bound is None:
        return
    if bound < _SMALL:
        yield Observation(
            level=Level.ERROR if bound < _TINY else Level.WARNING,
            message=f"Gradients are clipped at {bound:g}, which is far below any published bound.",
            value=bound,
        )
    elif bound > _LARGE:
        yield Observation(
            level=Level.WARNING,
            message=f"Gradients are clipped at {bound:g}, which no healthy gradient reaches.",
            value=bound,
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
            message=(
                f"β₁ = {beta1:g} and β₂ = {beta2:g} violate Adam's condition β₁² < √β₂: the second "
                "moment forgets before the first."
            ),
            value=beta1**2 / math.sqrt(beta2) if beta2 else None,
        )
    elif beta1 >= _SLOW:
        yield Observation(
            level=Level.ERROR if beta1 >= _SLOWEST else Level.WARNING,
            message=f"β₁ = {beta1:g} averages over {1 / (1 - beta1):,.0f} gradients.",
            value=beta1,
        )
    elif name in _QUICK_IN and beta1 < _QUICK:
        yield Observation(
            level=Level.WARNING,
            message=f"β₁ = {beta1:g} is small for {name}.",
            value=beta1,
            fix="Set β₁ to 0.95 (--beta1 0.95).",
        )
    elif has_second and not _SHORT <= beta2 <= _LONG:
        yield Observation(
            level=Level.WARNING,
            message=f"β₂ = {beta2:g} averages over {1 / (1 - beta2):,.0f} squared gradients.",
            value=beta2,
            fix="Set β₂ to 0.95 (--beta2 0.95).",
        )


@check("RKSP408")
def _batch_memory(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    if recipe.optimizer not in _FOLLOW_BETAS or not evidence.start.is_scratch:
        return
    if not evidence.reads_tokens:
        return
    if recipe.adam_beta2 < 0.999 or evidence.tokens < _LARGE_BATCH:
        return
    ratio = evidence.rate_over_published
    is_fast = ratio is not None and ratio > _BRISK
    yield Observation(
        level=Level.WARNING if is_fast else Level.NOTE,
        message=(
            f"β₂ = {recipe.adam_beta2:g} averages over {1 / (1 - recipe.adam_beta2):,.0f} steps of "
            f"{evidence.tokens:,} tokens"
            + (f", at {short(definite(ratio))} times GPT-3's learning rate." if is_fast else ".")
        ),
        value=recipe.adam_beta2,
    )


@check("RKSP409")
def _decay(evidence: CheckEvidence) -> Iterator[Observation]:
    recipe = evidence.recipe
    decay, rate = recipe.weight_decay, recipe.learning_rate
    largest = 1.0 if recipe.optimizer in _FOLLOW_BETAS else math.inf
    shrink = 0.0 if rate is None else rate * decay
    if shrink > _SHRINK:
        yield Observation(
            message=f"Weight decay removes {shrink:.0%} of every weight at each step.",
            value=shrink,
            fix=f"Lower weight decay to {0.001 / definite(rate):.1g} or less (0.1 is usual).",
        )
    elif decay > largest:
        yield Observation(
            level=Level.WARNING,
            message=f"Weight decay is {decay:g}. Published recipes of AdamW use 0 to 0.4.",
            value=decay,
        )
