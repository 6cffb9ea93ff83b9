"""Finish the report of a score: which findings count, and what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rksp.checks.registry import blamed_field, left_out, select_findings
from rksp.documents.score import NotRunReport, ScoreReport
from rksp.documents.verdict import combined
from rksp.ground.text import one_line
from rksp.recipe_files.said.ignored import apply_comments
from rksp.report.gate import Gate
from rksp.report.summary import summarized
from rksp.run import Run


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
