"""`rksp playground`: the answer as a page whose sliders move it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.cli.options import Given, Panel, brief, with_options
from rksp.cli.rendering import command_line
from rksp.cli.shared_options import ModelOptions, RunOptions
from rksp.recipe import Recipe

Target = Annotated[
    str,
    typer.Argument(
        help="A model type, a config.json, a Hub id, or a run file that describes its model."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File of the page; default stdout.",
        metavar="FILE",
        rich_help_panel="Output",
    ),
]
_MODEL = Panel(title="Model", leave_out=("max_params", "trust_remote_code"))


@brief(
    *("target", "learning_rate", "recipe_file", "warmup_steps", "max_steps", "batch_size"),
    *("sequence_length", "optimizer", "overrides", "output"),
)
@with_options
def playground(
    context: typer.Context,
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[RunOptions, Panel(title="Recipe")],
    model: Annotated[ModelOptions, _MODEL],
    target: Target = "gpt2",
    output: Output = None,
) -> int:
    """Write a page whose sliders move the answer: rate, warm-up, steps, batch, width, depth."""
    from rksp.ground.files import atomic_write, check_writable
    from rksp.report.playground import MOVED
    from rksp.report.playground import playground as drawn

    if output is not None:
        check_writable(output)
    run = of.run(target, recipe)
    run, source = run.met(model.resolve(run.target, run.overrides, counts=False))
    table: Any = context.find_root().command
    command = command_line(context, table.commands["score"], dict.fromkeys(MOVED))
    known = {name: value for name, value in run.recipe if name not in recipe.typed}
    page = drawn(source, run.recipe, command, known)
    if output is None:
        print(page, end="")
    else:
        atomic_write(output, page)
    return 0
