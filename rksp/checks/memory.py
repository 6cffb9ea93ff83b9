"""Checks of an optimizer's memory: its betas and its weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.model import definite

_SLOW, _SLOWEST = 0.98, 0.995
_QUICK, _QUICK_IN = 0.85, ("nadamw", "cautious", "soap")
_SHORT, _LONG = 0.9, 0.9999
_LARGE_BATCH, _FAST = 1e6, 5.0  # Falcon 7B trained at 3.7
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
    if recipe.optimizer not in _FOLLOW_BETAS or evidence.is_fine_tuning:
        return
    if not evidence.reads_tokens:
        return
    if recipe.adam_beta2 < 0.999 or evidence.tokens < _LARGE_BATCH:
        return
    ratio = evidence.rate_over_published
    is_fast = ratio is not None and ratio > _FAST
    yield Observation(
        level=Level.WARNING if is_fast else Level.NOTE,
        message=(
            f"β₂ = {recipe.adam_beta2:g} averages over {1 / (1 - recipe.adam_beta2):,.0f} steps of "
            f"{evidence.tokens:,} tokens"
            + (f", at {ratio:.3g} times GPT-3's learning rate." if is_fast else ".")
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
