"""Checks of an optimizer's memory: its betas and its weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level
from rksp.ground.model import definite

_SLOW, _SLOWEST = 0.98, 0.995
_QUICK, _QUICK_IN = 0.85, ("nadamw", "cautious", "soap")
_SHORT, _LONG = 0.9, 0.9999
_LARGE_BATCH, _FAST = 1e6, 5.0  # Falcon 7B trained at 3.7
_SHRINK = 0.1
_FOLLOW_BETAS = ("adamw", "nadamw", "cautious", "mars", "soap", "lamb")


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


CHECKS = (
    Check(
        code="RKSP407",
        name="adam-betas",
        level=Level.ERROR,
        title="The betas are outside the range that trains",
        measures=(
            f"β₁ against {_SLOW:g} and {_SLOWEST:g} (and against {_QUICK:g} for NAdamW, Cautious "
            f"and SOAP), β₂ against {_SHORT:g} and {_LONG:g}, and both against β₁² < √β₂."
        ),
        why=(
            "The update is an average of past gradients divided by the root of an average of "
            "their squares. If the second average forgets before the first, an update can be any "
            "multiple of the learning rate. A first moment over hundreds of steps keeps its "
            "direction long after the gradient has turned. In the Marin sweep β₁ = 0.98 failed in "
            "8 of 12 runs of AdamW, Adam-mini and Lion, and β₁ = 0.8 failed in 7 of 10 runs of "
            "Cautious, NAdamW and SOAP."
        ),
        source=(
            "Kingma and Ba, 2015, theorem 4.1; the Marin optimizer sweep (arXiv 2509.02046), our "
            "count"
        ),
        healthy=f"β₁ under {_SLOW:g}, β₂ from {_SHORT:g} to {_LONG:g}; an error at {_SLOWEST:g}",
        fix="Set β₁ to 0.9 (--beta1 0.9).",
        failing="--beta1 0.999, or --beta2 0.5",
        stable="--beta1 0.9 --beta2 0.95",
        look=_betas,
        field="adam_beta1",
        is_cause=True,
        reads="recipe",
    ),
    Check(
        code="RKSP408",
        name="batch-memory",
        level=Level.WARNING,
        title="The second moment is too slow for the large batch",
        measures=(
            f"A β₂ of 0.999 or more with {_LARGE_BATCH:,.0f} tokens a step or more; the tokens of "
            "an image are the patches that the middle block reads. It is a warning where the "
            f"learning rate is also above {_FAST:g} times GPT-3's."
        ),
        why=(
            "With a large batch the gradient has little noise, and the model learns fast. The "
            "second moment of a thousand steps ago is then too small for the present gradient, "
            "and the update spikes. CLIP at a batch of 16k pairs had spikes with 0.999, and a "
            "lower β₂ removed them."
        ),
        source="Wortsman et al., 2023 (arXiv 2304.13013); Molybog et al., 2023 (arXiv 2304.09871)",
        healthy=f"β₂ under 0.999, or fewer than {_LARGE_BATCH:,.0f} tokens a step",
        fix="Set β₂ to 0.95 (--beta2 0.95).",
        failing="--beta2 0.999 with 4M tokens a step",
        stable="--beta2 0.95 with 4M tokens a step",
        look=_batch_memory,
        field="adam_beta2",
    ),
    Check(
        code="RKSP409",
        name="weight-decay",
        level=Level.ERROR,
        title="Weight decay is out of range",
        measures=(
            "The weight decay of AdamW and similar optimizers against 1, and the share of a "
            "weight that decay removes at each step (learning rate times weight decay) against "
            f"{_SHRINK:g}."
        ),
        why=(
            "Under AdamW the size of weights settles near √(learning rate / 2λ). Ten times the "
            "decay makes them three times smaller, and each step then turns them further. A decay "
            "of 5 is usually meant for another optimizer, or for decay that is not multiplied by "
            "the learning rate."
        ),
        source=(
            "Kosson et al., 2023 (arXiv 2305.17212) on the equilibrium; DINO's 0.4 is the largest "
            "that we know of in common recipes; the levels are our choice"
        ),
        healthy=f"at most 1 (0.1 is usual); an error where a step removes more than {_SHRINK:.0%}",
        fix="Lower weight decay to 0.1 (--weight-decay 0.1).",
        failing="--weight-decay 5",
        stable="--weight-decay 0.1",
        look=_decay,
        field="weight_decay",
    ),
)
