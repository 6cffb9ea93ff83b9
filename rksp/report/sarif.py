"""SARIF 2.1.0, the format of code-scanning pages."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from urllib.parse import quote

from rksp.documents.finding import Finding
from rksp.documents.score import ScoreReport
from rksp.report.issues import issues, place, state

_STATES = {
    "new": "new",
    "worse": "updated",
    "better": "updated",
    "unchanged": "unchanged",
}


def render(report: ScoreReport) -> str:
    """Render one run with one result per issue; a baseline sets its `baselineState`."""
    found = issues(report)
    rules = {issue.code: _rule(issue) for issue in reversed(found)}
    order = sorted(rules)
    run = {
        "tool": {
            "driver": {
                "name": "rksp",
                "semanticVersion": str(report.provenance.get("rksp", "0")),
                "rules": [rules[code] for code in order],
            }
        },
        "automationDetails": {"id": f"rksp/{quote(report.target.name, safe='/')}/"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(report, issue, order.index(issue.code)) for issue in found],
        "properties": {"verdict": report.verdict},
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def fingerprint(report: ScoreReport, issue: Finding) -> str:
    """Return a fingerprint that is stable over commits: target and issue key, not the wording."""
    return hashlib.sha256(f"{report.target.name}\n{issue.key}".encode()).hexdigest()


def _rule(issue: Finding) -> dict[str, object]:
    words = issue.name.replace("-", " ")
    rule = {
        "id": issue.code,
        "name": "".join(word.capitalize() for word in words.split()),
        "shortDescription": {"text": words},
        "help": {"text": f"rksp explain {issue.code}"},
    }
    if issue.healthy:
        rule["fullDescription"] = {"text": f"Healthy: {issue.healthy}. Source: {issue.source}."}
    return rule


def _result(report: ScoreReport, issue: Finding, rule: int) -> dict[str, object]:
    file, line = place(report, issue) or (report.target.name, 1)
    logical = {"fullyQualifiedName": issue.layer or report.target.name, "kind": "module"}
    result: dict[str, object] = {
        "ruleId": issue.code,
        "ruleIndex": rule,
        "level": issue.level,
        "message": {"text": issue.text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(file)},
                    "region": {"startLine": line},
                },
                "logicalLocations": [logical],
            }
        ],
        "partialFingerprints": {"rkspIssue/v1": fingerprint(report, issue)},
    }
    since = state(issue, report.baseline)
    if since:
        result["baselineState"] = _STATES[since]
    return result


def _uri(name: str) -> str:
    path = PurePath(name)
    return path.as_uri() if path.is_absolute() else quote(name, safe="/")
