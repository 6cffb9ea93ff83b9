"""`rksp transfer` and `rksp playground`: what configurations alone say of a learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli.options import RUN, Given, Panel, TextOrJson, answer, brief, with_options
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.rendering import command_line
from rksp.cli.shared_options import ModelOptions, RunOptions, learned
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.classifiers.edge_inputs import EdgeInputs
    from rksp.question.question import Question

_SMALL = "The model that the rate was tuned on, or its run file."
_LARGE = "The model to carry the rate to, or its run file."


@with_options
@brief(f"small large {RUN} past output_format")
def transfer(
    small: Annotated[str, typer.Argument(help=_SMALL)],
    large: Annotated[str, typer.Argument(help=_LARGE)],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[RunOptions, Panel(title="Recipe", leave_out=("as_format",))],
    model: Annotated[ModelOptions, Panel(title="Model")],
    past: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs", help="Learn from past runs: files or folders, as for rksp why; repeatable."
        ),
    ] = None,
    output_format: TextOrJson = "text",
) -> int:
    """Scale the learning rate tuned on SMALL to LARGE by the ratio of their edges."""
    from rksp.assessment.risk import beyond, uncarried
    from rksp.classifiers.edge_model import CONFIGURED, load_edge_model, shifts
    from rksp.question.question import Question

    runs = [of.run(name, recipe) for name in (small, large)]
    rate = runs[0].recipe.learning_rate
    if rate is None:
        raise InputError("The learning rate is missing; give the one tuned on SMALL with --lr.")
    quiet_transformers()
    with stdout_for_us_alone():
        asked = [
            Question.of(run, model.resolve(run.target, run.overrides, counts=False)) for run in runs
        ]
        origin, aim = inputs = [_inputs(question) for question in asked]
        doubts = {reason for one in asked for reason in uncarried(one.run.recipe, one.source.start)}
    informed = learned(asked[1], past or ())
    edges, own_runs = informed.classifier or load_edge_model(), informed.own_runs
    doubts |= {text for x in inputs for text in beyond(edges.predict(x), x)}
    moved = shifts(edges, origin, aim)
    rules = {name: rate * 10**by for name, by in moved.items()}
    carried_to, by = rules.pop("rksp"), moved["rksp"]
    answered, shift = (None, None) if doubts else (carried_to, by)
    errors = dict(edges.card.get("transfer", {}))
    errors["rksp"] = errors.pop(CONFIGURED, {})
    document: dict[str, Any] = {"small_rate": rate, "rate": answered, "edge_shift": shift}
    document |= {"rules": rules, "errors": errors, "reasons": sorted(doubts)}
    if own_runs is not None:
        document["own_runs"] = own_runs.model_dump(mode="json")
    sizes = [f"{x.width} wide, {x.depth} deep" for x in inputs]
    carried = "cannot tell the rate" if answered is None else short(answered)
    lines = [f"{carried} for {large} ({sizes[1]}), from {short(rate, 6)} for {small} ({sizes[0]})"]
    lines += [f"  not reliable here: {text}" for text in sorted(doubts)]
    if shift is not None:
        lines.append(f"  the edge moves by {shift:+.2f} decades, from the configurations alone")
    rows: list[tuple[str, ...]] = [("rule", "rate", "edge missed by", "best rate missed by")]
    rows += [_row(name, value, errors) for name, value in {"rksp": answered, **rules}.items()]
    lines += [f"  {''.join(cell.ljust(16) for cell in row).rstrip()}" for row in rows]
    about = "decades, the median over pairs of sizes of teams left out of the fit"
    answer(output_format, document, [*lines, f"  (missed by: {about})"])
    return 0


def _inputs(asked: Question) -> EdgeInputs:
    from rksp.assessment.risk import declared_inputs
    from rksp.models.declared import Declared

    declared = Declared(asked.source.config, asked.source.task)
    try:
        return declared_inputs(declared, asked.run.recipe)
    except InputError as error:
        raise InputError(f"{asked.run.target}: {error}; a rate cannot be carried to it.") from None


def _row(
    rule: str, rate: float | None, errors: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    missed = (errors.get(rule, {}).get(of) for of in ("edge", "best"))
    return (
        rule,
        "–" if rate is None else short(rate),
        *("–" if value is None else f"{value:.2f}" for value in missed),
    )


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


@with_options
@brief(f"target {RUN} output")
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
    run, source = run.with_model(model.resolve(run.target, run.overrides, counts=False))
    table: Any = context.find_root().command
    command = command_line(context, table.commands["score"], dict.fromkeys(MOVED))
    known = {name: value for name, value in run.recipe if name not in recipe.typed}
    page = drawn(source, run.recipe, command, known)
    if output is None:
        print(page, end="")
    else:
        atomic_write(output, page)
    return 0
