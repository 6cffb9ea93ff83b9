"""`rksp fix`: the fixes of a run file as edits of its text, and the answer that follows."""

from __future__ import annotations

import difflib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli.options import Panel, with_options
from rksp.cli.shared_options import RunOptions
from rksp.ground.budgets import reading
from rksp.ground.files import atomic_write
from rksp.ground.text import one_line, printable

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport

_ROUNDS = 4  # a fix may bring forth another finding


@with_options
def fix(
    file: Annotated[
        str, typer.Argument(help="A trainer's run file; FILE.py::NAME for one of many.")
    ],
    of: Annotated[
        RunOptions, Panel(title="Recipe", leave_out=("recipe_file", "is_pretrained", "is_strict"))
    ],
    write: Annotated[bool, typer.Option("--write", help="Change the file itself.")] = False,
) -> int:
    """Show what would remove the findings of a run file, as a diff; --write changes the file."""
    diff, report = fixed(file, write=write, devices=of.devices, trainer=of.as_format)
    if not diff:
        print("rksp: No fix of a finding can be written into this file safely.", file=sys.stderr)
    from rksp.report.formats import render

    sys.stdout.write(printable(diff + render(report, "brief")))
    return report.exit_code


def fixed(file: str, *, write: bool = False, **read: Any) -> tuple[str, ScoreReport]:
    """Apply all edits to a copy of a run file, until no finding has another.

    Args:
        file: The file.
        write: Write what became of the copy into the file.
        **read: `devices` and `trainer` of `scored`.

    Returns:
        The changes as a diff, and the last answer.

    Raises:
        InputError: The file cannot be scored.
    """
    from rksp.recipe_files.said.edits import applied
    from rksp.report.finish import edits_of

    name, mark, part = file.partition("::")
    with tempfile.TemporaryDirectory() as folder:
        report = scored(file, **read)
        copy = Path(folder, Path(name).name)
        shutil.copyfile(name, copy)
        before = after = copy.read_bytes().decode()
        for _ in range(_ROUNDS):
            edits = [one for one in edits_of(report) if one.file is not None]
            if not edits:
                break
            after = applied(after, edits)
            copy.write_bytes(after.encode())
            report = scored(f"{copy}{mark}{part}", called=file, **read)
    if write and after != before:
        atomic_write(Path(name), after)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    return "".join(diff), report


def scored(
    target: str,
    *,
    called: str = "",
    recipe: Mapping[str, Any] | None = None,
    devices: int | None = None,
    trainer: str | None = None,
) -> ScoreReport:
    """Return the report of a target by its configuration alone, with a command that leads on.

    Args:
        target: As for `rksp.score`.
        called: What the command calls it, if it is a copy.
        recipe: Fields that replace those of the run file.
        devices: See `rksp.run.Run.read`.
        trainer: Likewise.

    Raises:
        InputError: The target cannot be scored.
    """
    from rksp.documents.options import MeasureOptions
    from rksp.models.resolve import resolve
    from rksp.report.finish import finished, summarized
    from rksp.report.gate import DEFAULT_BAR, Gate
    from rksp.run import Question, Run

    with reading(f"the run file {one_line(target, 200)}"):
        run = Run.read(target, recipe or {}, devices=devices, trainer=trainer)
        source = resolve(run.target, overrides=run.overrides, counts=False)
        question, _ = Question.of(run, source).audited()
        report = question.reported([question.evaluated(MeasureOptions(evidence="config"))])
    report, _ = finished(report, question.run, Gate.parse(str(DEFAULT_BAR)))
    command = shlex.join(["rksp", "score", called or target])
    return summarized(report.model_copy(update={"next_command": command}))
