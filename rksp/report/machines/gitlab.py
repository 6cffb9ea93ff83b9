"""GitLab code quality: findings in the merge request's widget."""

from __future__ import annotations

import json

from rksp.documents.base import Document
from rksp.report.machines.listing import listing

_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


def render(document: Document) -> str:
    """Render a list of issues; GitLab compares it with the target branch's by fingerprint."""
    found = listing(document)
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
