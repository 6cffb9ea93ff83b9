"""`rksp explain-config`: the recipe in a trainer's file, with the origin of each field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, TextOrJson, as_count, print_json, with_options
from rksp.cli.shared_options import RunOptions
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
        print_json(_document(read))
    else:
        print(*(one_line(line.rstrip()) for line in _lines(read)), sep="\n")
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


def _lines(read: RecipeFile) -> Iterator[str]:
    """Yield the lines of the page; an empty one stands between its parts."""
    from rksp.recipe_files.said.origin import in_full, recipe_table, shown

    yield f"{read.path}: {read.trainer}, {read.understood} of {read.settings} settings read"
    origins = {f.name: in_full(f.origin) for f in read.fields}
    yield from recipe_table({f.name: f.value for f in read.fields}, origins)
    if line := _assumed(read):
        yield from ("", line)
    if read.unread:
        yield from ("", *(f"Unread: {one}" for one in read.unread))
    if read.starts_trained:
        yield from ("", "Start: trained weights")
    if read.target is None:
        yield from ("", f"Model: none; {read.target_missing}")
    else:
        yield from ("", f"Model: {read.target.name}")
        yield from (f"  --set {key}={shown(x)}" for key, x in read.target.overrides.items())
        yield from (f"  {note}" for note in read.target.notes)
    for note in read.notes:
        yield from ("", f"Note: {note}")
