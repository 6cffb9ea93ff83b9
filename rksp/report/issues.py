"""What a report complains about: its verdict and its findings, in one list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from rksp.checks.places import setting_line
from rksp.checks.registry import blamed_field
from rksp.report import words
from rksp.report.schema import ComparisonReport, Report, SeedReport

RISK = "RKSP001"
UNDECIDED = "RKSP002"
LEVELS = ("note", "warning", "error")  # in rising order
_ON_DISK = ("config", "checkpoint", "training config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A verdict other than "ok", or one finding.

    Attributes:
        code: Of the check; RKSP001 is a risk at or above the bar, RKSP002 an answer that rksp
            could not give.
        key: Stable over commits, paths and wording: the code, and the module if there is one.
    """

    code: str
    name: str
    level: str
    message: str
    fix: str = ""
    healthy: str = ""
    source: str = ""
    layer: str = ""

    @property
    def key(self) -> str:
        return f"{self.code}@{self.layer}" if self.layer else self.code

    @property
    def severity(self) -> int:
        return LEVELS.index(self.level)

    @property
    def text(self) -> str:
        """The message and its fix."""
        return f"{self.message} {self.fix}".strip()


def issues(report: Report) -> tuple[Issue, ...]:
    """The verdict first, then the findings in the report's order, each key once."""
    listed = [*_verdict(report)]
    listed += [
        Issue(
            code=finding.code,
            name=finding.name,
            level=finding.level,
            message=finding.message,
            fix=finding.fix,
            healthy=finding.healthy,
            source=finding.source,
            layer=finding.layer,
        )
        for finding in report.findings
    ]
    return tuple({issue.key: issue for issue in reversed(listed)}.values())[::-1]


def deciding(report: Report) -> SeedReport:
    """The first seed whose verdict is the report's."""
    for seed in report.seeds:
        if (seed.risk.verdict if seed.risk else "not assessed") == report.verdict:
            return seed
    return report.seeds[0]


def state(issue: Issue, since: ComparisonReport | None) -> str | None:
    """What became of an issue of the newer report; None without a comparison."""
    for change in since.changes if since else ():
        if (change.code, change.layer) == (issue.code, issue.layer) and change.state != "fixed":
            return change.state
    return None


def place(report: Report, issue: Issue) -> tuple[str, int] | None:
    """File, with forward slashes, and line: of the recipe's field, else of the model's setting.

    None where the recipe was typed and the target is only a name.
    """
    stands = report.recipe_places.get(_field(issue))
    if stands is not None:
        return stands
    if report.target.kind not in _ON_DISK:
        return None
    file = PurePath(report.target.name)
    return file.as_posix(), setting_line(Path(file), issue.code)


def _field(issue: Issue) -> str:
    """The recipe's field that an issue is about; empty where it is about none."""
    return "learning_rate" if issue.code == RISK else blamed_field(issue.code)


def _verdict(report: Report) -> list[Issue]:
    seed = deciding(report)
    if seed.risk is None:
        return [
            Issue(
                code=UNDECIDED,
                name="not-assessed",
                level="note",
                message=f"The risk was not assessed: {seed.risk_missing}.",
            )
        ]
    if report.verdict == "indeterminate":
        return [
            Issue(
                code=UNDECIDED,
                name="cannot-tell",
                level="note",
                message=f"rksp cannot tell: {'; '.join(seed.risk.reasons)}.",
            )
        ]
    if report.verdict == "ok":
        return []
    return [
        Issue(
            code=RISK,
            name="high-risk",
            level="error",
            message=f"{words.answer(report, seed.risk)}; the bar is {seed.risk.threshold:.0%}.",
            fix=seed.risk.counterfactual or "",
            healthy=f"P(failed) under {seed.risk.threshold:.0%}",
            source="the fitted classifier",
        )
    ]
