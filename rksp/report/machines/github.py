"""GitHub workflow commands: annotations next to the changed lines."""

from __future__ import annotations

from rksp.documents.base import Document
from rksp.documents.finding import Edit, Finding
from rksp.report.machines.listing import Listing, listing

# GitHub shows ten annotations of a kind a step and drops the rest without a word.
_MOST = 9
_SHOWN = (None, "new", "worse")
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(document: Document) -> str:
    """Render one line per issue, at most nine of a kind; with a baseline, new or worse ones."""
    found = listing(document)
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
        lines.append(f"::notice title=rksp::{_message(found.subject)}: {found.verdict}")
    return "\n".join(lines) + "\n"


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
