"""`rksp fix`: the fixes of a run file as edits of its text, and the answer that follows."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, with_options
from rksp.cli.run_options import RunOptions
from rksp.ground.errors import InputError
from rksp.ground.files import atomic_write
from rksp.ground.model import definite
from rksp.ground.text import printable

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
    options = ["--as", of.as_format] if of.as_format else []
    options += ["--devices", str(of.devices)] if of.devices else []
    before, after, report = fixed(file, options)
    name = file.partition("::")[0]
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    sys.stdout.write(printable("".join(diff)))
    if write and after != before:
        atomic_write(Path(name), after)
    if after == before:
        print("rksp: No fix of a finding can be written into this file safely.", file=sys.stderr)
    from rksp.report.formats import render

    sys.stdout.write(printable(render(report, "brief")))
    return report.exit_code


def fixed(file: str, options: list[str]) -> tuple[str, str, ScoreReport]:
    """Apply all edits to a copy of a run file, until no finding has another.

    Args:
        file: The file; nothing is written to it.
        options: More options of `rksp score`.

    Returns:
        The text before and after, and the last answer.

    Raises:
        InputError: The file cannot be scored.
    """
    from rksp.recipe_files.said.edits import applied
    from rksp.report.finish import edits_of

    name, mark, part = file.partition("::")
    with tempfile.TemporaryDirectory() as folder:
        report = scored(file, options)
        copy = Path(folder, Path(name).name)
        shutil.copyfile(name, copy)
        before = after = copy.read_bytes().decode()
        for _ in range(_ROUNDS):
            edits = [one for one in edits_of(report) if one.file is not None]
            if not edits:
                break
            after = applied(after, edits)
            copy.write_bytes(after.encode())
            report = scored(f"{copy}{mark}{part}", options)
        said = definite(report.summary)
        command = said.next_command.replace(str(copy), name)
        said = said.model_copy(update={"next_command": command})
    return before, after, report.model_copy(update={"summary": said})


def scored(target: str, options: list[str]) -> ScoreReport:
    """Return the report of `rksp score` from the configuration alone, in this process.

    Raises:
        InputError: The target cannot be scored; the sentence of the command.
    """
    from rksp.cli.app import main
    from rksp.documents.score import ScoreReport

    out, errors = StringIO(), StringIO()
    arguments = ["score", target, "--evidence", "config", "--format", "json", *options]
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            main(arguments)
    except SystemExit as end:
        if end.code not in (0, 1, 4):
            said = errors.getvalue().strip().splitlines() or ["rksp: it cannot be scored."]
            raise InputError(said[-1].removeprefix("rksp: ")) from None
    return ScoreReport.model_validate(json.loads(out.getvalue()))
