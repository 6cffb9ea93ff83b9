"""GitLab code quality: findings in the merge request's widget."""

from __future__ import annotations

import json

from rksp.documents.finding import Finding
from rksp.documents.score import ScoreReport
from rksp.report.issues import issues, place
from rksp.report.sarif import fingerprint

_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


def render(report: ScoreReport) -> str:
    """Render a list of issues; GitLab compares it with the target branch's by fingerprint."""
    entries = [
        {
            "check_name": issue.code,
            "description": f"{issue.layer}: {issue.text}" if issue.layer else issue.text,
            "fingerprint": fingerprint(report, issue),
            "severity": _SEVERITIES[issue.level],
            "location": _location(report, issue),
        }
        for issue in issues(report)
    ]
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def _location(report: ScoreReport, issue: Finding) -> dict[str, object]:
    file, line = place(report, issue) or (report.target.name, 1)
    return {"path": file, "lines": {"begin": line}}
