"""The verdict: one word, the worst of what P(failed) says and what the findings say."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from rksp.documents.finding import Finding, Level

_CLEARLY = 1.1  # times a rate that is known to a factor of two at best
# Share of the bar of P(failed) from which a rate above X is doubtful: of the published recipes that
# trained, their developer left out, one in thirty is (lab/EVALUATION.md).
_DOUBTFUL = 0.4
WORST_FIRST = ("risk", "cannot tell", "not assessed", "caution", "ok")


class Verdict(StrEnum):
    """What P(failed) says about a run."""

    OK = "ok"
    CAUTION = "caution"
    RISK = "risk"
    CANNOT_TELL = "cannot tell"
    NOT_ASSESSED = "not assessed"


def combined(risk_verdict: str, findings: Iterable[Finding]) -> str:
    """Return the verdict of a report: the worst of P(failed)'s own and of every finding's.

    Args:
        risk_verdict: One of `WORST_FIRST`.
        findings: The findings that were selected and not ignored, at their final levels.
    """
    return worst(risk_verdict, *map(least_verdict, findings))


def worst(*verdicts: str) -> str:
    """Return the worst of some verdicts."""
    return min(verdicts, key=WORST_FIRST.index)


def least_verdict(finding: Finding) -> str:
    """Return the best verdict that a run with this finding can have.

    An error breaks the run, so it is a risk. A warning that names a documented cause of failures is
    at least a caution. Anything else leaves the verdict as it is.
    """
    if finding.level is Level.ERROR:
        return "risk"
    if finding.level is Level.WARNING and finding.is_cause:
        return "caution"
    return "ok"


def decisive_finding(risk_verdict: str, findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that makes the verdict worse than P(failed) does, if one does."""
    found = list(findings)
    verdict = combined(risk_verdict, found)
    if verdict == risk_verdict:
        return None
    return next(finding for finding in found if least_verdict(finding) == verdict)


def verdict_at(
    threshold: float,
    failed: float,
    rate: float | None,
    start_here: float | None,
    do_not_exceed: float | None,
) -> Verdict:
    """Return what P(failed) says of a rate, in a score and in a cell of a grid.

    Teams differ so much that one in five healthy recipes lies above the rate not to exceed. So a
    rate above it is `caution` only if P(failed) is near the threshold too.

    Args:
        threshold: P(failed) from which it is `risk`.
        failed: P(failed) at the rate.
        rate: The learning rate.
        start_here: The rate to start with.
        do_not_exceed: The rate not to exceed; a rate that `exceeds` both may be `caution`.
    """
    if failed >= threshold:
        return Verdict.RISK
    if rate is None or start_here is None or do_not_exceed is None:
        return Verdict.OK
    is_above = exceeds(rate, start_here=start_here, do_not_exceed=do_not_exceed)
    return Verdict.CAUTION if is_above and failed >= _DOUBTFUL * threshold else Verdict.OK


def exceeds(rate: float, *, start_here: float, do_not_exceed: float) -> bool:
    """Return True if a rate is above both the rate to start with and the one not to exceed.

    In a short run the rate to start with is the higher one. A tenth above it is not above it: the
    rates are not known so well, and they are printed with two digits.
    """
    return rate > _CLEARLY * max(start_here, do_not_exceed)
