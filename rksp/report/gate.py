"""The gate: the issues that make the exit code 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksp.documents.base import GateReport
from rksp.documents.finding import LEVELS, RISK, Finding
from rksp.ground.errors import InputError, nearest

if TYPE_CHECKING:  # a grid is no score
    from rksp.documents.grid import Record
    from rksp.documents.score import ComparisonReport, ScoreReport

DEFAULT_BAR = 0.5
_WORDS = ("error", "warning", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The meaning of `--fail-on`.

    Attributes:
        fail_on: The text as given.
        bar: P(failed) at which the verdict becomes "risk".
        level: Findings of this level or worse fail too; None if only the verdict does.
    """

    fail_on: str
    bar: float = DEFAULT_BAR
    level: str | None = "error"

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Parse a probability, `error`, `warning` or `never`.

        Raises:
            InputError: It is none of these.
        """
        if text in _WORDS:
            return cls(fail_on=text, level=None if text == "never" else text)
        try:
            bar = float(text)
        except ValueError:
            hint = nearest(text, _WORDS, count=1) or "."
            raise InputError(
                f"--fail-on {text!r} is neither a probability nor error, warning or never{hint}"
            ) from None
        if not 0 < bar <= 1:
            raise InputError(
                f"--fail-on is {text}, but must be a probability above 0 and at most 1."
            )
        return cls(fail_on=text, bar=bar)

    def judge(self, report: ScoreReport, baseline: ComparisonReport | None = None) -> GateReport:
        """Return which issues fail; with a baseline, only new and worse ones."""
        from rksp.report.issues import issues, state

        failing = [issue for issue in issues(report) if self._counts(issue)]
        if baseline is not None:
            failing = [issue for issue in failing if state(issue, baseline) in ("new", "worse")]
        return GateReport(
            fail_on=self.fail_on,
            failed=bool(failing),
            issues=[issue.key for issue in failing],
            reasons=[f"{issue.code} {issue.message.rstrip('.')}" for issue in failing],
        )

    def fails(self, cell: Record) -> bool:
        """Return True if a cell of a grid fails; its verdict must be by `bar`."""
        if self.fail_on == "never":
            return False
        return cell["verdict"] == "risk" or any(
            self._reaches(finding["level"]) for finding in cell["findings"]
        )

    def _counts(self, issue: Finding) -> bool:
        if self.fail_on == "never":
            return False
        if issue.code == RISK:
            return True
        return self._reaches(issue.level)

    def _reaches(self, level: str) -> bool:
        return self.level is not None and LEVELS.index(level) >= LEVELS.index(self.level)
