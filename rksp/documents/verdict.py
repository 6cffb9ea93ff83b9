"""The verdict: one word, the worst of what P(failed) says and what the findings say."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from rksp.documents.finding import Finding, Level

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


def word_at(rate: float | None, do_not_exceed: float, *, is_risk: bool) -> Verdict:
    """Return the word for a rate by its place on the scale, in a score and in a cell of a grid.

    *ok* up to X, the rate not to exceed; *caution* from there; *risk* from E on, where P(failed)
    reaches the bar, or where published runs answer, from ten times X on.

    Args:
        rate: The learning rate; None asks only which rates to use.
        do_not_exceed: X.
        is_risk: P(failed) reaches the bar at this rate.
    """
    if rate is None:
        return Verdict.OK
    if is_risk:
        return Verdict.RISK
    return Verdict.CAUTION if rate > do_not_exceed else Verdict.OK


def words_of(risk: float, bar: float) -> dict[Verdict, str]:
    """Return what each word means, a sentence each; every explanation takes them from here."""
    return {
        Verdict.OK: (
            f"The learning rate is at most X, where P(failed) reaches {risk:.0%}, and no finding "
            "says otherwise; of a run on preferences or rewards, it is not above published ones."
        ),
        Verdict.CAUTION: (
            f"The learning rate is above X, where P(failed) reaches {risk:.0%}, and below E, where "
            f"it reaches the bar, {bar:.0%}; or a warning names a documented cause of failures."
        ),
        Verdict.RISK: (
            f"The learning rate is at E or above, so that P(failed) is at least the bar, {bar:.0%}"
            "; or a finding is an error."
        ),
        Verdict.CANNOT_TELL: "No data support an answer, so no learning rate is given.",
        Verdict.NOT_ASSESSED: "What the answer needs is not there; the page says what.",
    }
