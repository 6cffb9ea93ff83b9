"""What a score or a grid complains about, for code hosts: GitHub's annotations, GitLab's list."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rksp.documents.finding import Edit, Finding, Level
from rksp.documents.grid import FAILED, GridReport, Record
from rksp.documents.score import ScoreReport
from rksp.ground.text import short
from rksp.report import words
from rksp.report.blocks import PERCENT, written
from rksp.report.grid.blocks import Settings, by_level
from rksp.report.issues import RISK, deciding, issues, place, state

_BROKEN = "RKSP004"

# GitHub shows ten annotations of a kind a step and drops the rest without a word.
_MOST = 9
_SHOWN = (None, "new", "worse")
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


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


def listing(report: ScoreReport | GridReport) -> Listing:
    """Return the issues of a report with their places and states."""
    if isinstance(report, GridReport):
        return _of_grid(report)
    found, risk = issues(report), deciding(report).risk
    stands = {issue.key: place(report, issue) for issue in found}
    since = {issue.key: state(issue, report.baseline) for issue in found}
    return Listing(
        subject=report.target.name,
        identity=from_root(report.target.name),
        version=str(report.provenance.get("rksp", "0")),
        issues=found,
        places={key: (from_root(at[0]), at[1]) for key, at in stands.items() if at},
        states={key: name for key, name in since.items() if name},
        levers=tuple(words.lever(one) for one in risk.levers) if risk else (),
    )


def _of_grid(report: GridReport) -> Listing:
    """Return an issue for each cell that fails the gate or could not run; a cell is the layer."""
    setting = Settings(report)
    told = [(cell, _cell(cell, setting(cell))) for cell in report.cells if _is_told(report, cell)]
    targets = {issue.key: _target(cell) for cell, issue in told}
    subject = " ".join(dict.fromkeys(map(_target, report.cells))) or "grid"
    return Listing(
        subject=subject,
        identity=f"grid/{from_root(subject)}",
        version=str(report.made_by.get("rksp", "0")),
        issues=tuple({issue.key: issue for _, issue in told}.values()),
        places={key: (from_root(at), 1) for key, at in targets.items() if _is_file(at)},
    )


def _is_told(report: GridReport, cell: Record) -> bool:
    return cell["verdict"] == FAILED or report.fails(cell)


def _target(cell: Record) -> str:
    return str(cell.get("target") or cell["model"])


def _cell(cell: Record, setting: str) -> Finding:
    if cell["verdict"] == FAILED:
        message = f"This cell could not run: {str(cell['message']).rstrip('.')}."
        name, level = "could-not-run", Level.ERROR
        return Finding(code=_BROKEN, name=name, level=level, message=message, layer=setting)
    chance, start = cell["probability_failed"], cell["start_here"]
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


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


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


def github(report: ScoreReport | GridReport) -> str:
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


def gitlab(report: ScoreReport | GridReport) -> str:
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
    """Say what to write where; empty for a change that only a person can make."""
    if edit.file is None:
        return ""
    change = f"replace {edit.old} by {edit.new}" if edit.old else f"add {edit.new.strip()}"
    return f"\nSuggestion for line {edit.line}: {change}"


def _message(text: str) -> str:
    """Escape text as the runner unescapes it, so that a hostile name cannot start a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
