"""`rksp report`, `diff` and `schema`: stored reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, print_json, with_options
from rksp.cli.rendering import conclude, emit, intact, load, outputs
from rksp.cli.shared_options import DiffOutput, ReportOutput
from rksp.ground.errors import InputError
from rksp.ground.files import read_head
from rksp.report.formats import schema_of
from rksp.report.glossary import described

_STORE = b"SQLite format 3"  # how a grid's store begins
_FAIL_ON = "Exit with 1 for a new or worse issue of this level: error, warning or never."

if TYPE_CHECKING:
    from rksp.documents.base import Document


@with_options
def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp, or the log of rksp watch.")],
    output: Annotated[ReportOutput, Panel(title="Output")],
) -> int:
    """Show a stored report in any format."""
    document: Document
    _refuse_other(file)
    if file.suffix == ".jsonl":
        from rksp.confirm.watched import watched_run

        document = watched_run(file)
    else:
        document = load(file, "")
    files = outputs(output.output_format, output.output, document.kind)
    with intact(file):
        emit(document, output.output_format, files)
    return 0


def _refuse_other(file: Path) -> None:
    """Name the command that shows a file which is no report.

    Raises:
        InputError: It is the store of a grid, or a run file.
    """
    from rksp.question.run import is_run_file

    if file.is_file() and read_head(file, len(_STORE)) == _STORE:
        raise InputError(f"{file} is the store of a grid; show it with rksp grid {file}.")
    if file.suffix != ".json" and is_run_file(str(file)):
        raise InputError(f"{file} is a run file and no report; judge it with rksp score {file}.")


def schema(
    command: Annotated[
        str, typer.Argument(help="score, confirm, grid, diff, why or watch.")
    ] = "score",
) -> int:
    """Print the JSON Schema of the report that a command makes."""
    print_json(described(schema_of(command)))
    return 0


@with_options
def diff(
    old: Annotated[str, typer.Argument(help="The older JSON report, or a trainer's run file.")],
    new: Annotated[str, typer.Argument(help="The newer one.")],
    output: Annotated[DiffOutput, Panel(title="Output", helps={"fail_on": _FAIL_ON})],
) -> int:
    """Compare two runs: which settings and issues differ, and what each difference moves."""
    from rksp.question.run import is_run_file
    from rksp.report.diff import diff as compared

    if unknown := [one for one in output.fail_on if one not in ("error", "warning", "never")]:
        raise InputError(f"--fail-on {unknown[0]!r} is unknown; use error, warning or never.")
    sides = [one if is_run_file(one) else load(Path(one)) for one in (old, new)]
    document = compared(*sides, fail_on=output.fail_on)
    emit(document, output.output_format, [])
    return conclude(document, exit_zero=output.exit_zero)
