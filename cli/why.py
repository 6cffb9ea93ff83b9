"""`rksp why`: what became of past runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.cli.mistakes import refuse_other
from rksp.cli.options import RUN, SHORT, Given, Panel, brief, flag_names, with_options
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.rendering import emit, made_with, outputs
from rksp.cli.shared_options import ModelOptions, RunOptions, WhyOutput
from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.text import one_line
from rksp.recipe import Recipe


@with_options
@brief(f"paths target metric {RUN} output_format output")
def why(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Logs and folders of past runs: what a console showed, trainer_state.json, CSV, "
            "JSON Lines, JSON, TensorBoard, Lightning, W&B, Parquet, what rksp records."
        ),
    ],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe", only=SHORT)],
    of: Annotated[RunOptions, Panel(title="Recipe", only=("recipe_file", "devices", "as_format"))],
    model: Annotated[
        ModelOptions, Panel(title="Model", only=("overrides", "offline", "allow_hub"))
    ],
    output: Annotated[WhyOutput, Panel(title="Output")],
    target: Annotated[
        str | None,
        typer.Option(help="The model that the runs trained, as for rksp score, if they name none."),
    ] = None,
) -> int:
    """Say what became of past runs: whether they failed, when, why, and what to change."""
    from rksp.calls.why import why as told

    files = outputs(output.output_format, output.output, "why")
    given = _question(target, recipe, model, of)
    for path in paths:
        refuse_other(str(path), "why", *["score"] * (len(paths) > 1))
    shown = one_line(", ".join(map(str, paths)), 200)
    with stdout_for_us_alone(), reading(f"the runs {shown}", PAST_RUNS):
        found = told(paths, **given, metric=output.metric)
    report = found.model_copy(update={"provenance": made_with(context)})
    emit(report, output.output_format, files)
    return 0


def _question(
    target: str | None,
    recipe: Given[Recipe],
    model: ModelOptions,
    of: RunOptions,
) -> dict[str, Any]:
    """Return the model and the recipe that fill in what the runs do not say."""
    quiet_transformers()
    if target is None and of.recipe_file is None:
        Recipe.parse(recipe.values, flag_names(Recipe))
        typed = {name: recipe.values[name] for name in recipe.typed}
        return {"recipe": typed or None}
    run = of.run(target or "", recipe)
    named = None if run.read_file is None else run.read_file.target
    if target is None and named is not None:  # the run file describes its model
        run = replace(run, target=named.name, overrides=named.overrides, is_typed=False)
    if not run.target:
        return {"recipe": run.recipe}
    with stdout_for_us_alone():
        run, source = run.with_model(model.resolve(run.target, run.overrides, counts=False))
    return {"target": source, "recipe": run.recipe}
