"""`rksp transfer`: scale a learning rate from a small model to a large one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rksp.cli.model_options import ModelOptions
from rksp.cli.options import Devices, Given, Panel, RecipeFile, TextOrJson, with_options
from rksp.cli.own_runs import learned_from
from rksp.cli.process import quiet_transformers, stdout_for_us_alone
from rksp.cli.recipe_source import requested_run
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.classifiers.edge_inputs import EdgeInputs
    from rksp.cli.recipe_source import RequestedRun
    from rksp.models.source import ModelSource

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
    evidence: Annotated[
        Literal["config", "gradient"],
        typer.Option(
            help="config: build neither model; gradient: measure both as a score does, which "
            "takes a minute and is no more accurate."
        ),
    ] = "config",
    past: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs", help="Learn from past runs: files or folders, as for rksp runs; repeatable."
        ),
    ] = None,
    output_format: TextOrJson = "text",
) -> int:
    """Scale the learning rate tuned on SMALL to LARGE by the ratio of their edges."""
    from rksp.assessment.basis import beyond
    from rksp.assessment.model_choice import uncarried
    from rksp.classifiers.edge_model import load_edge_model
    from rksp.classifiers.transfer import CONFIGURED
    from rksp.classifiers.transfer import transfer as carry

    runs = [requested_run(name, recipe, recipe_file, devices) for name in (small, large)]
    rate = runs[0].recipe.learning_rate
    if rate is None:
        raise InputError("The learning rate is missing; give the one tuned on SMALL with --lr.")
    quiet_transformers()
    with stdout_for_us_alone():
        met = [run.met(model.resolve(run.target, run.overrides, counts=False)) for run in runs]
        runs, sources = [run for run, _ in met], [source for _, source in met]
        inputs = [_inputs(*pair) for pair in zip(sources, runs, strict=True)]
        origin, aim = inputs
        doubts = {
            reason
            for source, run in zip(sources, runs, strict=True)
            for reason in uncarried(run.recipe, is_pretrained=source.holds_trained)
        }
        is_cheap = evidence == "config" or bool(doubts)
        measured: Any = ({}, {}) if is_cheap else _measured(sources, runs)
    prior = load_edge_model()
    learned, own_runs = learned_from(past or (), sources[1], runs[1].recipe, prior)
    edges = learned or prior
    doubts |= {text for x in inputs for text in beyond(edges.predict(x), x)}
    found = carry(edges, origin, aim, rate, measured)
    answer, shift = (None, None) if doubts else (found.rate, found.edge_shift)
    errors = dict(edges.card.get("transfer", {}))
    configured = errors.pop(CONFIGURED, None)
    if configured is not None and not found.used:
        errors["rksp"] = configured
    if output_format == "json":
        document: dict[str, Any] = {"small_rate": rate, "rate": answer, "edge_shift": shift}
        document |= {"rules": found.rules, "errors": errors, "reasons": sorted(doubts)}
        document["measured"] = list(found.used)
        if own_runs is not None:
            document["own_runs"] = own_runs.model_dump(mode="json")
        json.dump(document, sys.stdout, indent=1, sort_keys=True)
        sys.stdout.write("\n")
        return 0
    sizes = [f"{x.width} wide, {x.depth} deep" for x in inputs]
    carried = "cannot tell the rate" if answer is None else short(answer)
    typer.echo(
        f"{carried} for {large} ({sizes[1]}), from {short(rate, 6)} for {small} ({sizes[0]})"
    )
    for text in sorted(doubts):
        typer.echo(f"  not reliable here: {text}")
    if shift is not None:
        read = "the first gradient of each" if found.used else "the configurations alone"
        typer.echo(f"  the edge moves by {shift:+.2f} decades, from {read}")
    rates = {"rksp": answer} | found.rules
    columns = ("rule", "rate", "edge missed by", "best rate missed by")
    rows = [columns, *(_row(name, value, errors) for name, value in rates.items())]
    for row in rows:
        typer.echo("  " + "".join(cell.ljust(16) for cell in row).rstrip())
    typer.echo("  (median decades between shapes of public sources that were left out of the fit)")
    return 0


def _measured(
    sources: Sequence[ModelSource], runs: Sequence[RequestedRun]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    from rksp.assessment.transfer import measured_pair
    from rksp.cli.process import with_threads
    from rksp.cli.progress import live_progress
    from rksp.options import MeasureOptions

    small, large = zip(sources, (run.recipe for run in runs), strict=True)
    options = with_threads(MeasureOptions())
    try:
        with live_progress() as report:
            return measured_pair(
                small, large, options, lambda done, total, step: report(step, done, total)
            )
    except InputError as error:
        raise InputError(f"{error} Or carry the rate unmeasured: --evidence config.") from None


def _inputs(source: ModelSource, run: RequestedRun) -> EdgeInputs:
    from rksp.assessment.risk import declared_inputs
    from rksp.models.declared import Declared

    try:
        return declared_inputs(Declared(source.config, source.task), run.recipe)
    except InputError as error:
        raise InputError(f"{run.target}: {error}; a rate cannot be carried to it.") from None


def _row(
    rule: str, rate: float | None, errors: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    missed = (errors.get(rule, {}).get(of) for of in ("edge", "best"))
    return (
        rule,
        "–" if rate is None else short(rate),
        *("–" if value is None else f"{value:.2f}" for value in missed),
    )
