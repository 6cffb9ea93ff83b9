"""`rksp explain`: the meaning of any printed word."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated

import typer

from rksp.errors import InputError, nearest

Rows = list[tuple[str, str]]


def explain(
    word: Annotated[
        str,
        typer.Argument(
            help="Any word that rksp prints: a check (RKSP101, initial-loss), a column, a verdict, "
            "a monitor, an arm or a fault."
        ),
    ],
) -> int:
    """Explain a word of the output: what it means, what is healthy, how to fix it."""
    from rich.console import Console
    from rich.table import Table

    title, rows = _explained(word)
    console = Console(highlight=False, markup=False)
    console.print(title, style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, text in rows:
        if text:
            table.add_row(name, text)
    console.print(table)
    return 0


def _explained(word: str) -> tuple[str, Rows]:
    """Return a title and rows; what needs torch is looked up last.

    Raises:
        InputError: No page prints this word; the message names the nearest ones.
    """
    from rksp.checks.registry import find_check

    for look_up in (_check, _status, _glossary, _monitor, _part):
        found = look_up(word)
        if found is not None:
            return found
    if word.upper().startswith("RKSP"):
        find_check(word)  # says which codes are near
    hint = nearest(word, _known()) or "; rksp checks lists the checks."
    raise InputError(f"rksp explain does not know the word {word!r}{hint}")


def _check(word: str) -> tuple[str, Rows] | None:
    from rksp.checks.registry import find_check

    try:
        found = find_check(word)
    except InputError:
        return None
    rows = [
        ("Measures", found.measures),
        ("Why", found.why),
        ("Healthy", found.healthy),
        ("Fix", found.fix),
        ("Fails", found.failing),
        ("Passes", found.stable),
        ("Source", found.source),
    ]
    return f"{found.code} {found.name} (at worst: {found.level})\n{found.title}\n", rows


def _glossary(word: str) -> tuple[str, Rows] | None:
    from rksp.report.glossary import find_word

    found = find_word(word)
    if found is None:
        return None
    rows = [("Means", found.meaning), ("Healthy", found.healthy), ("Source", found.source)]
    return found.name, rows


def _status(word: str) -> tuple[str, Rows] | None:
    from rksp.spectra.status import Status

    wanted = word.strip().lower().replace(" ", "_").replace("-", "_")
    if wanted == Status.OK or wanted not in set(Status):
        return None
    return f"{word}, a status of a block's spectrum", [("Means", Status(wanted).remedy)]


def _monitor(word: str) -> tuple[str, Rows] | None:
    from rksp.monitors.registry import MONITORS
    from rksp.monitors.rule_table import RULES

    wanted = word.lower().replace("_", "-")
    for monitor in MONITORS.values():
        quantities = {name.replace("_", "-"): name for name in monitor.quantities}
        if wanted != monitor.name and wanted not in quantities:
            continue
        shown = monitor.quantities if wanted == monitor.name else (quantities[wanted],)
        rows = [("Measures", _summary(monitor))]
        for quantity in shown:
            rule = RULES[quantity]
            advice = f"; try {rule.advice}" if rule.advice else ""
            rows.append((quantity, f"alarm: {rule}{advice}"))
        rows.append(("Source", monitor.source))
        return f"{monitor.name}, a monitor (every {monitor.default_every} steps)", rows
    return None


def _part(word: str) -> tuple[str, Rows] | None:
    from rksp.faults.registry import FAULTS
    from rksp.interventions.registry import INTERVENTIONS

    wanted = word.lower().replace("-", "_")
    for noun, table in (("an arm of rksp confirm", INTERVENTIONS), ("a fault", FAULTS)):
        for name, kind in table.items():
            if wanted == name.replace("-", "_"):
                return f"{name}, {noun}", [("Does", _summary(kind))]
    return None


def _summary(kind: type) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _known() -> Iterator[str]:
    from rksp.checks.registry import CHECKS
    from rksp.faults.registry import FAULTS
    from rksp.interventions.registry import INTERVENTIONS
    from rksp.monitors.registry import MONITORS
    from rksp.report import glossary

    for check in CHECKS:
        yield from (check.code, check.name)
    yield from glossary.names()
    yield from MONITORS
    yield from INTERVENTIONS
    yield from FAULTS
