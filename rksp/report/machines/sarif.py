"""SARIF 2.1.0, the format of code-scanning pages."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from rksp.checks.registry import CHECKS
from rksp.documents.finding import Edit, Finding
from rksp.documents.grid import GridReport
from rksp.documents.score import ScoreReport
from rksp.report.glossary import find_word
from rksp.report.machines.annotations import Listing, from_root, listing

_ROOT = "SRCROOT"
_STATES = {
    "new": "new",
    "worse": "updated",
    "better": "updated",
    "unchanged": "unchanged",
}
_CHECKS = {check.code: check for check in CHECKS}


def render(report: ScoreReport | GridReport) -> str:
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
    """Describe the rule of an issue: what `rksp explain` says, as text and as Markdown."""
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
    """Show a command as code, and escape what Markdown would read as markup."""
    if text.startswith("rksp explain"):
        return f"`{text}`"
    return "".join(f"\\{c}" if c in "\\`*_[]<>|~" else c for c in text)


def _result(found: Listing, issue: Finding, rule: int) -> dict[str, object]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(found.subject, safe="/")}}
    line = 1
    if issue.key in found.places:
        file, line = found.places[issue.key]
        physical["artifactLocation"] = _artifact(file)
    physical["region"] = {"startLine": line}
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
        result["fixes"] = [{"description": {"text": issue.fix}, "artifactChanges": changes}]
    if issue.key in found.states:
        result["baselineState"] = _STATES[found.states[issue.key]]
    return result


def _change(edit: Edit) -> dict[str, object]:
    """Describe the change of one place in a file."""
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
