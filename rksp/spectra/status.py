"""Define how far a spectrum can be trusted, and what to do if it cannot."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The outcome of fitting one layer. Only `OK` layers enter the aggregates."""

    OK = "ok"
    RANK_DEFICIENT = "rank_deficient"
    TOO_FEW_STATES = "too_few_states"
    VANISHING_UPDATE = "vanishing_update"
    NON_FINITE = "non_finite"
    ILL_CONDITIONED = "ill_conditioned"

    @property
    def remedy(self) -> str:
        """What the status means for the reader and what to do about it, in one sentence."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.OK: "Nothing to do.",
    Status.RANK_DEFICIENT: (
        "The states span fewer directions than the fit needs; use a longer or more varied probe "
        "(--probe FILE), or a lower --rank."
    ),
    Status.TOO_FEW_STATES: (
        "Too few distinct states for this many eigenvalues, so every residual would be zero; "
        "raise --snapshots to at least 1.5 times the width, or lower --rank."
    ),
    Status.VANISHING_UPDATE: (
        "The block returns its input almost unchanged (a zero-initialized branch, for example), "
        "so its spectrum says nothing about risk; score again after a few training steps."
    ),
    Status.NON_FINITE: (
        "The states hold NaN or infinity; see the forward findings for the first bad module."
    ),
    Status.ILL_CONDITIONED: (
        "The kept directions differ in scale by more than their precision resolves; run the "
        "forward pass in float32, or lower --rank."
    ),
}
