"""JUnit XML: the format that every CI system shows as tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from rksp.checks.registry import CHECKS
from rksp.documents.confirm import ConfirmReport
from rksp.documents.finding import Finding
from rksp.documents.grid import FAILED, GridReport, Record
from rksp.documents.score import ScoreReport
from rksp.grid.table import ANSWERS
from rksp.report import words
from rksp.report.blocks import PERCENT, written
from rksp.report.grid.blocks import Settings
from rksp.report.issues import RISK, UNDECIDED, deciding, issues

# XML 1.0 has no way to write these; a hostile module name must not break the document.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test.

    Attributes:
        name: Within its suite.
        outcome: `error` is what could not run, `skipped` what rksp could not tell.
        message: One line; `text` is all there is to say.
        kind: Of the failure or error.
    """

    name: str
    outcome: Outcome
    message: str
    text: str = ""
    kind: str = ""


def render(report: ScoreReport) -> str:
    """Render one test for the risk, and at least one for each check.

    A test fails if it fails the gate, so JUnit and the exit code agree. What rksp could not tell
    and checks that did not run are skipped, with the reason. A check without a finding has passed.
    The time is the whole run's, at the suite.
    """
    found = issues(report)
    failing = set(report.gate.issues) if report.gate else {i.key for i in found if i.code == RISK}
    if not any(issue.code in (RISK, UNDECIDED) for issue in found):
        found = (_passed(report), *found)
    cases = [_case(issue, issue.key in failing) for issue in found]
    cases += _without_finding(report, {issue.code for issue in found})
    return suite(report.target.name, cases, sum(report.timings.values()))


def confirmation(report: ConfirmReport) -> str:
    """Render one test for the recipe's own runs, one for the prediction and one per other arm.

    Only the first can fail, as only it decides the exit code.
    """
    baseline, *others = report.arms
    failed = report.gate.failed if report.gate else report.verdict == "failed"
    held: Outcome = "passed" if report.prediction_held else "skipped"
    undecided: Outcome = "skipped" if report.verdict == "undecided" else "passed"
    said = f"{baseline.failed} of {baseline.runs} runs failed"
    cases = [
        Case(
            name="the recipe trains",
            outcome="failure" if failed else undecided,
            message=said,
            text="\n".join(report.conclusions),
            kind="failed-run",
        ),
        Case(name="the prediction holds", outcome=held, message=report.conclusions[0]),
    ]
    for arm in others:
        message = f"{arm.failed} of {arm.runs} runs failed, {arm.saved} saved"
        cases.append(Case(name=f"arm {arm.arm}", outcome="passed", message=message))
    return suite(report.target.name, cases, sum(report.timings.values()))


def grid(report: GridReport) -> str:
    """Render one test per cell.

    It fails if it fails the gate, is an error if it could not run, and skipped if rksp could not
    tell or the cell is not done.
    """
    setting = Settings(report)
    return suite("grid", [_cell(report, cell, setting(cell)) for cell in report.cells], 0.0)


def _cell(report: GridReport, cell: Record, name: str) -> Case:
    verdict = str(cell["verdict"])
    chance = written(cell["probability_failed"], PERCENT)
    message = str(cell["message"] or cell["reasons"] or f"P(failed) {chance}")
    outcome: Outcome = "passed" if verdict in ANSWERS else "skipped"
    if verdict == FAILED:
        outcome = "error"
    elif report.fails(cell):
        outcome = "failure"
    text, kind = f"{verdict}: {message}", str(cell["failure"] or verdict)
    return Case(name=name, outcome=outcome, message=message, text=text, kind=kind)


def suite(name: str, cases: Sequence[Case], seconds: float) -> str:
    """Return a document with one suite."""
    count = {
        outcome: str(sum(case.outcome == outcome for case in cases))
        for outcome in ("failure", "error", "skipped")
    }
    counts = {"tests": str(len(cases)), "failures": count["failure"], "errors": count["error"]}
    root = ElementTree.Element("testsuites", {"name": "rksp"} | counts)
    more = {"skipped": count["skipped"], "time": f"{seconds:.3f}"}
    top = ElementTree.SubElement(root, "testsuite", {"name": _clean(name)} | counts | more)
    for case in cases:
        named = {"classname": f"rksp.{_clean(name)}", "name": _clean(case.name)}
        _outcome(ElementTree.SubElement(top, "testcase", named), case)
    ElementTree.indent(root, " ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _passed(report: ScoreReport) -> Finding:
    seed = deciding(report)
    message = words.answer(report, seed.risk) if seed.risk else report.verdict
    return Finding(code=RISK, name="high-risk", level="note", message=message)


def _without_finding(report: ScoreReport, seen: set[str]) -> list[Case]:
    """Return a test for each check that found nothing or did not run."""
    missing = {check.code: check.reason for check in report.not_run}
    return [
        Case(
            name=f"{check.code} {check.name}",
            outcome="skipped" if check.code in missing else "passed",
            message=missing.get(check.code) or f"healthy: {check.texts.healthy}",
        )
        for check in CHECKS
        if check.code not in seen
    ]


def _case(issue: Finding, failed: bool) -> Case:
    undecided: Outcome = "skipped" if issue.code == UNDECIDED else "passed"
    # A test is named after what should hold, and keeps its name whether it passes or fails.
    name = "P(failed) is below the bar" if issue.code == RISK else issue.name
    return Case(
        name=f"{issue.code} {name}" + (f" [{issue.layer}]" if issue.layer else ""),
        outcome="failure" if failed else undecided,
        message=issue.message,
        text=issue.text if failed else f"{issue.level}: {issue.text}",
        kind=issue.level,
    )


def _outcome(element: ElementTree.Element, case: Case) -> None:
    if case.outcome == "passed":
        ElementTree.SubElement(element, "system-out").text = _clean(case.text or case.message)
        return
    told = {"message": _clean(case.message)}
    if case.outcome == "skipped":
        ElementTree.SubElement(element, "skipped", told)
        return
    inner = ElementTree.SubElement(element, case.outcome, {"type": case.kind} | told)
    inner.text = _clean(case.text or case.message)


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)
