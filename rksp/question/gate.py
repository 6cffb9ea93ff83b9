"""The issues of a report, the gate (those that make exit code 1), and the summary for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.checks.registry import (
    blamed_field,
    blamed_settings,
    left_out,
    select_findings,
    setting_line,
)
from rksp.documents.answer import FromPublished, Untold
from rksp.documents.base import GateReport
from rksp.documents.finding import RISK as RISK
from rksp.documents.finding import Edit, Finding, Level
from rksp.documents.score import (
    ComparisonReport,
    NotRunReport,
    ScoreReport,
    SeedReport,
    SummaryReport,
)
from rksp.documents.verdict import Verdict, combined
from rksp.ground.flags import assignments
from rksp.ground.text import one_line, short
from rksp.question import said as words
from rksp.recipe_files.said.ignored import apply_comments

if TYPE_CHECKING:
    from rksp.documents.terms import Gate, Terms
    from rksp.question.run import Run

UNDECIDED = "RKSP002"
_ON_DISK = ("config", "checkpoint", "training config")
_UNTOLD = {
    Verdict.CANNOT_TELL: ("cannot-tell", "rksp cannot tell"),
    Verdict.NOT_ASSESSED: ("not-assessed", "The risk was not assessed"),
}
_LAUNCH = {
    "ok": "yes",
    "caution": "caution",
    "risk": "no",
    "cannot tell": "unknown",
    "not assessed": "unknown",
}
_MOST = 2000  # bytes of a summary
_LONGEST = 400  # characters of its reason and of its command


def issues(report: ScoreReport) -> tuple[Finding, ...]:
    """Return the verdict, then the findings in the report's order, each key once."""
    risk, found = deciding(report).risk, list(report.findings)
    if isinstance(risk, Untold):
        name, said = _UNTOLD[risk.verdict]
        found.insert(0, _undecided(name, f"{said}: {'; '.join(risk.reasons)}."))
    elif report.risk_verdict != "ok":
        answer, fix = words.answer(report, risk), risk.counterfactual or ""
        verdict = _undecided("caution", f"{answer}. {words.margin(report, risk)}", fix)
        if report.risk_verdict != "caution":
            verdict = Finding(
                code=RISK,
                name="high-risk",
                level=Level.ERROR,
                message=f"{answer}; the bar is {risk.threshold:.0%}.",
                fix=fix,
                edit=[e for f in found for e in f.edit if e.field == "learning_rate"][:1],
                healthy=f"P(failed) under {risk.threshold:.0%}",
                source="the fitted classifier",
            )
        found.insert(0, verdict)
    return tuple({issue.key: issue for issue in reversed(found)}.values())[::-1]


def deciding(report: ScoreReport) -> SeedReport:
    """Return the first seed whose verdict on the risk is the report's."""
    for seed in report.seeds:
        if seed.risk.verdict == report.risk_verdict:
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


def _undecided(name: str, message: str, fix: str = "") -> Finding:
    return Finding(code=UNDECIDED, name=name, level=Level.NOTE, message=message, fix=fix)


def judge(gate: Gate, report: ScoreReport, baseline: ComparisonReport | None = None) -> GateReport:
    """Return which issues fail; with a baseline, only new and worse ones."""
    found = issues(report)
    failing = [one for one in found if one.code == RISK or gate.reaches(one.level)]
    failing = [] if gate.level is None else failing
    if baseline is not None:
        failing = [issue for issue in failing if state(issue, baseline) in ("new", "worse")]
    is_unknown = gate.stops(report.risk_verdict) and not failing
    unknown = [issue for issue in found if issue.code == UNDECIDED and is_unknown]
    return GateReport(
        fail_on=gate.fail_on,
        failed=bool(failing) or is_unknown,
        only_unknown=is_unknown,
        issues=[issue.key for issue in failing or unknown],
        reasons=[f"{issue.code} {issue.message.rstrip('.')}" for issue in failing or unknown],
    )


def judged(
    report: ScoreReport,
    run: Run,
    terms: Terms,
    since: Callable[[ScoreReport], ComparisonReport] | None = None,
) -> tuple[ScoreReport, tuple[str, ...]]:
    """Return a report with the findings that count, its gate, and what changed since an older one.

    Comments of the run file silence no error, and nothing that fails the gate.

    Args:
        report: From `Question.reported`.
        run: The run that it is about.
        terms: Which findings count, and what fails.
        since: Compares the report with an older one.

    Returns:
        The report, and a sentence for each comment that cannot silence what it names.
    """
    gate, levels = (
        terms.gate,
        assignments(terms.levels, "--level", "CHECK=LEVEL, such as RKSP503=note"),
    )
    listed = select_findings(report.findings, terms.select, terms.ignore, levels)
    fields = {
        one.code: "the software" if one.code.startswith("RKSA") else blamed_field(one.code)
        for one in listed
    }
    found = apply_comments(listed, fields, run.origins, run.file, gate.reaches)
    dropped = {check.code: check for check in left_out(terms.select, terms.ignore)}
    silenced = [
        NotRunReport(code=finding.code, name=finding.name, reason=f"{one_line(place)} ignores it")
        for finding, place in found.silenced
    ]
    report = report.model_copy(
        update={
            "findings": found.kept,
            "verdict": combined(report.risk_verdict, found.kept),
            "not_run": [
                *(check for check in report.not_run if check.code not in dropped),
                *map(NotRunReport.of, dropped.values()),
                *silenced,
            ],
        }
    )
    changed = None if since is None else since(report)
    told = judge(gate, report, changed)
    report = report.model_copy(update={"gate": told, "baseline": changed})
    fails = {"error": "an error"}
    return report, tuple(
        f"{place} cannot ignore {one.code}, "
        f"{fails.get(one.level, f'a {one.level}, which fails the gate')}; type --ignore {one.code}"
        for one, place in found.refused
    )


def summarized(report: ScoreReport) -> ScoreReport:
    """Return the report with its summary."""
    risk, rate, launch = deciding(report).risk, report.recipe.learning_rate, _launch(report)
    write = " --write" if report.next_command.startswith("rksp fix ") else ""
    first, ceiling = risk.number("start_here"), risk.number("do_not_exceed")
    why = next((one.message for one in issues(report)), report.verdict)
    if launch == "unknown" and rate is None:
        why = f"No learning rate was given{f'; start at {short(first, 2)}' if first else ''}."
    elif launch == "yes":
        why = f"{words.answer(report, risk)}."
    summary = SummaryReport(
        probability_failed=risk.number("probability_failed"),
        start_here=first,
        likely_edge=risk.number("likely_edge"),
        launch=launch,
        learning_rate=rate,
        why=why[:_LONGEST],
        low=risk.number("probability_failed_low"),
        high=risk.number("probability_failed_high"),
        do_not_exceed=risk.published.highest if isinstance(risk, FromPublished) else ceiling,
        edits=edits_of(report.findings),
        next_command=f"{report.next_command}{write}"[:_LONGEST],
    )
    return report.model_copy(update={"summary": summary})


def is_fixable(report: ScoreReport) -> bool:
    """Tell whether `rksp fix` helps: no launch, and the edit that matters most has a place."""
    first = edits_of(report.findings)[:1]
    return _launch(report) in ("no", "caution") and any(edit.file for edit in first)


def edits_of(findings: Iterable[Finding]) -> list[Edit]:
    """Return the edits of all findings but notes, one for each field: the most severe finding's."""
    found: dict[str, Edit] = {}
    for finding in sorted(findings, key=lambda one: -one.severity):
        if finding.level is not Level.NOTE:
            for edit in finding.edit:
                found.setdefault(edit.field, edit)
    return list(found.values())


def render(report: ScoreReport) -> str:
    """Return the summary alone as JSON; of many edits the first that fit."""
    summary = report.summary or summarized(report).summary
    if summary is None:
        return "{}\n"
    content = summary.model_dump(exclude_defaults=True)
    while len(text := json.dumps(content, indent=1)) > _MOST and content.get("edits"):
        content["edits"].pop()
    return text + "\n"


def _launch(report: ScoreReport) -> str:
    gate = report.gate
    if gate is not None and gate.failed and not gate.only_unknown:
        return "no"
    if report.recipe.learning_rate is None and report.verdict != "risk":
        return "unknown"
    launch = _LAUNCH[report.verdict]
    is_known = report.baseline is not None and gate is not None  # and the gate lets it pass
    return "caution" if launch == "no" and is_known else launch
