"""`python -m lab`: train labelled runs, pack them, describe them, fit models to them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lab.bench.commands import app as bench
from lab.forecasts import app as forecasts
from rksp.cli.app import main as run_program
from rksp.cli.options import as_count
from rksp.cli.process import live_progress
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.files import atomic_write, check_writable
from rksp.ground.text import one_line

INTERRUPTED = 130

app = typer.Typer(
    name="lab",
    help="Make labelled training runs and fit models to them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(bench)
app.add_typer(forecasts)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code, as `rksp` does."""
    run_program(arguments, program=app, name="python -m lab")


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="The plan: a YAML file, random or grid.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the ladders; created if absent.")
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="WORKERS",
            parser=as_count(1),
            help="Number of processes, each with one thread; the default is one per core.",
        ),
    ] = None,
    known: Annotated[
        Path | None, typer.Option(help="A packed collection; its ladders are not trained again.")
    ] = None,
) -> None:
    """Train the ladders of PLAN that the folder does not hold yet."""
    from lab.ladders.contents import packed_ids
    from lab.ladders.grid import (
        read_ladder_plan,
    )  # torch and transformers: seconds that --help spares
    from lab.ladders.run import run_plan

    with reading(f"the plan {one_line(str(plan), 200)}"):
        design = read_ladder_plan(plan)
    stored = packed_ids(known) if known is not None else frozenset()
    try:
        with counted(f"plan {design.name}") as report:
            tally = run_plan(design, output, workers=workers, known=stored, progress=report)
    except KeyboardInterrupt:
        # The workers ignore the signal and would train their ladders to the end: minutes.
        for child in multiprocessing.active_children():
            child.terminate()
        count = sum(1 for _ in output.glob("*.json")) if output.is_dir() else 0
        typer.echo(
            f"Interrupted with {count} ladders stored in {output}; "
            "run the same command to continue.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(
        f"{tally.planned} ladders planned, {tally.already_stored} already stored, "
        f"{tally.newly_run} trained now; all are in {output}."
    )


@app.command()
def pack(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Folders that `python -m lab run` filled, or collections to extend."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
) -> None:
    """Pack stored ladders into one Parquet file with one labelled row per run.

    Ladders of fine-tuning go into a file of their own.
    """
    from lab.ladders.collection import build_collection
    from lab.ladders.contents import hold_fine_tuning
    from lab.ladders.fine_tuning.table import pack_fine_tuning

    if output.suffix != ".parquet":
        raise InputError(
            f"A collection is a .parquet file, but {output} is not; end its name in .parquet."
        )
    is_tuned = all(hold_fine_tuning(source) for source in sources)
    count = (pack_fine_tuning if is_tuned else build_collection)(sources, output)
    typer.echo(f"{count} runs in {output}, {output.stat().st_size / 1e6:.2f} MB.")


@app.command()
def card(
    collection: Annotated[
        Path | None,
        typer.Argument(help="A packed collection; the default is the one that rksp ships."),
    ] = None,
) -> None:
    """Print the data card of a collection as Markdown; that of all shipped ladders by default."""
    from lab.ladders.card import data_card
    from lab.ladders.collection import read_collection
    from lab.ladders.contents import hold_fine_tuning
    from lab.ladders.fine_tuning.card import fine_tuning_card
    from lab.ladders.fine_tuning.table import read_fine_tuning

    is_tuned = collection is not None and hold_fine_tuning(collection)
    if not is_tuned:
        typer.echo(data_card(read_collection(collection)), nl=False)
    if collection is None:
        typer.echo()
    if collection is None or is_tuned:
        typer.echo(fine_tuning_card(read_fine_tuning(collection)), nl=False)


@app.command()
def levers(
    ladders: Annotated[
        list[Path],
        typer.Argument(help="Folders that `python -m lab run` filled, or packed collections."),
    ],
    plan: Annotated[
        list[Path],
        typer.Option("--plan", help="A plan of pairs; give it again for more plans."),
    ],
) -> None:
    """Print what every lever of paired plans did to the edge, the best rate and the loss."""
    from lab.ladders.collection import stored_ladders
    from lab.ladders.grid import read_ladder_plan
    from lab.ladders.levers import lever_effects, lever_table, model_table
    from lab.ladders.pairs import LadderPairs

    found = {run.spec.id: run for run, _ in stored_ladders(ladders)}
    for path in plan:
        with reading(f"the plan {one_line(str(path), 200)}"):
            design = read_ladder_plan(path)
        if not isinstance(design, LadderPairs):
            raise InputError(f"{path} is not a plan of pairs; give one that has levers.")
        effects = lever_effects(design.pairs(), found)
        typer.echo(f"## {design.name}\n\n{lever_table(effects)}\n{model_table(effects)}")


_PAIRS = typer.Argument(
    help="Folders that `python -m lab run` filled, or packed collections; the default "
    "are those of the plans that rksp ships."
)


@app.command("fit-levers")
def fit_levers(
    output: Annotated[Path, typer.Option("--output", "-o", help="The table to write.")],
    ladders: Annotated[list[Path] | None, _PAIRS] = None,
) -> None:
    """Fit the sizes of all levers by kind of model; the same ladders give the same bytes."""
    from lab.fit.artifacts import artifact_json
    from lab.ladders.collection import stored_ladders
    from lab.ladders.lever_fit import fit_lever_table, shipped_runs

    check_writable(output)
    table = fit_lever_table(run for run, _ in stored_ladders(ladders or shipped_runs()))
    atomic_write(output, artifact_json(table))
    typer.echo(f"Fitted on {table.ladders} ladders: {output}.")


@app.command()
def measure(
    ladders: Annotated[Path, typer.Argument(help="A folder that `python -m lab run` filled.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the measurements.")],
    workers: Annotated[int | None, typer.Option(metavar="WORKERS", parser=as_count(1))] = None,
    pack_to: Annotated[
        Path | None, typer.Option("--pack", help="Also pack all measurements into this file.")
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="Packed measurements to reuse and to include."),
    ] = None,
) -> None:
    """Measure, for every stored ladder, the evidence that rksp sees before training."""
    from lab.ladders.measurements import pack_measurements, unpack_measurements
    from lab.ladders.run import measure_plan

    stored = unpack_measurements(known).keys() if known is not None else ()
    with counted("measuring") as report:
        tally = measure_plan(ladders, output, workers=workers, known=stored, progress=report)
    typer.echo(f"{tally.planned} ladders measured ({tally.newly_run} of them now) in {output}.")
    if pack_to is not None:
        typer.echo(f"{pack_measurements(output, pack_to, base=known)} measurements in {pack_to}.")


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield `report(done, total)`, which draws `label: 3 of 9 ladders` and the remaining time."""
    with live_progress() as report:
        yield lambda done, total: report(f"{label}: {done} of {total} ladders", done, total)


Real = Annotated[
    list[Path] | None,
    typer.Option(help="File of public ladders and runs, one JSON object a line; repeatable."),
]
Collection = Annotated[
    Path | None, typer.Option(help="A packed collection; the default is the shipped one.")
]
Measurements = Annotated[
    Path | None, typer.Option(help="Packed measurements; the default are the shipped ones.")
]


@app.command()
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write.")],
    real: Real = None,
    collection: Collection = None,
    measurements: Measurements = None,
) -> None:
    """Fit the model of the edge; the same data give the same bytes."""
    from lab.fit.artifacts import artifact_json
    from lab.fit.edge_fit import fit_edge_model
    from lab.fit.edge_transfer import with_transfer_errors
    from lab.ladders.edge_ladders import edge_ladders

    check_writable(output)
    ladders = edge_ladders(collection, measurements, real or [])
    model = with_transfer_errors(fit_edge_model(ladders), ladders)
    atomic_write(output, artifact_json(model))
    counts = ", ".join(f"{count} {source}" for source, count in model.card["ladders"].items())
    typer.echo(f"Fitted on ladders of {counts}: {output}.")


@app.command("eval")
def evaluate(
    real: Real = None,
    collection: Collection = None,
    measurements: Measurements = None,
) -> None:
    """Print the accuracy of the model of the edge on unseen ladders, as Markdown."""
    from lab.fit.edge_card import edge_tables
    from lab.fit.edge_fit import fit_edge_model
    from lab.ladders.edge_ladders import edge_ladders, model_pairs, repeated_ladders
    from lab.own_runs.evaluation import reveal_markdown

    ladders = edge_ladders(collection, measurements, real or [])
    model = fit_edge_model(ladders)
    for table in edge_tables(ladders, model, model_pairs(), repeated_ladders()):
        typer.echo(f"{table}\n")  # each as soon as it is known: all take minutes
    typer.echo(reveal_markdown(ladders, model), nl=False)


@app.command("eval-levers")
def evaluate_levers(real: Real = None) -> None:
    """Print the size of every lever, beside papers and public runs, as Markdown."""
    from lab.ladders.lever_evidence import lever_card, read_rows
    from rksp.classifiers.levers.effects import load_lever_table

    typer.echo(lever_card(load_lever_table(), read_rows(real or [])), nl=False)


_LAB = Annotated[
    Path | None,
    typer.Option("--lab", help="Packed ladders of fine-tuning; the default are the shipped ones."),
]
_ROWS = typer.Argument(help="Files of public ladders, recipes and runs, one JSON object a line.")


@app.command("fit-fine-tuning")
def fit_fine_tuning(
    rows: Annotated[list[Path], _ROWS],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write.")],
    lab: _LAB = None,
) -> None:
    """Fit the model of fine-tuning to ROWS and the lab's ladders; the same give the same bytes."""
    from lab.fine_tuning_fit.public_rows import public_ladders, read_public_rows
    from lab.fine_tuning_fit.shipped import shipped_model
    from lab.fit.artifacts import artifact_json
    from lab.ladders.fine_tuning.as_ladders import as_ladders
    from lab.ladders.fine_tuning.evidence import as_card, what_measuring_adds
    from lab.ladders.fine_tuning.table import read_fine_tuning

    check_writable(output)
    trained = read_fine_tuning(lab)
    ladders = [*public_ladders(read_public_rows(rows)), *as_ladders(trained)]
    model = shipped_model(ladders)
    adds = {"measured": as_card(what_measuring_adds(trained))}
    atomic_write(output, artifact_json(replace(model, card={**model.card, **adds})))
    typer.echo(f"Fitted on {len(ladders)} ladders, recipes and runs: {output}.")


@app.command("published-runs")
def published_runs(
    rows: Annotated[list[Path], _ROWS],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table to write.")],
) -> None:
    """Count the runs of ROWS by method, objective, kind and size; the same give the same bytes."""
    from lab.fine_tuning_fit.public_rows import read_public_rows
    from lab.fine_tuning_fit.published_rows import AFTER_TRAINING, artifact

    check_writable(output)
    atomic_write(output, artifact(read_public_rows([*rows, AFTER_TRAINING])))
    typer.echo(f"Counted the published runs: {output}.")


@app.command("eval-fine-tuning")
def evaluate_fine_tuning(
    rows: Annotated[list[Path], _ROWS],
    tried: Annotated[
        bool, typer.Option("--tried", help="Also leave the choice of the start out; minutes.")
    ] = False,
    lab: _LAB = None,
) -> None:
    """Print the accuracy of the model of fine-tuning on what was left out, as Markdown."""
    from lab.fine_tuning_fit.card import evaluation
    from lab.fine_tuning_fit.public_rows import public_ladders, read_public_rows
    from lab.ladders.fine_tuning.as_ladders import as_ladders
    from lab.ladders.fine_tuning.table import read_fine_tuning
    from lab.own_runs.tuned_evaluation import reveal_tuned_markdown

    trained, public = as_ladders(read_fine_tuning(lab)), read_public_rows(rows)
    typer.echo(evaluation(public, trained, tried=tried))
    typer.echo(reveal_tuned_markdown(public_ladders(public)), nl=False)


@app.command("post-training")
def post_training() -> None:
    """Print what moves the edge of DPO and GRPO on toys, of the stored ladders."""
    from lab.post_training import stored_ladders, tables

    typer.echo(tables(stored_ladders()), nl=False)


@app.command()
def house(
    walk: Annotated[bool, typer.Option("--walk", help="Also list the walk of a recipe.")] = False,
) -> None:
    """Count lines, rooms and arrows of the product, and the walk of a recipe through it."""
    from lab.house import report

    typer.echo(report(shows_walk=walk))


@app.command()
def advisory(
    facts: Annotated[Path, typer.Argument(help="TOML: the entry and its two recipes.")],
) -> None:
    """Draft an advisory and its two recipes from facts given by hand: two lines of JSON.

    The file has summary, severity, references, fix, symptom, established, and a table `when`; one
    `[[affected]]` for each package, with a range or versions; and the tables `match` and `near`.
    """
    from lab.advisories import draft

    for line in draft(facts):
        typer.echo(line)


@app.command()
def hub(
    rows: Annotated[Path, typer.Argument(help="Published configurations, one JSON object a line.")],
    month: Annotated[str, typer.Option(help="When they were collected, as 2026-11.")],
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
) -> None:
    """Write the table of published configurations that rksp ships; the default replaces it."""
    from lab.hub_table import TABLE, hub_table, read_rows

    text = hub_table(read_rows(rows), month)
    atomic_write(output or TABLE, text)
    typer.echo(f"{text.count(chr(10)) - 1} shapes, {len(text) / 1000:.0f} kB.")
