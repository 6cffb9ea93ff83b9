"""The check of the clipping bound, which may be too small or too large."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Level

_SMALL, _TINY = 1e-3, 1e-5  # PixArt-α clips at 0.01, and nothing published below
_LARGE = 1000.0


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


CHECKS = (
    Check(
        code="RKSP406",
        name="clipping-bound",
        level=Level.ERROR,
        title="The clipping bound is out of range",
        measures=f"The bound on the gradient's norm against {_SMALL:g} and {_LARGE:g}.",
        why=(
            "Over a hundred million parameters a bound of 1e-6 leaves entries of 1e-10, which are "
            "below Adam's epsilon, so nothing trains. A bound of 10,000 has no effect: only a run "
            "that has already failed has gradients that large."
        ),
        source="arithmetic; GPT-3, LLaMA and BLOOM clip at 1, Marin's 32B at 0.2, OPT at 0.3 to 1",
        healthy=f"{_SMALL:g} to {_LARGE:g} (1 is usual); an error below {_TINY:g}",
        fix="Clip gradients at 1 (--clip 1), or switch clipping off (--clip 0).",
        failing="--clip 1e-6",
        stable="--clip 1",
        look=_bound,
        field="max_grad_norm",
        reads="recipe",
    ),
)
