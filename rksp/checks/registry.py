"""All checks, in the order of their codes."""

from __future__ import annotations

from rksp.checks import (
    attention,
    gradient,
    initialization,
    output,
    precision,
    rate,
    router,
    shape,
)
from rksp.checks.check import Check
from rksp.checks.evidence import CheckEvidence
from rksp.documents.finding import Finding, Level
from rksp.errors import InputError, nearest

CHECKS: tuple[Check, ...] = (
    *output.CHECKS,
    *attention.CHECKS,
    *precision.CHECKS,
    *gradient.CHECKS,
    *rate.CHECKS,
    *initialization.CHECKS,
    *shape.CHECKS,
    *router.CHECKS,
)
_SEVERITY = tuple(Level)


def run_checks(evidence: CheckEvidence) -> tuple[Finding, ...]:
    """What all checks see: errors first, then warnings and notes, each by code."""
    found = [finding for check in CHECKS for finding in check.run(evidence)]
    return tuple(sorted(found, key=lambda finding: _SEVERITY.index(finding.level)))


def find_check(wanted: str) -> Check:
    """The check of a code or name.

    Raises:
        InputError: There is none; the nearest are named.
    """
    by_key = {key: check for check in CHECKS for key in (check.code, check.name)}
    key = wanted.upper() if wanted.upper().startswith("RKSP") else wanted.lower()
    if key not in by_key:
        hint = nearest(key, by_key) or "; rksp checks lists them."
        raise InputError(f"No check is called {wanted!r}{hint}")
    return by_key[key]
