"""What a report complains about, for code hosts and CI: GitHub, GitLab, SARIF 2.1.0 and JUnit."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal
from urllib.parse import quote
from xml.etree import ElementTree

from rksp.checks.registry import CHECKS
from rksp.documents.answer import FromEdge
from rksp.documents.confirm import ConfirmReport
from rksp.documents.finding import Edit, Finding, Level
from rksp.documents.grid import FAILED, GridReport, Record
from rksp.documents.score import FileRow, FilesReport, ScoreReport
from rksp.grid.table import ANSWERS
from rksp.ground.files import is_file
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.question import said as phrases
from rksp.question.gate import RISK, UNDECIDED, deciding, from_root, issues, place, state
from rksp.report import words
from rksp.report.blocks import PERCENT, written
from rksp.report.glossary import find_word
from rksp.report.grid import Settings, by_level

_BROKEN = "RKSP004"

# GitHub shows ten annotations of a kind a step and drops the rest without a word.
_MOST = 9
_SHOWN = (None, "new", "worse")
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}
_ROOT = "SRCROOT"
_STATES = {"new": "new", "worse": "updated", "better": "updated", "unchanged": "unchanged"}
_CHECKS = {check.code: check for check in CHECKS}
# XML 1.0 has no way to write these; a hostile module name must not break the document.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a document complains about.

    Attributes:
        subject: What the document is about, for titles.
        identity: The subject as identifiers name it, the same from every folder of a repository.
        version: The version of rksp that made the document.
        issues: The issues, each key once.
        places: Key of an issue -> file from the root of its repository, and line.
        states: Key of an issue -> its state since the older report, if there is one.
        levers: What would raise the edge, a clause each.
    """

    subject: str
    identity: str
    version: str
    issues: tuple[Finding, ...]
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    levers: tuple[str, ...] = ()

    def fingerprint(self, issue: Finding) -> str:
        """Return a fingerprint that is stable over commits: identity and key, not the wording."""
        return hashlib.sha256(f"{self.identity}\n{issue.key}".encode()).hexdigest()


def listing(report: ScoreReport | GridReport | FilesReport) -> Listing:
    """Return the issues of a report with their places and states."""
    if isinstance(report, GridReport):
        return _of_grid(report)
    if isinstance(report, FilesReport):
        return _of_files(report)
    found, risk = issues(report), deciding(report).risk
    stands = {issue.key: place(report, issue) for issue in found}
    since = {issue.key: state(issue, report.baseline) for issue in found}
    return Listing(
        subject=report.target.name,
        identity=from_root(report.target.name),
        version=str(report.provenance.get("rksp", "0")),
        issues=found,
        places={key: at for key, at in stands.items() if at},
        states={key: name for key, name in since.items() if name},
        levers=tuple(words.lever(one) for one in risk.levers) if isinstance(risk, FromEdge) else (),
    )


def _of_files(report: FilesReport) -> Listing:
    """Return the issues of all files; the file is the first part of the layer."""
    found: dict[str, tuple[Finding, tuple[str, int]]] = {}
    version = "0"
    for row in report.rows:
        if row.report is None:
            broken = Finding(
                code=_BROKEN, name="could-not-read", level=Level.ERROR, message=row.error,
                layer=row.name,
            )  # fmt: skip
            found[broken.key] = (broken, (from_root(row.name), 1))
            continue
        one = listing(row.report)
        version = one.version
        for issue in one.issues:
            layer = ":".join(filter(None, (row.name, issue.layer)))
            moved = issue.model_copy(update={"layer": layer})
            found[moved.key] = (moved, one.places.get(issue.key, (from_root(row.name), 1)))
    return Listing(
        subject=f"{len(report.rows)} files",
        identity="files",
        version=version,
        issues=tuple(issue for issue, _ in found.values()),
        places={key: at for key, (_, at) in found.items()},
    )


def _of_grid(report: GridReport) -> Listing:
    """Return an issue for each cell that fails the gate or could not run; a cell is the layer."""
    setting = Settings(report)
    targets = [cell.target or cell.model for cell in report.cells]
    told = {
        issue.key: (target, issue)
        for target, cell in zip(targets, report.cells, strict=True)
        if cell.verdict == FAILED or report.fails(cell)
        for issue in (_cell(cell, setting(cell)),)
    }
    subject = " ".join(dict.fromkeys(targets)) or "grid"
    return Listing(
        subject=subject,
        identity=f"grid/{from_root(subject)}",
        version=str(report.made_by.get("rksp", "0")),
        issues=tuple(issue for _, issue in told.values()),
        places={key: (from_root(at), 1) for key, (at, _) in told.items() if is_file(at)},
    )


def _cell(cell: Record, setting: str) -> Finding:
    if cell.verdict == FAILED:
        message = f"This cell could not run: {str(cell.message).rstrip('.')}."
        name, level = "could-not-run", Level.ERROR
        return Finding(code=_BROKEN, name=name, level=level, message=message, layer=setting)
    chance, start = cell.probability_failed, cell.start_here
    said = "" if chance is None else f"P(failed) is {written(chance, PERCENT)}"
    return Finding(
        code=RISK,
        name="high-risk",
        level=Level.ERROR,
        message=f"This cell fails: {'; '.join(filter(None, (said, by_level(cell))))}.",
        fix="" if start is None else f"Start at {short(start, 2)}.",
        source="the fitted classifier",
        layer=setting,
    )


def github(report: ScoreReport | GridReport | FilesReport) -> str:
    """Render one line per issue, at most nine of a kind; with a baseline, new or worse ones."""
    found = listing(report)
    shown = [issue for issue in found.issues if found.states.get(issue.key) in _SHOWN]
    lines = []
    for level, command in _COMMANDS.items():
        same = [issue for issue in shown if issue.level == level]
        lines += [_line(command, found, issue) for issue in same[:_MOST]]
        if len(same) > _MOST:
            left = len(same) - _MOST
            said = "finding of this level is" if left == 1 else "findings of this level are"
            more = f"{left} more {said} in the report"
            lines.append(f"::{command} title=rksp::{more}")
    if not lines:
        lines.append(f"::notice title=rksp::{_message(found.subject)}: {report.verdict}")
    return "\n".join(lines) + "\n"


def gitlab(report: ScoreReport | GridReport | FilesReport) -> str:
    """Render a list of issues; GitLab compares it with the target branch's by fingerprint."""
    found = listing(report)
    entries = []
    for issue in found.issues:
        file, line = found.places.get(issue.key, (found.subject, 1))
        entries.append(
            {
                "check_name": issue.code,
                "description": f"{issue.layer}: {issue.text}" if issue.layer else issue.text,
                "fingerprint": found.fingerprint(issue),
                "severity": _SEVERITIES[issue.level],
                "location": {"path": file, "lines": {"begin": line}},
            }
        )
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def _line(command: str, found: Listing, issue: Finding) -> str:
    stands = found.places.get(issue.key)
    where = f"file={_property(stands[0])},line={stands[1]}," if stands else ""
    title = _property(f"{issue.code} {issue.name}")
    about = issue.layer or found.subject
    text = f"{about}: {issue.text}{''.join(map(_suggestion, issue.edit))}"
    return f"::{command} {where}title={title}::{_message(text)}"


def _suggestion(edit: Edit) -> str:
    if edit.file is None:
        return ""
    change = f"replace {edit.old} by {edit.new}" if edit.old else f"add {edit.new.strip()}"
    return f"\nSuggestion for line {edit.line}: {change}"


def _message(text: str) -> str:
    """Escape text as the runner unescapes it, so that a hostile name cannot start a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def sarif(report: ScoreReport | GridReport | FilesReport) -> str:
    """Render one run with one result per issue; a baseline sets its `baselineState`.

    Files inside a git repository are named from its root, whose place the reader knows.
    """
    found = listing(report)
    rules = {issue.code: _rule(issue) for issue in reversed(found.issues)}
    order = sorted(rules)
    run = {
        "tool": {
            "driver": {
                "name": "rksp",
                "semanticVersion": found.version,
                "rules": [rules[code] for code in order],
            }
        },
        "automationDetails": {"id": f"rksp/{quote(found.identity, safe='/')}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "results": [_result(found, issue, order.index(issue.code)) for issue in found.issues],
        "properties": {"verdict": report.verdict, "levers": list(found.levers)},
    }
    content = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _rule(issue: Finding) -> dict[str, object]:
    spoken = issue.name.replace("-", " ")
    check, word = _CHECKS.get(issue.code), find_word(issue.code)
    if check is not None:
        rows, title, level = check.explanation, check.texts.title, check.level
    else:
        meaning = word.meaning if word else ""
        rows = (("Means", meaning), ("Healthy", issue.healthy), ("Source", issue.source))
        title, level = meaning or spoken, issue.level
    told = [(name, text) for name, text in rows if text]
    told.append(("More", f"rksp explain {issue.code}"))
    return {
        "id": issue.code,
        "name": "".join(word.capitalize() for word in spoken.split()),
        "shortDescription": {"text": spoken},
        "fullDescription": {"text": title},
        "defaultConfiguration": {"level": level},
        "help": {
            "text": "\n".join(f"{name}: {text}" for name, text in told),
            "markdown": "\n\n".join(f"**{name}.** {_markdown(text)}" for name, text in told),
        },
        "properties": {"tags": ["training-stability"]},
    }


def _markdown(text: str) -> str:
    if text.startswith("rksp explain"):
        return f"`{text}`"
    return "".join(f"\\{c}" if c in "\\`*_[]<>|~" else c for c in text)


def _result(found: Listing, issue: Finding, rule: int) -> dict[str, object]:
    file, line = found.places.get(issue.key, ("", 1))
    whole = {"uri": quote(found.subject, safe="/")}
    physical = {
        "artifactLocation": _artifact(file) if issue.key in found.places else whole,
        "region": {"startLine": line},
    }
    logical = {"fullyQualifiedName": issue.layer or found.subject, "kind": "module"}
    result: dict[str, object] = {
        "ruleId": issue.code,
        "ruleIndex": rule,
        "level": issue.level,
        "message": {"text": issue.text},
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {"rkspIssue/v1": found.fingerprint(issue)},
    }
    if changes := [_change(edit) for edit in issue.edit if edit.file is not None]:
        fix = {"description": {"text": issue.fix}, "artifactChanges": changes}
        result |= {"fixes": [fix]}
    if issue.key in found.states:
        result |= {"baselineState": _STATES[found.states[issue.key]]}
    return result


def _change(edit: Edit) -> dict[str, object]:
    column = edit.column or 1
    region = {"startLine": edit.line, "startColumn": column, "endColumn": column + len(edit.old)}
    return {
        "artifactLocation": _artifact(from_root(str(edit.file))),
        "replacements": [{"deletedRegion": region, "insertedContent": {"text": edit.new}}],
    }


def _artifact(name: str) -> dict[str, str]:
    path = PurePath(name)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(name, safe="/"), "uriBaseId": _ROOT}


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


def junit(report: ScoreReport | ConfirmReport | GridReport | FilesReport) -> str:
    """Render the tests of a report; one fails where the exit code is that of a failure.

    A score has one test for the risk, and at least one for each check. What rksp could not tell and
    checks that did not run are skipped, with the reason; a check without a finding has passed. A
    confirmation has one test for the recipe's own runs, which alone can fail, one for the
    prediction and one per other arm. A grid has one per cell: it is an error if it could not run,
    and skipped if rksp could not tell or the cell is not done. The time is the whole run's, at the
    suite.
    """
    if isinstance(report, GridReport):
        setting = Settings(report)
        return suite("grid", [_cell_case(report, one, setting(one)) for one in report.cells], 0.0)
    if isinstance(report, FilesReport):
        return suite("files", [_file_case(row) for row in report.rows], 0.0)
    cases = _of_score(report) if isinstance(report, ScoreReport) else list(_of_confirmation(report))
    return suite(report.target.name, cases, sum(report.timings.values()))


def _of_score(report: ScoreReport) -> list[Case]:
    found = issues(report)
    failing = set(report.gate.issues) if report.gate else {i.key for i in found if i.code == RISK}
    cases = [_case(issue, issue.key in failing) for issue in found]
    seen = {issue.code for issue in found}
    if not seen & {RISK, UNDECIDED}:
        risk = deciding(report).risk
        said = phrases.answer(report, risk)
        passed = Finding(code=RISK, name="high-risk", level="note", message=said)
        cases.insert(0, _case(passed, is_failed=False))
    missing = {check.code: check.reason for check in report.not_run}
    return cases + [
        Case(
            name=f"{check.code} {check.name}",
            outcome="skipped" if check.code in missing else "passed",
            message=missing.get(check.code) or f"healthy: {check.texts.healthy}",
        )
        for check in CHECKS
        if check.code not in seen
    ]


def _of_confirmation(report: ConfirmReport) -> Iterator[Case]:
    baseline, *others = report.arms
    undecided: Outcome = "skipped" if report.verdict == "undecided" else "passed"
    failed = report.gate.failed if report.gate else report.verdict == "failed"
    yield Case(
        name="the recipe trains",
        outcome="failure" if failed else undecided,
        message=f"{baseline.failed} of {baseline.runs} runs failed",
        text="\n".join(report.conclusions),
        kind="failed-run",
    )
    held: Outcome = "passed" if report.prediction_held else "skipped"
    yield Case(name="the prediction holds", outcome=held, message=report.conclusions[0])
    for arm in others:
        message = f"{arm.failed} of {arm.runs} runs failed, {arm.saved} saved"
        yield Case(name=f"arm {arm.arm}", outcome="passed", message=message)


def _file_case(row: FileRow) -> Case:
    if row.report is None:
        return Case(name=row.name, outcome="error", message=row.error, kind="unreadable")
    gate, risk = row.report.gate, deciding(row.report).risk
    is_failed = gate is not None and gate.failed
    said = "; ".join(definite(gate).reasons) if is_failed else phrases.answer(row.report, risk)
    outcome: Outcome = "failure" if is_failed else "passed" if risk.is_told else "skipped"
    return Case(name=row.name, outcome=outcome, message=said, kind=row.verdict)


def _cell_case(report: GridReport, cell: Record, name: str) -> Case:
    verdict = cell.verdict
    chance = written(cell.probability_failed, PERCENT)
    message = str(cell.message or cell.reasons or f"P(failed) {chance}")
    outcome: Outcome = "passed" if verdict in ANSWERS else "skipped"
    if verdict == FAILED:
        outcome = "error"
    elif report.fails(cell):
        outcome = "failure"
    text, kind = f"{verdict}: {message}", cell.failure or verdict
    return Case(name=name, outcome=outcome, message=message, text=text, kind=kind)


def suite(name: str, cases: Sequence[Case], seconds: float) -> str:
    """Return a document with one suite."""
    ended = Counter(case.outcome for case in cases)
    failures, errors, skipped = (str(ended[one]) for one in ("failure", "error", "skipped"))
    shared = {"tests": str(len(cases)), "failures": failures, "errors": errors}
    root = ElementTree.Element("testsuites", {"name": "rksp"} | shared)
    more = {"skipped": skipped, "time": f"{seconds:.3f}"}
    top = ElementTree.SubElement(root, "testsuite", {"name": _clean(name)} | shared | more)
    for case in cases:
        named = {"classname": f"rksp.{_clean(name)}", "name": _clean(case.name)}
        test, said = (
            ElementTree.SubElement(top, "testcase", named),
            _clean(case.text or case.message),
        )
        told = {"message": _clean(case.message)}
        if case.outcome == "passed":
            ElementTree.SubElement(test, "system-out").text = said
        elif case.outcome == "skipped":
            ElementTree.SubElement(test, "skipped", told)
        else:
            ElementTree.SubElement(test, case.outcome, {"type": case.kind} | told).text = said
    ElementTree.indent(root, " ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(issue: Finding, is_failed: bool) -> Case:
    undecided: Outcome = "skipped" if issue.code == UNDECIDED else "passed"
    # A test is named after what should hold, and keeps its name whether it passes or fails.
    name = "P(failed) is below the bar" if issue.code == RISK else issue.name
    return Case(
        name=f"{issue.code} {name}" + (f" [{issue.layer}]" if issue.layer else ""),
        outcome="failure" if is_failed else undecided,
        message=issue.message,
        text=issue.text if is_failed else f"{issue.level}: {issue.text}",
        kind=issue.level,
    )


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)
