"""JUnit XML: the format that every CI shows as tests."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from rksp.report import words
from rksp.report.issues import RISK, UNDECIDED, Issue, deciding, issues
from rksp.report.schema import Report

# XML 1.0 has no way to write these; a hostile module name must not break the document.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """One test for the risk and one a finding.

    A test fails if it fails the gate, so JUnit and the exit code agree; what rksp could not tell is
    skipped. The time is the whole run's, at the suite.
    """
    found = issues(report)
    failing = set(report.gate.issues) if report.gate else {i.key for i in found if i.code == RISK}
    if not any(issue.code in (RISK, UNDECIDED) for issue in found):
        found = (_passed(report), *found)
    skipped = sum(issue.code == UNDECIDED for issue in found)
    failures = sum(issue.key in failing for issue in found)
    counts = {"tests": str(len(found)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "rksp"} | counts)
    seconds = sum(report.timings.values())
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": _clean(report.target.name), **counts, "skipped": str(skipped)}
        | {"time": f"{seconds:.3f}"},
    )
    for issue in found:
        _case(suite, report, issue, issue.key in failing)
    ElementTree.indent(root, " ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _passed(report: Report) -> Issue:
    seed = deciding(report)
    message = words.answer(report, seed.risk) if seed.risk else report.verdict
    return Issue(code=RISK, name="high-risk", level="note", message=message)


def _case(suite: ElementTree.Element, report: Report, issue: Issue, failed: bool) -> None:
    name = f"{issue.code} {issue.name}" + (f" [{issue.layer}]" if issue.layer else "")
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": f"rksp.{_clean(report.target.name)}", "name": _clean(name)},
    )
    if failed:
        failure = ElementTree.SubElement(
            case, "failure", {"type": issue.level, "message": _clean(issue.message)}
        )
        failure.text = _clean(issue.text)
    elif issue.code == UNDECIDED:
        ElementTree.SubElement(case, "skipped", {"message": _clean(issue.message)})
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(f"{issue.level}: {issue.text}")


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)
