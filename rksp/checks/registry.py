"""All checks, in the order of their codes, and the user's choice of their findings."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path

from rksp.checks import fine_tuning, forward, gradient, precision, rate, router, shape
from rksp.checks.check import Check, Observation, Reads, Weights
from rksp.checks.evidence import CheckEvidence, Need
from rksp.documents.finding import LEVELS, Finding, Level
from rksp.documents.score import NotRunReport
from rksp.ground.errors import InputError, nearest
from rksp.ground.text import CLEARLY_LOWER, rounded_down, short

_MODULES = (fine_tuning, forward, gradient, precision, rate, router, shape)
CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (one for module in _MODULES for one in vars(module).values() if isinstance(one, Check)),
        key=lambda check: check.code,
    )
)
Sight = tuple[Check, Observation]
Seen = dict[Hashable, tuple[Sight, ...]]  # by what was held, and by the recipe but for its rate
_BY_KEY = {key: check for check in CHECKS for key in (check.code, check.name)}


def run_checks(evidence: CheckEvidence, seen: Seen | None = None) -> tuple[Finding, ...]:
    """Run all checks and return errors first, then warnings and notes, each by code.

    All findings about the learning rate advise the same rate: the one to start with, or the lowest
    of the one not to exceed and of the highest that each accepts, where that is lower. In a short
    run the rate to start with is above the one not to exceed, where a program launches nothing.

    Args:
        evidence: What is known of the model and the run.
        seen: What checks that read no rate saw of this very model and its recipes before; they
            look once.
    """
    seen = {} if seen is None else seen
    of_model, of_recipe = (evidence.held, evidence.start), evidence.but_for_rate
    if of_recipe not in seen:
        if of_model not in seen:
            seen[of_model] = _looked(evidence, "model")
        seen[of_recipe] = (*seen[of_model], *_looked(evidence, "recipe"))
    known = seen[of_recipe]
    observed = sorted((*known, *_looked(evidence, "rate")), key=lambda sight: sight[0].code)
    limits = [observation.rate for _, observation in observed if observation.rate is not None]
    if limits:
        limits += filter(None, (evidence.start_here, evidence.do_not_exceed))
    limit = min(limits, default=0.0)
    is_start = limit == evidence.start_here  # one rate a page, as it is printed
    advice = _lower(evidence.recipe.learning_rate, limit, is_start=is_start) if limits else ""
    found = [
        check.report(observation, _advice(observation, advice)) for check, observation in observed
    ]
    return tuple(sorted(found, key=lambda finding: -finding.severity))


def _looked(evidence: CheckEvidence, reads: Reads) -> tuple[Sight, ...]:
    weights: Weights = "random" if evidence.start.is_scratch else "trained"
    return tuple(
        (check, observation)
        for check in _ready(evidence.held, reads, weights)
        for observation in check.look(evidence)
    )


@cache
def _ready(held: frozenset[Need], reads: Reads, weights: Weights) -> tuple[Check, ...]:
    fitting = (c for c in CHECKS if c.reads == reads and c.weights in (None, weights))
    return tuple(c for c in fitting if held.issuperset(c.needs))


def not_run(held: frozenset[Need]) -> tuple[NotRunReport, ...]:
    """Return the checks that lack evidence, by code, from what the evidence holds."""
    lacking = ((check, [need for need in check.needs if need not in held]) for check in CHECKS)
    return tuple(
        NotRunReport(code=check.code, name=check.name, reason=f"it needs {' and '.join(missing)}")
        for check, missing in lacking
        if missing
    )


def find_check(wanted: str) -> Check:
    """Find the check of a code or name.

    Raises:
        InputError: There is no such check; the message names the nearest ones.
    """
    key = wanted.upper() if wanted.upper().startswith("RKSP") else wanted.lower()
    if key not in _BY_KEY:
        seen = key[:4] + key[4:].translate({79: "0", 73: "1", 76: "1"})  # RKSP5O1, with letters
        if seen in _BY_KEY:
            raise InputError(f"No check is called {wanted!r}; did you mean {seen}?")
        relatives = [code for code in _BY_KEY if key.startswith("RKSP") and code[:5] == key[:5]]
        hint = nearest(key, relatives or _BY_KEY) or "; rksp explain lists them."
        raise InputError(f"No check is called {wanted!r}{hint}")
    return _BY_KEY[key]


def blamed_settings(code: str) -> tuple[str, ...]:
    """Return the configuration's settings that the findings of a code blame, usual one first."""
    return _BY_KEY[code].texts.settings if code in _BY_KEY else ()


def blamed_field(code: str) -> str:
    """Return the recipe's field that the findings of a code blame; empty where there is none."""
    return _BY_KEY[code].texts.field if code in _BY_KEY else ""


def _advice(seen: Observation, lower: str) -> str | None:
    if seen.rate is None:
        return None
    return f"{lower}." if seen.fix is None else f"{seen.fix}, or {lower[0].lower()}{lower[1:]}."


def _lower(rate: float | None, limit: float, *, is_start: bool) -> str:
    """Name a lower rate within the limit, with two digits, or the limit itself if it is as near."""
    advised = limit if is_start else rounded_down(limit)
    if rate is not None and advised > CLEARLY_LOWER * rate:
        return f"Lower the learning rate below {short(min(limit, rate), 3)}"
    return f"Lower the learning rate to {short(advised, 2)}"


def setting_line(path: Path, code: str) -> int:
    """Find the line, counted from 1, of the setting that the findings of a code blame.

    The first line where the file names none of them, or cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not text, or no name of a file
        return 1
    for name in blamed_settings(code):
        stated = re.compile(rf'"{re.escape(name)}"\s*:')
        for number, line in enumerate(lines, start=1):
            if stated.search(line):
                return number
    return 1


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
    return tuple(sorted(kept, key=lambda finding: -finding.severity))


def left_out(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[NotRunReport, ...]:
    """Return the checks whose findings `select_findings` drops, by code; raises as it does."""
    chosen, ignored = [_code(text) for text in select], [_code(text) for text in ignore]
    return tuple(
        NotRunReport(code=check.code, name=check.name, reason="--select or --ignore leaves it out")
        for check in CHECKS
        if not _is_kept(check.code, chosen, ignored)
    )


def _is_kept(code: str, chosen: list[str], left_out: list[str]) -> bool:
    selected = max((len(start) for start in chosen if code.startswith(start)), default=-1)
    ignored = max((len(start) for start in left_out if code.startswith(start)), default=-1)
    return (selected >= 0 or not chosen) and ignored < max(selected, 0)


def _code(text: str, whole: bool = False) -> str:
    if not whole and text.upper().startswith("RKSP"):
        start = text.upper()
        if any(check.code.startswith(start) for check in CHECKS):
            return start
    if text.upper().startswith("RKSA"):
        from rksp.checks.advisories import find_advisory  # few name one

        return "RKSA" if text.upper() == "RKSA" and not whole else find_advisory(text).id
    return find_check(text).code


def _level(text: str) -> Level:
    if text not in LEVELS:
        hint = nearest(text, LEVELS, count=1) or "."
        raise InputError(f"The level {text!r} is unknown; use error, warning or note{hint}")
    return Level(text)
