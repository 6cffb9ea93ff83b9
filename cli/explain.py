"""`rksp explain`: the meaning of any printed word."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Annotated, get_args

import typer

from rksp.cli.explain_lever import lever_rows
from rksp.cli.options import TextOrJson
from rksp.cli.reproduce import SHIPPED as EXPERIMENTS
from rksp.ground.errors import InputError, nearest
from rksp.recipe_files.said.origin import shown

Rows = list[tuple[str, str]]


def explain(
    word: Annotated[
        str,
        typer.Argument(
            help="Any word that rksp prints: a check (RKSP101, initial-loss), an advisory "
            "(RKSA-2026-0036), a column, a verdict, a field of the recipe, a lever, a monitor, an "
            "arm or a fault."
        ),
    ],
    output_format: TextOrJson = "text",
) -> int:
    """Explain a word of the output: what it means, what is healthy, how to fix it."""
    from rich.console import Console
    from rich.table import Table

    title, rows = explained(word)
    if output_format == "json":
        told = {name.lower(): text for name, text in rows if text}
        print(json.dumps({"word": word, "title": title} | told, indent=1, ensure_ascii=False))
        return 0
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


def explained(word: str) -> tuple[str, Rows]:
    """Return a title and rows; what needs torch is looked up last.

    Raises:
        InputError: No page prints this word; the message names the nearest ones.
    """
    from rksp.checks.registry import find_check
    from rksp.report.glossary import find_word

    if word.upper().startswith("RKSA"):
        return _advisory(word)
    word = re.sub(r"^the (?=\w)", "", word.strip()) if find_word(word) is None else word
    for look_up in (
        _check,
        _status,
        _glossary,
        _option,
        _monitor,
        _part,
        _experiment,
        _lever,
        _trainers,
        _command,
    ):
        found = look_up(word)
        if found is not None:
            title, rows = found
            return title, [*rows, *lever_rows(word)]
    if word.upper().startswith("RKSP"):
        find_check(word)  # says which codes are near
    hint = nearest(word, _known()) or "; rksp checks lists the checks."
    raise InputError(f"rksp explain does not know the word {word!r}{hint}")


def _command(word: str) -> tuple[str, Rows] | None:
    from rksp.cli.commands import COMMANDS

    name = word.strip().lower()
    found = next((what for own, _, what in COMMANDS if own == name), None)
    return None if found is None else (f"rksp {name}, a command", [("Does", found)])


def _trainers(word: str) -> tuple[str, Rows] | None:
    if _key(word) not in ("trainers", "run_files", "run_file", "as"):
        return None
    from rksp.recipe_files.registry import READERS

    rows = [(reader.name, f"{reader.title} {reader.version}") for reader in READERS]
    return "The trainers whose run files rksp reads (--as NAME)", rows


def _check(word: str) -> tuple[str, Rows] | None:
    from rksp.checks.registry import find_check

    try:
        found = find_check(word)
    except InputError:
        return None
    title = f"{found.code} {found.name} (at worst: {found.level})\n{found.title}\n"
    return title, list(found.explanation)


def _advisory(word: str) -> tuple[str, Rows]:
    from rksp.checks.advisories import find_advisory

    found = find_advisory(word)
    return f"{found.id} (at worst: {found.severity})\n{found.summary}\n", list(found.explanation)


def _glossary(word: str) -> tuple[str, Rows] | None:
    from rksp.report.glossary import find_word

    found = find_word(word)
    if found is None:
        return None
    range_ = found.range if found.is_quantity else found.healthy
    more = f"rksp explain {found.check}" if found.check else ""
    rows = [("Means", found.meaning), ("Healthy", range_), ("Source", found.source), ("See", more)]
    return found.name, rows


def _option(word: str) -> tuple[str, Rows] | None:
    from rksp.ground.flags import flags_of
    from rksp.options import MeasureOptions
    from rksp.recipe import Recipe

    wanted = _key(word)
    for model, noun in ((Recipe, "a field of the recipe"), (MeasureOptions, "an option")):
        for name, flag in flags_of(model).items():
            if wanted not in map(_key, (name, *flag.options, *flag.names.split())):
                continue
            field = model.model_fields[name]
            choices = [text for text in get_args(field.annotation) if isinstance(text, str)]
            rows = [
                ("Means", flag.help),
                ("Unit", flag.unit),
                ("Choices", ", ".join(choices)),
                ("Default", shown(field.default)),
            ]
            return f"{name}, {noun} ({flag.name})", rows
    return None


def _key(word: str) -> str:
    return word.strip().lstrip("-").lower().replace("-", "_").replace(" ", "_")


def _status(word: str) -> tuple[str, Rows] | None:
    from rksp.spectra.status import Status

    wanted = word.strip().lower().replace(" ", "_").replace("-", "_")
    if wanted == Status.OK or wanted not in set(Status):
        return None
    return f"{word}, a status of a block's spectrum", [("Means", Status(wanted).remedy)]


def _experiment(word: str) -> tuple[str, Rows] | None:
    name = word.strip().lower()
    if name not in EXPERIMENTS:
        return None
    title, rows = _part(word) or (name, [])
    found = [("Shows", EXPERIMENTS[name]), ("See", f"rksp reproduce {name} --stored")]
    return f"{title}, an experiment of rksp reproduce", [*found, *rows]


def _monitor(word: str) -> tuple[str, Rows] | None:
    from rksp.watch.monitors.registry import MONITORS
    from rksp.watch.monitors.rule_table import RULES

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
    from rksp.watch.faults.registry import FAULTS
    from rksp.watch.interventions.registry import INTERVENTIONS

    wanted = word.lower().replace("-", "_")
    for noun, table in (("an arm of rksp confirm", INTERVENTIONS), ("a fault", FAULTS)):
        for name, kind in table.items():
            if wanted == name.replace("-", "_"):
                tried = EXPERIMENTS.get(wanted)
                more = f"rksp reproduce {wanted} --stored: {tried}" if tried else ""
                rows = [("Does", _summary(kind)), *_arguments(kind), ("Tried", more)]
                return f"{name}, {noun}", rows
    return None


def _lever(word: str) -> tuple[str, Rows] | None:
    rows = lever_rows(word)
    return (f"{word.strip()}, a lever (rksp score --apply)", []) if rows else None


def _arguments(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each option with its default and what its docstring says of it."""
    text = inspect.getdoc(kind) or ""
    said = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", text.partition("Args:")[2], re.M))
    for name, parameter in inspect.signature(kind).parameters.items():
        default = "" if parameter.default in ("", None) else f"={parameter.default}"
        yield f"{name}{default}", " ".join(said.get(name, "").split())


def _summary(kind: type) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _known() -> Iterator[str]:
    from rksp.checks.registry import CHECKS
    from rksp.classifiers.levers.catalogue import LEVERS
    from rksp.ground.flags import flags_of
    from rksp.recipe import Recipe
    from rksp.report.glossary import words
    from rksp.watch.faults.registry import FAULTS
    from rksp.watch.interventions.registry import INTERVENTIONS
    from rksp.watch.monitors.registry import MONITORS

    for check in CHECKS:
        yield from (check.code, check.name)
    for word in words():
        yield from (word.name, *word.spellings)
    yield from flags_of(Recipe)
    yield from EXPERIMENTS
    yield from MONITORS
    yield from INTERVENTIONS
    yield from (lever.name for lever in LEVERS)
    yield from FAULTS
