"""`rksp transfer`: scale a learning rate from a small model to a large one."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from rksp.cli.model_options import ModelOptions
from rksp.cli.options import Devices, Given, Panel, RecipeFile, with_options
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.recipe_source import requested_run
from rksp.errors import InputError
from rksp.recipe import Recipe
from rksp.text import short

_SMALL = "The model that the rate was tuned on, or its run file."
_LARGE = "The model to carry the rate to, or its run file."


@with_options
def transfer(
    small: Annotated[str, typer.Argument(help=_SMALL)],
    large: Annotated[str, typer.Argument(help=_LARGE)],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    model: Annotated[ModelOptions, Panel(title="Model")],
    recipe_file: RecipeFile = None,
    devices: Devices = None,
    output_format: Annotated[
        Literal["text", "json"], typer.Option("--format", help="text or json.")
    ] = "text",
) -> int:
    """Scale the learning rate tuned on SMALL to LARGE by the ratio of their edges."""
    from rksp.classifiers.edge_model import load_edge_model
    from rksp.classifiers.edge_transfer import transfer as carry
    from rksp.risk import configured_inputs

    runs = [requested_run(name, recipe, recipe_file, devices) for name in (small, large)]
    rate = runs[0].recipe.learning_rate
    if rate is None:
        raise InputError("The learning rate is missing; give the one tuned on SMALL with --lr.")
    quiet_transformers()
    with stdout_for_us_alone():
        inputs = [
            configured_inputs(model.resolve(run.target, run.overrides).config, run.recipe)
            for run in runs
        ]
    found = carry(load_edge_model(), inputs[0], inputs[1], rate)
    if output_format == "json":
        document = {"rate": found.rate, "edge_shift": found.edge_shift, "rules": found.rules}
        json.dump({"small_rate": rate} | document, sys.stdout, indent=1, sort_keys=True)
        sys.stdout.write("\n")
        return 0
    sizes = [f"{x.width} wide, {x.depth} deep" for x in inputs]
    typer.echo(
        f"{short(found.rate)} for {large} ({sizes[1]}), "
        f"from {short(rate, 6)} for {small} ({sizes[0]})"
    )
    typer.echo(f"  the edge moves by {found.edge_shift:+.2f} decades")
    beside = ", ".join(f"{name} {short(value)}" for name, value in found.rules.items())
    typer.echo(f"  other scaling rules: {beside}")
    return 0
