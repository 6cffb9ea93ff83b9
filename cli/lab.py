"""`rksp lab`: make labelled runs, pack them, describe them."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from rksp.cli.process import reading
from rksp.errors import InputError
from rksp.files import atomic_write, check_writable
from rksp.text import one_line

INTERRUPTED = 130
SPARSE_SECONDS = 60.0  # between progress lines where stderr is no terminal

Report = Callable[[int, int], None]

app = typer.Typer(
    name="lab",
    help="Make labelled training runs, and the collection they form.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="The plan: a YAML file, random or grid.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the stored ladders; made if absent.")
    ],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of one thread each; default one a core.")
    ] = None,
    known: Annotated[
        Path | None, typer.Option(help="A packed collection whose ladders are not trained again.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda: ladders of one shape then train together.")
    ] = "cpu",
) -> None:
    """Trains the ladders of PLAN that the folder does not hold yet."""
    from rksp.lab.collection import collection_ids
    from rksp.lab.grid import read_ladder_plan  # torch and transformers: seconds that --help spares
    from rksp.lab.run import run_plan

    with reading(f"the plan {one_line(str(plan), 200)}"):
        design = read_ladder_plan(plan)
    _check_device(device)
    stored = collection_ids(known) if known is not None else frozenset()
    try:
        with progress(f"plan {design.name}") as report:
            tally = run_plan(
                design, output, workers=workers, known=stored, device=device, progress=report
            )
    except KeyboardInterrupt:
        # The workers ignore the signal and would train their ladders to the end: minutes.
        for child in multiprocessing.active_children():
            child.terminate()
        stored = sum(1 for _ in output.glob("*.json")) if output.is_dir() else 0
        typer.echo(
            f"Interrupted with {stored} ladders stored in {output}; "
            "the same command continues there.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(
        f"{tally.planned} ladders planned, {tally.already_stored} were stored, "
        f"{tally.newly_run} run now; all are in {output}."
    )


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise InputError(
            f"--device {device!r} is not at hand; use cpu, or cuda where there is one."
        )


@app.command()
def pack(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Folders that `rksp lab run` filled, or collections to extend."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
) -> None:
    """Packs stored ladders into one Parquet file, one labelled row per run."""
    from rksp.lab.collection import build_collection

    if output.suffix != ".parquet":
        raise InputError(f"A collection is a .parquet file, got {output}; name it so.")
    count = build_collection(sources, output)
    typer.echo(f"{count} runs in {output}, {output.stat().st_size / 1e6:.2f} MB.")


@app.command()
def card(
    collection: Annotated[
        Path | None, typer.Argument(help="A packed collection; default the one that rksp ships.")
    ] = None,
) -> None:
    """Prints the data card of a collection as Markdown."""
    from rksp.lab.card import data_card
    from rksp.lab.collection import read_collection

    typer.echo(data_card(read_collection(collection)), nl=False)


@app.command()
def measure(
    ladders: Annotated[Path, typer.Argument(help="A folder that `rksp lab run` filled.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the measurements.")],
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    pack_to: Annotated[
        Path | None, typer.Option("--pack", help="Also pack them all into this file.")
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="Packed measurements: not made again, and packed along."),
    ] = None,
) -> None:
    """Gathers, for every stored ladder, the evidence that rksp sees before training."""
    from rksp.lab.run import measure_plan
    from rksp.lab.training_table import pack_measurements, unpack_measurements

    stored = unpack_measurements(known).keys() if known is not None else ()
    with progress("measuring") as report:
        tally = measure_plan(ladders, output, workers=workers, known=stored, progress=report)
    typer.echo(f"{tally.planned} ladders measured, {tally.newly_run} of them now, in {output}.")
    if pack_to is not None:
        typer.echo(f"{pack_measurements(output, pack_to, base=known)} measurements in {pack_to}.")


_REAL = typer.Option(help="Files of public ladders and runs, a JSON object a line; repeatable.")


@app.command()
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="The model to write.")],
    real: Annotated[list[Path] | None, _REAL] = None,
    collection: Annotated[Path | None, typer.Option(help="Default the shipped one.")] = None,
    measurements: Annotated[Path | None, typer.Option(help="Default the shipped ones.")] = None,
) -> None:
    """Fit a model of the edge for `--classifier`; the same data give the same bytes."""
    from rksp.classifiers.edge_fit import fit_edge_model
    from rksp.lab.edge_ladders import edge_ladders

    check_writable(output)
    model = fit_edge_model(edge_ladders(collection, measurements, real or []))
    atomic_write(output, model.to_json())
    counts = ", ".join(f"{count} {source}" for source, count in model.card["ladders"].items())
    typer.echo(f"Fitted on ladders of {counts}: {output}.")


@app.command("fit-divergence")
def fit_divergence(
    output: Annotated[Path, typer.Option("--output", "-o", help="The classifier to write.")],
    collection: Annotated[Path | None, typer.Option(help="Default the shipped one.")] = None,
    measurements: Annotated[Path | None, typer.Option(help="Default the shipped ones.")] = None,
) -> None:
    """Fit and calibrate the classifier of divergence; the same data give the same bytes."""
    from rksp.classifiers.fit import fit_classifier

    check_writable(output)
    table = _table(collection, measurements)
    card = {
        "families": {name: int((table.family == name).sum()) for name in sorted(set(table.family))},
        "ladders": len(set(table.ladder)),
        "runs": len(table),
        "failed": round(float(table.failed.mean()), 6),
        "diverged": round(float(table.diverged.mean()), 6),
        "widths": [int(table.width.min()), int(table.width.max())],
        "depths": [int(table.depth.min()), int(table.depth.max())],
    }
    atomic_write(output, fit_classifier(table, card).to_json())
    typer.echo(f"Fitted on {len(table)} runs of {card['ladders']} ladders: {output}.")


@app.command("eval")
def evaluate(
    real: Annotated[list[Path] | None, _REAL] = None,
    collection: Annotated[Path | None, typer.Option(help="Default the shipped one.")] = None,
    measurements: Annotated[Path | None, typer.Option(help="Default the shipped ones.")] = None,
) -> None:
    """Print how well the model of the edge does on what it has not seen, as Markdown."""
    from rksp.classifiers.edge_card import fit_and_evaluate
    from rksp.lab.edge_ladders import edge_ladders

    ladders = edge_ladders(collection, measurements, real or [])
    typer.echo(fit_and_evaluate(ladders), nl=False)


@app.command("eval-divergence")
def evaluate_divergence(
    collection: Annotated[Path | None, typer.Option(help="Default the shipped one.")] = None,
    measurements: Annotated[Path | None, typer.Option(help="Default the shipped ones.")] = None,
    question: Annotated[
        Literal["failed", "diverged"], typer.Option(help="The outcome to predict.")
    ] = "failed",
    draws: Annotated[int, typer.Option(help="Of the bootstrap.")] = 200,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the reliability diagram here (.svg, .png).")
    ] = None,
) -> None:
    """Print the evaluation of the classifier of divergence as Markdown."""
    from rksp.classifiers.card import evaluation_markdown

    if figure is not None:
        check_writable(figure, "--figure")
    table = _table(collection, measurements)
    if figure is not None:
        _draw(table, question, figure)
    typer.echo(evaluation_markdown(table, question=question, draws=draws), nl=False)
    if question == "failed":
        _bound(collection)


def _bound(collection: Path | None) -> None:
    from rksp.classifiers.card import EDGE_HEADER, edge_line
    from rksp.lab.collection import read_collection
    from rksp.lab.early import early_edge_errors, twin_edge_errors

    ladders = read_collection(collection)
    rows = [*early_edge_errors(ladders), twin_edge_errors(ladders)]
    lines = [edge_line(row) for row in rows if row is not None]
    title = "What can be known: the ladder's own runs after n steps, and its twin:"
    typer.echo("\n".join(["", title, "", *EDGE_HEADER, *lines]))


def _draw(table, question: str, path: Path) -> None:
    from rksp.classifiers.evaluate import predict_held_out
    from rksp.classifiers.figure import reliability_diagram
    from rksp.classifiers.fit import labels
    from rksp.features import Tier

    tiers = (Tier.RESPONSE, Tier.MICRO)
    predictions = {
        str(tier): predict_held_out(table, question, tier, table.ladder) for tier in tiers
    }
    reliability_diagram(labels(table, question), predictions, path)


def _table(collection: Path | None, measurements: Path | None):
    from rksp.lab.collection import read_collection
    from rksp.lab.training_table import training_table, unpack_measurements

    measured = unpack_measurements(measurements)
    ladders = [run for run in read_collection(collection) if run.spec.id in measured]
    return training_table(ladders, measured)


@contextmanager
def progress(label: str, noun: str = "ladders") -> Iterator[Report]:
    """Yields `report(done, total)`: a bar with ETA on a terminal, a line a minute elsewhere."""
    if not sys.stderr.isatty():
        yield _sparse(label, time.monotonic, noun)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        # Ladders differ tenfold in cost: a short window would make the ETA jump about.
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=1800) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _sparse(label: str, clock: Callable[[], float], noun: str = "ladders") -> Report:
    start, shown, first = clock(), float("-inf"), None

    def report(done: int, total: int) -> None:
        nonlocal shown, first
        now = clock()
        first = done if first is None else first  # stored before this call: they cost no time
        if done < total and now - shown < SPARSE_SECONDS:
            return
        shown = now
        left = ""
        if first < done < total:
            seconds = (now - start) / (done - first) * (total - done)
            left = f", about {_duration(seconds)} left"
        typer.echo(f"{label}: {done} of {total} {noun}{left}", err=True)

    return report


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"
