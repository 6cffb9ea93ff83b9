"""The user's choice of findings and of their levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rksp.checks.registry import CHECKS, NotRun, find_check
from rksp.documents.finding import Finding, Level
from rksp.ground.errors import InputError, nearest

_SEVERITY = tuple(Level)


def select_findings(
    findings: Iterable[Finding],
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    levels: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Keep the findings that were selected and not ignored, at the requested levels.

    Args:
        findings: The findings to choose from.
        select: Codes, beginnings of codes (`RKSP5`) or names; empty keeps all.
        ignore: As `select`. It overrides `select` unless its code is the shorter beginning.
        levels: Code or name to error, warning or note.

    Returns:
        Errors first, then warnings and notes, each in the given order.

    Raises:
        InputError: A code, name or level is unknown; the message names the nearest one.
    """
    chosen, left_out = [_code(text) for text in select], [_code(text) for text in ignore]
    wanted = {_code(key, whole=True): _level(value) for key, value in (levels or {}).items()}
    kept = [
        finding.model_copy(update={"level": wanted.get(finding.code, finding.level)})
        for finding in findings
        if _is_kept(finding.code, chosen, left_out)
    ]
    return tuple(sorted(kept, key=lambda finding: _SEVERITY.index(finding.level)))


def left_out(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[NotRun, ...]:
    """Return the checks whose findings `select_findings` drops, by code; raises as it does."""
    chosen, ignored = [_code(text) for text in select], [_code(text) for text in ignore]
    return tuple(
        NotRun(code=check.code, name=check.name, reason="--select or --ignore leaves it out")
        for check in CHECKS
        if not _is_kept(check.code, chosen, ignored)
    )


def _is_kept(code: str, chosen: list[str], left_out: list[str]) -> bool:
    """Return True if the longest beginning that matches a code was selected."""
    selected = max((len(start) for start in chosen if code.startswith(start)), default=-1)
    ignored = max((len(start) for start in left_out if code.startswith(start)), default=-1)
    return (selected >= 0 or not chosen) and ignored < max(selected, 0)


def _code(text: str, whole: bool = False) -> str:
    """Return the code of a check's code or name, or the shared beginning of several codes."""
    if not whole and text.upper().startswith("RKSP"):
        start = text.upper()
        if any(check.code.startswith(start) for check in CHECKS):
            return start
    if text.upper().startswith("RKSA"):
        from rksp.checks.advisories import find_advisory  # few name one

        return "RKSA" if text.upper() == "RKSA" and not whole else find_advisory(text).id
    return find_check(text).code


def _level(text: str) -> Level:
    if text not in _SEVERITY:
        hint = nearest(text, _SEVERITY, count=1) or "."
        raise InputError(f"The level {text!r} is unknown; use error, warning or note{hint}")
    return Level(text)
