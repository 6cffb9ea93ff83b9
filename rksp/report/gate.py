"""The gate: the issues that make the exit code 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksp.documents.base import GateReport
from rksp.documents.finding import LEVELS, RISK, Finding
from rksp.ground.errors import InputError, nearest

if TYPE_CHECKING:  # a grid is no score
    from rksp.documents.grid import Record
    from rksp.documents.score import ComparisonReport, ScoreReport

DEFAULT_BAR = 0.5
_WORDS = ("error", "warning", "unknown", "never")
_UNKNOWN = ("cannot tell", "not assessed")  # verdicts without an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The meaning of `--fail-on`.

    Attributes:
        fail_on: The bars as given, joined by commas.
        bar: P(failed) at which the verdict becomes "risk".
        level: Findings of this level or worse fail too; None if nothing fails.
        stops_unknown: The gate also fails where rksp cannot tell.
    """

    fail_on: str
    bar: float = DEFAULT_BAR
    level: str | None = "error"
    stops_unknown: bool = False

    @classmethod
    def parse(cls, asked: str | Sequence[str]) -> Gate:
        """Parse bars: a probability, `error` or `warning`, and `unknown`; or `never` alone.

        Args:
            asked: One or several, each of which may hold several after commas.

        Raises:
            InputError: One of them is none of these, or two contradict each other.
        """
        text = asked if isinstance(asked, str) else ",".join(asked)
        found = [one.strip() for one in text.split(",")]
        bars = [_probability(one) for one in found if one not in _WORDS]
        if len(bars) > 1 or ("never" in found and len(found) > 1):
            raise InputError(
                f"--fail-on {text!r:.200} contradicts itself; give one probability, or never alone."
            )
        level = None if "never" in found else "warning" if "warning" in found else "error"
        bar = next(iter(bars), DEFAULT_BAR)
        return cls(fail_on=text, bar=bar, level=level, stops_unknown="unknown" in found)

    def is_at_least(self, other: Gate) -> bool:
        """Tell whether whatever fails the other gate fails this one too."""
        return (
            self.bar <= other.bar
            and (other.level is None or self.reaches(other.level))
            and self.stops_unknown >= other.stops_unknown
        )

    def judge(self, report: ScoreReport, baseline: ComparisonReport | None = None) -> GateReport:
        """Return which issues fail; with a baseline, only new and worse ones."""
        from rksp.report.issues import UNDECIDED, issues, state

        failing = [issue for issue in issues(report) if self._counts(issue)]
        if baseline is not None:
            failing = [issue for issue in failing if state(issue, baseline) in ("new", "worse")]
        is_unknown = self.stops(report.risk_verdict) and not failing
        unknown = [issue for issue in issues(report) if issue.code == UNDECIDED and is_unknown]
        return GateReport(
            fail_on=self.fail_on,
            failed=bool(failing) or is_unknown,
            only_unknown=is_unknown,
            issues=[issue.key for issue in failing or unknown],
            reasons=[f"{issue.code} {issue.message.rstrip('.')}" for issue in failing or unknown],
        )

    def fails(self, cell: Record) -> bool:
        """Return True if a cell of a grid fails; its verdict must be by `bar`."""
        if self.level is None:
            return False
        return cell["verdict"] == "risk" or any(
            self.reaches(finding["level"]) for finding in cell["findings"]
        )

    def _counts(self, issue: Finding) -> bool:
        return self.level is not None and (issue.code == RISK or self.reaches(issue.level))

    def stops(self, verdict: str) -> bool:
        """Tell whether this verdict has no answer and the gate stops at that."""
        return self.stops_unknown and verdict in _UNKNOWN

    def reaches(self, level: str) -> bool:
        """Tell whether a finding of this level fails the gate."""
        return self.level is not None and LEVELS.index(level) >= LEVELS.index(self.level)


def _probability(text: str) -> float:
    """Parse one bar.

    Raises:
        InputError: It is no probability above 0.
    """
    try:
        bar = float(text)
    except ValueError:
        hint = nearest(text, _WORDS, count=1) or "."
        raise InputError(
            f"--fail-on {text!r:.200} is neither a probability nor error, warning, unknown or never"
            f"{hint}"
        ) from None
    if not 0 < bar <= 1:
        raise InputError(f"--fail-on is {text}, but must be a probability above 0 and at most 1.")
    return bar
