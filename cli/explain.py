"""`rksp explain`: any printed word, or a run file; `rksp reproduce`: a published table."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Annotated, get_args

import typer

from rksp.checks.advisories import find_advisory
from rksp.checks.registry import CHECKS, find_check
from rksp.classifiers.levers.catalogue import BY_NAME, LEVERS, Lever
from rksp.cli.app import COMMANDS, OLD
from rksp.cli.options import Panel, TextOrJson, as_count, refuse_unused, with_options
from rksp.cli.shared_options import RunOptions
from rksp.documents.options import MeasureOptions
from rksp.documents.spectrum import Status
from rksp.ground.errors import InputError, nearest
from rksp.ground.flags import flags_of
from rksp.ground.text import short
from rksp.question.run import is_run_file
from rksp.recipe import Recipe
from rksp.recipe_files.registry import READERS
from rksp.recipe_files.said.origin import shown
from rksp.report.glossary import Word, find_word, words

Rows = list[tuple[str, str]]
# The experiments that are shipped; lab/experiments made them and makes them again.
SHIPPED = {
    "kss": "Koopman Spectral Shaping against its alternatives, in the paper's task.",
    "kss-learns": "Koopman Spectral Shaping where runs learn the task.",
    "msign-learns": "MSign where runs learn the task.",
    "msign": "MSign where training diverges.",
    "msign-deep": "MSign where a deep model stalls.",
    "cross-talk": "Which monitor sees which fault, and how early.",
    "failures": "Public failures replayed beside healthy twins.",
    "profiles": "Near-unit mass, stable rank and QK rank over runs that learn.",
    "cost": "What interventions add to a step.",
    "rksp": "Near-unit mass and what predicts divergence better, over kinds of blocks.",
    "shaping": "What saves a run that fails: the update bound, step clip, MSign, half the rate.",
}


@with_options
def explain(
    context: typer.Context,
    of: Annotated[RunOptions, Panel(title="Run file", only=("devices", "as_format"))],
    words_typed: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]",
            help="Any word that rksp prints: a check (RKSP101, initial-loss), an advisory "
            "(RKSA-2026-0036), a column, a verdict, a field of the recipe, a lever, a monitor, an "
            "arm or a fault; or a run file.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="ROWS",
            parser=as_count(1),
            help="Examples of the data set; needed where a file gives epochs and no steps.",
            rich_help_panel="Run file",
        ),
    ] = None,
    output_format: TextOrJson = "text",
) -> int:
    """Explain a word of the output or a run file; without one, list all checks."""
    word = " ".join(words_typed) if words_typed else None
    is_file = word is not None and (
        of.as_format is not None or _is_there(word) or is_run_file(word)
    )
    if word is not None and is_file:
        from rksp.cli.run_files import explain_file

        return explain_file(Path(word), of, rows, output_format)
    refuse_unused(context, "devices as_format rows", "they are of a run file")
    if word is None:
        return _list_checks(output_format)
    if output_format == "json":
        sys.stdout.write(as_json(word))
        return 0
    from rich.console import Console
    from rich.table import Table

    title, told = explained(word)
    console = Console(highlight=False, markup=False)
    console.print(title, style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, text in told:
        if text:
            table.add_row(name, text)
    console.print(table)
    return 0


def as_json(word: str) -> str:
    """Return what there is to say about a word as JSON; raises as `explained`."""
    title, rows = explained(word)
    told = {name.lower(): text for name, text in rows if text}
    return json.dumps({"word": word, "title": title} | told, indent=1, ensure_ascii=False) + "\n"


def _is_there(word: str) -> bool:
    path = Path(word)
    try:
        return bool(path.suffix) and path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _list_checks(output_format: str) -> int:
    if output_format == "json":
        texts = ("title", "measures", "healthy", "fix", "source", "field")
        rows = [
            {name: getattr(check, name) for name in ("code", "level", "name")}
            | {name: getattr(check.texts, name) for name in texts}
            for check in CHECKS
        ]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        print(f"{check.code}  {check.level:<7}  {check.name:<{width}}  {check.texts.title}")
    sys.stdout.flush()  # a closed pipe ends the command here, before the hint
    print("rksp explain CODE explains a check.", file=sys.stderr)
    return 0


def explained(word: str) -> tuple[str, Rows]:
    """Return a title and rows; what needs torch is looked up last.

    Raises:
        InputError: No page prints this word; the message names the nearest ones.
    """
    if word.upper().startswith("RKSA"):
        return _advisory(word)
    word = re.sub(r"^the (?=\w)", "", word.strip()) if find_word(word) is None else word
    wanted = _key(word)
    for names, title, rows in _entries():
        if wanted in map(_key, names):
            return title, [*rows, *_lever_rows(wanted)]
    if word.upper().startswith("RKSP"):
        find_check(word)  # says which codes are near
    every = [name for names, *_ in _entries() for name in names if len(name) > 2]
    hint = nearest(word, every, cutoff=0.72)
    raise InputError(
        f"rksp explain does not know the word {word!r}{hint or '; rksp explain lists the checks.'}"
    )


def _key(word: str) -> str:
    return word.strip().lstrip("-").lower().replace("-", "_").replace(" ", "_")


Entry = tuple[Sequence[str], str, Iterable[tuple[str, str]]]  # spellings, title, rows


def _entries() -> Iterator[Entry]:
    """Yield every word with its spellings, and what is told of it; of two the first counts."""
    for check in CHECKS:
        title = f"{check.code} {check.name} (at worst: {check.level})\n{check.texts.title}\n"
        yield (check.code, check.name), title, check.explanation
    for status in Status:
        if status is not Status.OK:
            title = f"{status.value.replace('_', ' ')}, a status of a block's spectrum"
            yield (status.value,), title, [("Means", status.remedy)]
    for word in words():
        yield (word.name, *word.spellings), word.name, _glossary(word)
    yield from _options()
    yield from _monitors()
    yield from _parts()
    for lever in LEVERS:
        yield (lever.name,), f"{lever.name}, a lever", []
    for name, shows in SHIPPED.items():
        rows = [("Shows", shows), ("See", f"rksp reproduce {name} --stored")]
        yield (name,), f"{name}, an experiment of rksp reproduce", rows
    trainers = [(reader.name, f"{reader.title} {reader.version}") for reader in READERS]
    title = "The trainers whose run files rksp reads (--as NAME)"
    yield ("trainers", "run files", "run file", "as"), title, trainers
    for name, _, summary in COMMANDS:
        yield (name,), f"rksp {name}, a command", [("Does", summary)]
    for name, now in OLD.items():
        yield (name,), f"rksp {name}, the old name of rksp {' '.join(now)}", []


def _advisory(word: str) -> tuple[str, Rows]:
    found = find_advisory(word)
    return f"{found.id} (at worst: {found.severity})\n{found.summary}\n", list(found.explanation)


def _glossary(found: Word) -> Iterator[tuple[str, str]]:
    yield "Means", found.meaning
    if found.usual is not None and not found.check:
        yield "Usual", f"{found.range.removeprefix('usually ')} before training; that is no verdict"
    else:
        yield "Healthy", found.range if found.is_quantity else found.healthy
    yield "Source", found.source
    yield "See", f"rksp explain {found.check}" if found.check else ""


def _options() -> Iterator[Entry]:
    for model, noun in ((Recipe, "a field of the recipe"), (MeasureOptions, "an option")):
        for name, flag in flags_of(model).items():
            field = model.model_fields[name]
            choices = [text for text in get_args(field.annotation) if isinstance(text, str)]
            rows = [("Means", flag.help), ("Unit", flag.unit), ("Choices", ", ".join(choices))]
            rows.append(("Default", shown(field.default)))
            title = f"{name}, {noun} ({flag.name})"
            told = chain(rows, _edge_rows(name) if model is Recipe else ())
            yield (name, *flag.options, *flag.names.split()), title, told


def _edge_rows(field: str) -> Iterator[tuple[str, str]]:
    from rksp.classifiers.levers.fields import edge_effect  # numpy

    yield "Likely edge", edge_effect(field)


def _monitors() -> Iterator[Entry]:
    from rksp.watch.registry import MONITORS  # torch, which most words do not need

    for monitor in MONITORS.values():
        title = f"{monitor.name}, a monitor (every {monitor.default_every} steps)"
        alarms = {}
        for name, rule in monitor.quantities.items():
            advice = f"; try {rule.advice}" if rule.advice else ""
            alarms[name] = (name, f"alarm: {rule}{advice}")
        measures, source = ("Measures", _summary(monitor)), ("Source", monitor.source)
        yield (monitor.name,), title, [measures, *alarms.values(), source]
        for name, alarm in alarms.items():
            yield (name,), title, [measures, alarm, source]


def _parts() -> Iterator[Entry]:
    from rksp.watch.registry import FAULTS, INTERVENTIONS

    for noun, table in (("an arm of rksp confirm", INTERVENTIONS), ("a fault", FAULTS)):
        for name, kind in table.items():
            shown_by = f"rksp reproduce {name} --stored: {SHIPPED[name]}" if name in SHIPPED else ""
            rows = [("Does", _summary(kind)), *_arguments(kind), ("Tried", shown_by)]
            yield (name,), f"{name}, {noun}", rows


def _lever_rows(wanted: str) -> Rows:
    """Return what is known of the lever of this name; of all levers for `levers`; else nothing."""
    if wanted in ("lever", "levers"):
        return [(name, lever.sentence) for name, lever in BY_NAME.items()]
    return list(_lever_sizes(wanted)) if wanted in BY_NAME else []


def _lever_sizes(name: str) -> Iterator[tuple[str, str]]:
    from rksp.classifiers.levers.effects import load_lever_table  # numpy

    lever, table = BY_NAME[name], load_lever_table()
    yield "Lever", lever.sentence
    for kind, sizes in sorted(table.sizes.items()):
        size = sizes.get(name)
        if size is None or size.pooled:
            continue
        ends = ""
        if size.low is not None and size.high is not None:
            ends = f" [{_times(size.low)}, {_times(size.high)}]"
        loss = "most runs diverge with it" if size.loss is None else f"{size.loss:+.2f} nats"
        yield (
            f"In {kind}s",
            f"the edge {_times(size.shift)}{ends}, {loss}, {size.cost:.2f} times the time a step; "
            f"{size.pairs} pairs of {len(size.families)} families",
        )
        yield "Suggested", _lever_named(size.is_sound, lever)


def _times(decades: float) -> str:
    return f"{short(10**decades, 2)}×"


def _lever_named(is_sound: bool, lever: Lever) -> str:
    if lever.held_back:
        return f"never: {lever.held_back}"
    if is_sound:
        blocks = "of models without parallel blocks, " if lever.is_sequential else ""
        steps = f"of runs of {lever.longest} steps at most, " if lever.longest else ""
        return f"on pages {blocks}{steps}where it is not on already"
    return "never: the pairs do not show that it raises the edge of another family cheaply"


def _arguments(kind: type) -> Iterator[tuple[str, str]]:
    text = inspect.getdoc(kind) or ""
    said = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", text.partition("Args:")[2], re.M))
    for name, parameter in inspect.signature(kind).parameters.items():
        default = "" if parameter.default in ("", None) else f"={parameter.default}"
        yield f"{name}{default}", " ".join(said.get(name, "").split())


def _summary(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help=f"{', '.join(SHIPPED)}; without one, what they are.")
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Print the results that rksp ships, as without it.")
    ] = False,
) -> None:
    """Print a published experiment beside our results, as Markdown.

    To train it again takes the repository: lab/README.md says how.
    """
    if name is None:
        width = max(map(len, SHIPPED))
        for known, title in SHIPPED.items():
            typer.echo(f"{known:<{width}}  {title}")
        return
    if name not in SHIPPED:
        hint = nearest(name, SHIPPED) or f"; choose among {', '.join(SHIPPED)}."
        raise InputError(f"There is no experiment {name!r}{hint}")
    typer.echo(shipped_file(name).read_text(encoding="utf-8"), nl=False)


def shipped_file(name: str) -> Path:
    """Return the file of an experiment's tables."""
    return Path(str(files("rksp.confirm") / "results" / f"{name}.md"))
