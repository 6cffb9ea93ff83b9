"""Finish the report of a score: which findings count, what fails, and a summary for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rksp.checks.registry import blamed_field, left_out, select_findings
from rksp.documents.finding import Edit, Level
from rksp.documents.score import NotRunReport, ScoreReport, SummaryReport
from rksp.documents.verdict import combined
from rksp.ground.text import one_line, short
from rksp.recipe_files.said.ignored import apply_comments
from rksp.report import words
from rksp.report.gate import Gate, deciding, issues
from rksp.run import Run

_MOST = 2000  # bytes
_LONGEST = 400  # characters of the reason and of the command
_UNKNOWN = ("cannot tell", "not assessed")


def finished(
    report: ScoreReport,
    run: Run,
    gate: Gate,
    older: ScoreReport | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    levels: Mapping[str, str] | None = None,
) -> tuple[ScoreReport, list[str]]:
    """Return a report with the findings that count, its gate, and what changed since an older one.

    Comments of the run file silence no error, and nothing that fails the gate.

    Args:
        report: From `rksp.run.Question`.
        run: The run that it is about.
        gate: What fails.
        older: A report to compare with.
        select: Codes, beginnings of codes or names of the checks to report; none means all.
        ignore: The same of those that are left out.
        levels: Check -> the level that replaces its own.

    Returns:
        The report, and a sentence for each comment that cannot silence what it names.
    """
    listed = select_findings(report.findings, select, ignore, levels)
    fields = {
        one.code: "the software" if one.code.startswith("RKSA") else blamed_field(one.code)
        for one in listed
    }
    found = apply_comments(listed, fields, run.origins, run.file, gate.reaches)
    dropped = {check.code: check for check in left_out(select, ignore)}
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
    changed = None
    if older is not None:
        from rksp.report.diff import compare

        changed = compare(older, report, strict=True)
    report = summarized(
        report.model_copy(update={"gate": gate.judge(report, changed), "baseline": changed})
    )
    return report, [
        f"{place} cannot ignore {finding.code}, {_held(finding.level)}; "
        f"type --ignore {finding.code}"
        for finding, place in found.refused
    ]


def _held(level: str) -> str:
    return "an error" if level == "error" else f"a {level}, which fails the gate"


def summarized(report: ScoreReport) -> ScoreReport:
    """Return the report with its summary."""
    risk, edits = deciding(report).risk, edits_of(report)
    known = risk and risk.published
    launch = _launch(report)
    placed = next((one.file for one in edits if one.file is not None), None)
    fix = f"rksp fix {placed} --write" if placed is not None and launch == "no" else ""
    summary = SummaryReport(
        launch=launch,
        why=_why(report, launch)[:_LONGEST],
        probability_failed=risk and risk.probability_failed,
        low=risk and risk.probability_failed_low,
        high=risk and risk.probability_failed_high,
        start_here=risk and risk.start_here,
        likely_edge=risk and risk.likely_edge,
        do_not_exceed=known.highest if known else risk and risk.do_not_exceed,
        edits=edits,
        next_command=(fix or report.next_command)[:_LONGEST],
    )
    return report.model_copy(update={"summary": summary})


def edits_of(report: ScoreReport) -> list[Edit]:
    """Return the edits of all findings but notes, one for each field: the most severe finding's."""
    found: dict[str, Edit] = {}
    for finding in sorted(report.findings, key=lambda one: -one.severity):
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
    gate, risk = report.gate, deciding(report).risk
    is_held = gate is not None and gate.failed and not gate.only_unknown
    if is_held or report.risk_verdict == "risk" or _errors(report):
        return "no"
    is_answered = risk is not None and report.risk_verdict not in _UNKNOWN
    return "yes" if is_answered and report.recipe.learning_rate is not None else "unknown"


def _errors(report: ScoreReport) -> list[str]:
    return [one.message for one in report.findings if one.level is Level.ERROR]


def _why(report: ScoreReport, launch: str) -> str:
    risk = deciding(report).risk
    if launch == "unknown" and risk is not None and report.recipe.learning_rate is None:
        start = "" if risk.start_here is None else f"; start at {short(risk.start_here, 2)}"
        return f"No learning rate was given{start}."
    if risk is not None and launch == "yes":
        return f"{words.answer(report, risk)}."
    return next((one.message for one in issues(report)), report.verdict)
