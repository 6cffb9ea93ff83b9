"""`rksp audit`: releases and settings that are known to train wrongly."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import AsFormat, Devices, Env, Gpu, TextOrJson
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rksp.checks.advisories import Audit, Unsettled
    from rksp.documents.finding import Finding
    from rksp.recipe_files.said.origin import RecipeFile

_MOST_KEYS = 4  # of those that advisories lack, named in the line that counts them


def audit(
    run_file: Annotated[
        Path | None, typer.Argument(help="A trainer's run file; without one, releases alone count.")
    ] = None,
    env: Env = None,
    gpu: Gpu = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model type or a config.json, where the run file names no such."),
    ] = None,
    as_format: AsFormat = None,
    devices: Devices = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Do not report these advisories; repeatable.")
    ] = None,
    output_format: TextOrJson = "text",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List what rksp cannot decide, too.")
    ] = False,
) -> int:
    """Name the known faults of the software that trains; exit with 1 at one of level error."""
    from rksp.checks.selection import select_findings

    select_findings((), (), ignore or ())
    read = None
    if run_file is not None:
        from rksp.recipe_files.registry import read_recipe_file

        with reading(f"the run file {one_line(str(run_file), 200)}"):
            read = read_recipe_file(run_file, trainer=as_format, devices=devices)
    found, said = audited(read, _settings(read, model), env, gpu, here=read is None)
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


def audited(
    read: RecipeFile | None,
    config: object,
    env: Path | None,
    gpu: str | None,
    *,
    here: bool = False,
) -> tuple[Audit | None, tuple[str, ...]]:
    """Match the advisories with the software of a run; the day is that of the system's clock.

    Args:
        read: The run file, if there is one.
        config: The model's configuration; None if it is not known.
        env: A file that pins the software.
        gpu: The name of the accelerator; default what torch says, if it was loaded anyway.
        here: Judge this Python, whether the run's trainer is installed in it or not.

    Returns:
        What was found, None where the software is not known; and what to say of it, a line each.

    Raises:
        InputError: The file cannot be read.
    """
    from rksp.recipe_files.said.facts import run_facts, trainer_of

    trainer = "" if read is None else trainer_of(read.reader)[1]
    if env is None and not here and not trainer:
        return None, ()
    from rksp.checks.environment import installed_here, read_environment

    if env is None and not here and not installed_here((trainer,)).releases:
        return None, (
            f"The software of this run is not checked, as {trainer} is not installed here; give "
            "--env FILE, such as what pip freeze prints where you train.",
        )
    from rksp.checks.advisories import audit, packages
    from rksp.checks.conditions import gpu_facts, model_facts

    if env is None:
        environment, torch = installed_here(packages()), sys.modules.get("torch")
        if gpu is None and torch is not None and torch.cuda.is_available():
            gpu = torch.cuda.get_device_name(0)
    else:
        with reading(f"the software in {one_line(str(env), 200)}"):
            environment = read_environment(env)
    facts = {**model_facts(config), **gpu_facts(gpu), **({} if read is None else run_facts(read))}
    found = audit(environment, facts, datetime.date.today())
    return found, tuple(_counted(found))


def known_faults(read: RecipeFile | None, env: Path | None, gpu: str | None) -> Iterator[str]:
    """Yield a line for each known fault of what all runs of a file have, and what is not known."""
    found, said = audited(read, _settings(read, None), env, gpu)
    for finding in () if found is None else found.findings:
        yield f"{finding.level} {finding.code}: {finding.text}"
    yield from said


def _counted(found: Audit) -> Iterator[str]:
    """Yield a line for what is not shown: further findings, and what nobody can decide."""
    if found.more:
        yield f"{found.more} more advisories match; the five worst are shown."
    if found.unsettled:
        lacks = Counter(key for _, lacking in found.unsettled for key in lacking)
        keys = ", ".join(key.replace("_", " ") for key, _ in lacks.most_common(_MOST_KEYS))
        more = " and more" if len(lacks) > _MOST_KEYS else ""
        yield (
            f"{len(found.unsettled)} advisories depend on what rksp does not know of this run "
            f"({keys}{more}); rksp audit -v lists them."
        )
    for package, count in found.unpinned.items():
        yield f"Not checked: {count} advisories for {package}, whose release is not pinned."


def _settings(read: RecipeFile | None, model: str | None) -> object:
    """Return the settings of the model as stored, without building a configuration."""
    from rksp.models.settings import stored_settings

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
