"""The issues of a report: its verdict and its findings in one list."""

from __future__ import annotations

import os
from pathlib import Path

from rksp.checks.registry import blamed_field, blamed_settings, setting_line
from rksp.documents.finding import RISK as RISK
from rksp.documents.finding import Finding, Level
from rksp.documents.score import ComparisonReport, ScoreReport, SeedReport
from rksp.report import words

UNDECIDED = "RKSP002"
_ON_DISK = ("config", "checkpoint", "training config")


def issues(report: ScoreReport) -> tuple[Finding, ...]:
    """Return the verdict, then the findings in the report's order, each key once."""
    listed = [*_verdict(report), *report.findings]
    return tuple({issue.key: issue for issue in reversed(listed)}.values())[::-1]


def deciding(report: ScoreReport) -> SeedReport:
    """Return the first seed whose verdict on the risk is the report's."""
    for seed in report.seeds:
        if (seed.risk.verdict if seed.risk else "not assessed") == report.risk_verdict:
            return seed
    return report.seeds[0]


def state(issue: Finding, since: ComparisonReport | None) -> str | None:
    """Return the state of an issue since the older report; None without a comparison."""
    for change in since.changes if since else ():
        if (change.code, change.layer) == (issue.code, issue.layer) and change.state != "fixed":
            return change.state
    return None


def place(report: ScoreReport, issue: Finding) -> tuple[str, int] | None:
    """Return file and line of the recipe's field, else of the model's setting.

    A file inside a git repository is named from its root. The line is 1 where an option replaced
    the setting in the file. The result is None where the recipe was typed and the target is only a
    name.
    """
    field = "learning_rate" if issue.code == RISK else blamed_field(issue.code)
    if (stands := report.recipe_places.get(field)) is not None:
        return from_root(stands[0]), stands[1]
    if report.target.kind not in _ON_DISK:
        return None
    file = Path(report.target.name)
    file = file / "config.json" if file.is_dir() else file
    is_typed = set(blamed_settings(issue.code)) & set(report.target.overrides)
    return from_root(file.as_posix()), 1 if is_typed else setting_line(file, issue.code)


def from_root(name: str) -> str:
    """Return the path of an existing file from the root of its git repository.

    Other names, and files outside of every repository, are returned as they are.
    """
    try:
        if not Path(name).exists():
            return name
        path = Path(os.path.normpath(Path(name).absolute()))
        root = next(folder for folder in path.parents if (folder / ".git").exists())
    except (OSError, ValueError, StopIteration):  # the name is no path, or there is no repository
        return name
    return path.relative_to(root).as_posix()


def _verdict(report: ScoreReport) -> list[Finding]:
    seed = deciding(report)
    risk = seed.risk
    if risk is None:
        return [_undecided("not-assessed", f"The risk was not assessed: {seed.risk_missing}.")]
    if report.risk_verdict == "cannot tell":
        return [_undecided("cannot-tell", f"rksp cannot tell: {'; '.join(risk.reasons)}.")]
    if report.risk_verdict == "ok":
        return []
    answer, fix = words.answer(report, risk), risk.counterfactual or ""
    if report.risk_verdict == "caution":
        return [_undecided("caution", f"{answer}. {words.margin(report, risk)}", fix)]
    return [
        Finding(
            code=RISK,
            name="high-risk",
            level=Level.ERROR,
            message=f"{answer}; the bar is {risk.threshold:.0%}.",
            fix=fix,
            edit=[e for f in report.findings for e in f.edit if e.field == "learning_rate"][:1],
            healthy=f"P(failed) under {risk.threshold:.0%}",
            source="the fitted classifier",
        )
    ]


def _undecided(name: str, message: str, fix: str = "") -> Finding:
    return Finding(code=UNDECIDED, name=name, level=Level.NOTE, message=message, fix=fix)
