"""`rksp audit`: releases and settings that are known to train wrongly."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, TextOrJson, with_options
from rksp.cli.run_options import RunOptions, SoftwareOptions
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rksp.checks.advisories import Unsettled
    from rksp.documents.finding import Finding
    from rksp.recipe_files.said.origin import RecipeFile


@with_options
def audit(
    run_file: Annotated[
        Path | None, typer.Argument(help="A trainer's run file; without one, releases alone count.")
    ] = None,
    *,
    software: Annotated[SoftwareOptions, Panel(title="Recipe")],
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
    from rksp.checks.registry import select_findings
    from rksp.checks.software import audited

    select_findings((), (), ignore or ())
    read = None
    if run_file is not None:
        from rksp.recipe_files.registry import read_recipe_file

        with reading(f"the run file {one_line(str(run_file), 200)}"):
            read = read_recipe_file(run_file, trainer=of.as_format, devices=of.devices)
    found, said = audited(
        read, _settings(read, model), software.env, software.gpu, here=read is None
    )
    if found is None:
        raise InputError(said[0])
    findings = select_findings(found.findings, (), ignore or ())
    if output_format == "json":
        unsettled = [{"code": one.id, "lacks": lacks} for one, lacks in found.unsettled]
        told = [finding.model_dump(mode="json") for finding in findings]
        sys.stdout.write(json.dumps({"findings": told, "unsettled": unsettled}, indent=1) + "\n")
    else:
        _print(findings, found.unsettled if verbose else ())
    for line in said:
        print(f"rksp: {one_line(line, 400)}", file=sys.stderr)
    return int(any(finding.level == "error" for finding in findings))


def known_faults(
    read: RecipeFile | None, software: SoftwareOptions
) -> tuple[Sequence[Finding], Sequence[str]]:
    """Return the known faults of what all runs of a file have, and what is not known."""
    if read is None:
        return (), ()
    from rksp.checks.software import audited

    found, said = audited(read, _settings(read, None), software.env, software.gpu)
    return () if found is None else found.findings, said


def _settings(read: RecipeFile | None, model: str | None) -> object:
    """Return the settings of the model as stored, without building a configuration."""
    from rksp.models.resolve import stored_settings

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


def _print(findings: Sequence[Finding], unsettled: Iterable[Unsettled]) -> None:
    for finding in findings:
        print(f"{finding.level:<7}  {finding.code}  {one_line(finding.message, 1000)}")
        print(f"         {one_line(finding.fix, 500)}\n         {finding.source}")
    if not findings:
        print("No known fault of these releases is established for this run.")
    for one, lacks in unsettled:
        keys = ", ".join(lacks).replace("_", " ")
        print(f"unknown  {one.id}  {one.summary} Not known: {keys}.")
    sys.stdout.flush()
