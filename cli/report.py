"""`rksp report` and `rksp diff`: stored reports, their schemas, and pages with sliders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli.options import (
    SHORT,
    Given,
    Panel,
    brief,
    print_json,
    refuse_unused,
    with_options,
)
from rksp.cli.rendering import command_line, conclude, emit, intact, load, outputs
from rksp.cli.shared_options import DiffOutput, ModelOptions, ReportOutput, RunOptions
from rksp.ground.errors import InputError
from rksp.ground.files import absent, atomic_write, check_writable
from rksp.recipe import Recipe
from rksp.report.formats import schema_of
from rksp.report.glossary import described

_FAIL_ON = "Exit with 1 for a new or worse issue of this level: error, warning or never."

if TYPE_CHECKING:
    from rksp.documents.base import Document


_MODEL = Panel(title="Sliders", only=("overrides", "task", "offline", "allow_hub"))


@with_options
@brief("file sliders schema learning_rate recipe_file overrides output_format output")
def report(
    context: typer.Context,
    recipe: Annotated[Given[Recipe], Panel(title="Sliders", only=SHORT)],
    of: Annotated[RunOptions, Panel(title="Sliders", only=("recipe_file", "devices"))],
    model: Annotated[ModelOptions, _MODEL],
    output: Annotated[ReportOutput, Panel(title="Output")],
    file: Annotated[
        str | None,
        typer.Argument(
            help="A JSON report of rksp, or the log of rksp watch; with --sliders a target, with "
            "--schema a kind of report."
        ),
    ] = None,
    sliders: Annotated[
        bool, typer.Option("--sliders", help="Write a page whose sliders move the answer.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a kind of report.")
    ] = False,
) -> int:
    """Show a stored report in any format, or a page whose sliders move the answer."""
    if schema:
        print_json(described(schema_of(file or "score")))
        return 0
    if sliders:
        return _slid(context, file or "gpt2", recipe, of, model, output)
    refuse_unused(context, f"{' '.join(SHORT)} overrides recipe_file", "a report has its recipe")
    if file is None:
        raise InputError("rksp report needs FILE, such as what rksp score -o report.json wrote.")
    path = Path(file)
    document: Document
    if path.suffix == ".jsonl":
        from rksp.confirm.watched import watched_run

        document = watched_run(path)
    else:
        document = load(path, "")
    files = outputs(output.output_format, output.output, document.kind)
    with intact(path):
        emit(document, output.output_format, files)
    return 0


def _slid(
    context: typer.Context,
    target: str,
    recipe: Given[Recipe],
    of: RunOptions,
    model: ModelOptions,
    output: ReportOutput,
) -> int:
    from rksp.report.playground import MOVED
    from rksp.report.playground import playground as drawn

    if len(output.output) > 1 or any(Path(one).suffix != ".html" for one in output.output):
        raise InputError("--sliders writes one page; give one -o FILE.html.")
    if not output.output and sys.stdout.isatty():
        raise InputError("--sliders writes a page; give -o FILE.html, or open it from a pipe.")
    for name in output.output:
        check_writable(Path(name))
    run = of.run(target, recipe)
    run, source = run.with_model(model.resolve(run.target, run.overrides, counts=False))
    table: Any = context.find_root().command
    changed = {**dict.fromkeys(MOVED), "target": target}
    command = command_line(context, table.commands["score"], changed)
    known = {name: value for name, value in run.recipe if name not in recipe.typed}
    page = drawn(source, run.recipe, command, known)
    if not output.output:
        print(page, end="")
    for name in output.output:
        atomic_write(Path(name), page)
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
    for one in (old, new):
        if not Path(one).exists():
            raise InputError(f"{absent(one)} rksp diff compares two reports or run files.")
        if Path(one).is_dir():
            raise InputError(f"{one} is a folder; rksp diff compares two reports or run files.")
    sides = [one if is_run_file(one) else load(Path(one)) for one in (old, new)]
    document = compared(*sides, fail_on=output.fail_on)
    emit(document, output.output_format, [])
    return conclude(document, exit_zero=output.exit_zero)
