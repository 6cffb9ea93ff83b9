"""`rksp explain-config`: the recipe in a trainer's file, with the origin of each field."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, TextOrJson, as_count, with_options
from rksp.cli.run_options import RunOptions
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from rksp.recipe_files.said.origin import RecipeFile


@with_options
def explain_config(
    file: Annotated[
        Path, typer.Argument(help="A trainer's YAML, JSON, TOML, shell or Python file.")
    ],
    of: Annotated[RunOptions, Panel(title="Recipe", leave_out=("recipe_file", "is_pretrained"))],
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="ROWS",
            parser=as_count(1),
            help="Examples of the data set; needed where the file gives epochs and no steps.",
        ),
    ] = None,
    output_format: TextOrJson = "text",
) -> int:
    """Show the recipe in a file: each field, its origin, and all assumptions."""
    from rksp.recipe_files.registry import read_recipe_file
    from rksp.run import refuse_unknown

    given = {} if rows is None else {"rows": rows}
    with reading(f"the run file {one_line(str(file), 200)}"):
        read = read_recipe_file(file, trainer=of.as_format, devices=of.devices, given=given)
        if of.is_strict:
            refuse_unknown(read)
        read.recipe()  # a file that means nothing here is refused, with nothing on stdout
    if output_format == "json":
        json.dump(_document(read), sys.stdout, indent=1, sort_keys=True)
        sys.stdout.write("\n")
    else:
        _print(read)
    return 0


def _document(read: RecipeFile) -> dict[str, object]:
    target = read.target
    return {
        "file": str(read.path),
        "trainer": read.trainer,
        "understood": read.understood,
        "settings": read.settings,
        "fields": {
            f.name: {"value": f.value, "origin": dataclasses.asdict(f.origin)} for f in read.fields
        },
        "assumed": _assumed(read),
        "unread": [dataclasses.asdict(one) | {"file": str(read.path)} for one in read.unread],
        "target": None
        if target is None
        else {
            "name": target.name,
            "overrides": dict(target.overrides),
            "notes": list(target.notes),
        },
        "starts_trained": read.starts_trained,
        "target_missing": "" if target is not None else read.target_missing,
        "notes": list(read.notes),
    }


def _assumed(read: RecipeFile) -> str:
    """Return the line of assumptions; empty if the file gives no valid recipe."""
    from rksp.recipe_files.said.origin import assumed_line

    try:
        return assumed_line(read.recipe(), read.origins())
    except InputError:
        return ""


def _print(read: RecipeFile) -> None:
    from rksp.recipe_files.said.origin import in_full, recipe_table

    _say(f"{read.path}: {read.trainer}, {read.understood} of {read.settings} settings read\n")
    origins = {f.name: in_full(f.origin) for f in read.fields}
    for row in recipe_table({f.name: f.value for f in read.fields}, origins):
        _say(row)
    line = _assumed(read)
    if line:
        _say(f"\n{line}")
    for i, one in enumerate(read.unread):
        _say(f"{'' if i else chr(10)}Unread: {one}")
    _print_target(read)
    for note in read.notes:
        _say(f"\nNote: {note}")


def _print_target(read: RecipeFile) -> None:
    if read.starts_trained:
        _say("\nStart: trained weights")
    if read.target is None:
        _say(f"\nModel: none; {read.target_missing}")
        return
    _say(f"\nModel: {read.target.name}")
    for key, value in read.target.overrides.items():
        _say(f"  --set {key}={_value(value)}")
    for note in read.target.notes:
        _say(f"  {note}")


def _say(line: str) -> None:
    # One line each, but for the empty one that some begin with.
    blank = "\n" if line.startswith("\n") else ""
    sys.stdout.write(blank + one_line(line.strip("\n").rstrip()) + "\n")


def _value(value: object) -> str:
    from rksp.recipe_files.said.origin import shown

    return shown(value)
