"""`rksp fix` and `rksp audit`: a run file's faults and edits; and its recipe."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from rksp.calls.fix import fix as fixed
from rksp.checks.advisories import Unsettled
from rksp.checks.registry import select_findings
from rksp.checks.software import audited
from rksp.cli.mistakes import refuse_other
from rksp.cli.options import Panel, TextOrJson, answer, brief, print_json, print_lines, with_options
from rksp.cli.shared_options import RunOptions, say
from rksp.documents.finding import Finding
from rksp.documents.terms import Software
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.ground.text import one_line, printable
from rksp.models.resolve import stored_settings
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.origin import (
    RecipeFile,
    assumed_line,
    in_full,
    recipe_table,
    shown,
)


@with_options
def fix(
    file: Annotated[
        str, typer.Argument(help="A trainer's run file; FILE.py::NAME for one of many.")
    ],
    of: Annotated[
        RunOptions, Panel(title="Recipe", leave_out=("recipe_file", "is_pretrained", "is_strict"))
    ],
    write: Annotated[bool, typer.Option("--write", help="Change the file in place.")] = False,
    output_format: TextOrJson = "text",
) -> int:
    """Show what would remove the findings of a run file, as a diff; --write changes the file.

    The exit code is that of the file as it stands on the disk afterwards.
    """
    refuse_other(file, "score")
    found = fixed(file, write=write, devices=of.devices, trainer=of.as_format)
    if output_format == "json":
        print_json(found.document)
    else:
        sys.stdout.write(printable(found.diff))
        print_lines(found.lines(file))
    return (found.after if write else found.before).exit_code


@with_options
@brief("run_file env gpu ignore verbose")
def audit(
    run_file: Annotated[
        Path | None, typer.Argument(help="A trainer's run file; without one, releases alone count.")
    ] = None,
    *,
    software: Annotated[Software, Panel(title="Recipe")],
    of: Annotated[
        RunOptions, Panel(title="Recipe", leave_out=("recipe_file", "is_pretrained", "is_strict"))
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A model type or a config.json, where the run file names no such."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Do not report these advisories; repeatable.")
    ] = None,
    output_format: TextOrJson = "text",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List what rksp cannot decide, too.")
    ] = False,
) -> int:
    """Name the known faults of the software that trains; exit with 1 at one of level error."""
    select_findings((), (), ignore or ())
    read = None
    if run_file is not None:
        if not run_file.exists() and not run_file.suffix:
            raise InputError(f"There is no run file {run_file}; --model names a model.")
        refuse_other(str(run_file), "score")
        with reading(f"the run file {one_line(str(run_file), 200)}"):
            read = read_recipe_file(run_file, trainer=of.as_format, devices=of.devices)
    found, said = audited(
        read, _settings(read, model), software.env, software.gpu, here=read is None
    )
    if found is None:
        unknown = f"rksp knows no package of its trainer, {definite(read).trainer}"
        raise InputError(
            said[0]
            if said
            else f"{run_file} cannot be audited: {unknown}; give --env FILE, such as what pip "
            "freeze prints where you train."
        )
    findings = select_findings(found.findings, (), ignore or ())
    unsettled = [
        {
            "code": one.id,
            "lacks": lacks,
            "affected": one.ranges,
            "source": one.source,
        }
        for one, lacks in found.unsettled
    ]
    told = [finding.model_dump(mode="json") for finding in findings]
    shown = _audited(findings, found.unsettled if verbose else ())
    answer(output_format, {"findings": told, "unsettled": unsettled}, shown)
    say(said)
    return int(any(finding.level == "error" for finding in findings))


def known_faults(
    read: RecipeFile | None, software: Software
) -> tuple[Sequence[Finding], Sequence[str]]:
    """Return the known faults of what all runs of a file have, and what is not known."""
    if read is None:
        return (), ()
    found, said = audited(read, _settings(read, None), software.env, software.gpu)
    return () if found is None else found.findings, said


def _settings(read: RecipeFile | None, model: str | None) -> object:
    target = None if read is None else read.target
    if model is not None:
        found = stored_settings(model)[0]
        if found is None:
            raise InputError(f"--model {model!r} is no model type and no config.json; give one.")
        return found
    with contextlib.suppress(InputError):  # a Hub model that is not here has no known conditions
        found = None if target is None else stored_settings(target.name)[0]
        return None if found is None or target is None else {**found, **target.overrides}
    return None


def _audited(findings: Sequence[Finding], unsettled: Iterable[Unsettled]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.level:<7}  {finding.code}  {finding.message}"
        yield f"         {finding.fix}"
        yield f"         {finding.source}"
    if not findings:
        yield "No known fault of these releases is established for this run."
    for one, lacks in unsettled:
        keys = ", ".join(lacks).replace("_", " ")
        yield f"unknown  {one.id}  {one.summary} Affected {one.ranges}. Not known: {keys}."
        yield f"         {one.source}"


def explain_file(file: Path, of: RunOptions, rows: int | None, output_format: str) -> int:
    """Show the recipe in a file: each field, its origin, and all assumptions."""
    given = {} if rows is None else {"rows": rows}
    with reading(f"the run file {one_line(str(file), 200)}"):
        read = read_recipe_file(file, trainer=of.as_format, devices=of.devices, given=given)
        read.recipe()  # a file that means nothing here is refused, with nothing on stdout
    answer(output_format, _document(read), map(str.rstrip, _lines(read)))
    return 0


def _document(read: RecipeFile) -> dict[str, object]:
    plain = ("trainer", "understood", "settings", "unknown", "reader", "names_weights", "notes")
    target = read.target
    return {name: getattr(read, name) for name in plain} | {
        "file": str(read.path),
        "fields": {
            f.name: {"value": f.value, "origin": dataclasses.asdict(f.origin)} for f in read.fields
        },
        "assumed": _assumed(read),
        "unread": [dataclasses.asdict(one) | {"file": str(read.path)} for one in read.unread],
        "target": None
        if target is None
        else {"name": target.name, "overrides": dict(target.overrides), "notes": target.notes},
        "target_missing": "" if target is not None else read.target_missing,
    }


def _assumed(read: RecipeFile) -> str:
    try:
        return assumed_line(read.recipe(), read.origins())
    except InputError:
        return ""


def _sure(read: RecipeFile) -> str:
    """Say how many fields were found by name, and how many nobody can tell; mostly empty."""
    by_name = sum(field.origin.by_name for field in read.fields)
    said = [f"{by_name} found by name"] if by_name and read.reader != "by name" else []
    said += [f"{len(read.unknown)} unknown"] if read.unknown else []
    return "".join(f"; {one}" for one in said)


def _lines(read: RecipeFile) -> Iterator[str]:
    read_of = f"{read.understood} of {read.settings} settings read{_sure(read)}"
    yield f"{read.path}: {read.trainer}, {read_of}"
    origins = {f.name: in_full(f.origin) for f in read.fields}
    yield from recipe_table({f.name: f.value for f in read.fields}, origins)
    if line := _assumed(read):
        yield from ("", line)
    if read.unread:
        yield from ("", *(f"Unread: {one}" for one in read.unread))
    if read.names_weights:
        yield from ("", "Start: trained weights")
    if read.target is None:
        yield from ("", f"Model: none; {read.target_missing}")
    else:
        yield from ("", f"Model: {read.target.name}")
        yield from (f"  --set {key}={shown(x)}" for key, x in read.target.overrides.items())
        yield from (f"  {note}" for note in read.target.notes)
    for note in read.notes:
        yield from ("", f"Note: {note}")
