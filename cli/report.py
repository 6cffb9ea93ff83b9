"""`rksp report`, `diff` and `schema`: stored reports; `rksp runs`: past runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import (
    RUN,
    Given,
    Panel,
    TextOrJson,
    brief,
    flag_names,
    print_json,
    with_options,
)
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.rendering import conclude, emit, intact, load, made_with, outputs
from rksp.cli.shared_options import DiffOutput, ModelOptions, ReportOutput, RunOptions
from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.errors import InputError
from rksp.ground.text import one_line
from rksp.recipe import Recipe
from rksp.report.formats import schema_of
from rksp.report.glossary import described

_FAIL_ON = "Exit with 1 for a new or worse issue of this level: error, warning or never."

if TYPE_CHECKING:
    from rksp.documents.base import Document
    from rksp.models.source import ModelSource


@with_options
def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp, or the log of rksp watch.")],
    output: Annotated[ReportOutput, Panel(title="Output")],
) -> int:
    """Show a stored report in any format."""
    document: Document
    if file.suffix == ".jsonl":
        from rksp.confirm.watched import watched_run

        document = watched_run(file)
    else:
        document = load(file, "")
    files = outputs(output.output_format, output.output, document.kind)
    with intact(file):
        emit(document, output.output_format, files)
    return 0


def schema(
    command: Annotated[
        str, typer.Argument(help="score, confirm, grid, diff, runs or watch.")
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


@with_options
@brief(f"paths target metric {RUN} output_format")
def runs(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files and folders of past runs: CSV, JSON Lines, Parquet, trainer_state.json, "
            "TensorBoard, Lightning, W&B, text logs, what rksp records."
        ),
    ],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[RunOptions, Panel(title="Recipe")],
    model: Annotated[ModelOptions, Panel(title="Model", leave_out=("max_params",))],
    target: Annotated[
        str | None,
        typer.Option(help="The model that the runs trained, as for rksp score, if they name none."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="The loss, by its tracker's name; the default knows the usual names."),
    ] = None,
    output_format: TextOrJson = "text",
) -> int:
    """Show what past runs say: their labels, their sweeps, and how well rksp predicts them."""
    from rksp.classifiers.edge_model import load_edge_model
    from rksp.documents.own_runs import RunsReport
    from rksp.own_runs.history import read_history
    from rksp.own_runs.scorecard import history_report, scorecard

    source, asked = _question(target, recipe, model, of)
    shown = one_line(", ".join(map(str, paths)), 200)
    with stdout_for_us_alone(), reading(f"the runs {shown}", PAST_RUNS):
        history = read_history(paths, source, asked, metric=metric)
    edges = load_edge_model()
    report = RunsReport(
        verdict="doubtful" if history.doubt else "read",
        target=target,
        recipe=asked,
        history=history_report(history, edges),
        scorecard=scorecard(history, edges),
        provenance=made_with(context),
    ).finite()
    emit(report, output_format, [])
    return 0


def _question(
    target: str | None,
    recipe: Given[Recipe],
    model: ModelOptions,
    of: RunOptions,
) -> tuple[ModelSource | None, Recipe]:
    """Return the model and the recipe that fill in what the runs do not say."""
    quiet_transformers()
    if target is None and of.recipe_file is None:
        return None, Recipe.parse(recipe.values, flag_names(Recipe))
    run = of.run(target or "", recipe)
    if target is None:
        return None, run.recipe
    with stdout_for_us_alone():
        run, source = run.with_model(model.resolve(run.target, run.overrides, counts=False))
    return source, run.recipe
