"""`rksp runs`: what a team's past runs say, and how well rksp would have predicted them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import (
    Given,
    Panel,
    TextOrJson,
    brief,
    flag_names,
    with_options,
)
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.rendering import emit, made_with
from rksp.cli.shared_options import ModelOptions, RunOptions
from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.text import one_line
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.models.source import ModelSource


@brief(
    *("paths", "target", "metric", "recipe_file", "learning_rate", "warmup_steps", "max_steps"),
    *("batch_size", "sequence_length", "optimizer", "overrides", "output_format"),
)
@with_options
def runs(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Files and folders of past runs: CSV, JSON Lines, Parquet, trainer_state.json, "
                "TensorBoard, Lightning, W&B, text logs, what rksp records."
            )
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
        run, source = run.met(model.resolve(run.target, run.overrides, counts=False))
    return source, run.recipe
