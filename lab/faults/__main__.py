"""`python -m lab.faults COMMAND`: what rksp must survive, tried and counted."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
_FOLDER = Path(tempfile.gettempdir())
Results = Annotated[Path, typer.Option(help="File of results; the same command goes on from it.")]


@app.callback()
def faults() -> None:
    """Damage, kill, fill and repeat."""
    from lab.faults.commands import environment

    environment()


@app.command()
def inputs(
    results: Results = _FOLDER / "rksp-inputs.jsonl",
    share: Annotated[float, typer.Option(help="Of the 12,000 inputs.")] = 1.0,
    kind: Annotated[str, typer.Option(help="Only kinds whose name holds this.")] = "",
    workers: Annotated[int, typer.Option(help="Processes at a time.")] = 2,
) -> None:
    """Feed damaged files and words to every command."""
    from lab.faults.inputs import fuzz, table
    from lab.faults.kinds import kinds

    chosen = kinds(kind)
    _warm(chosen)
    print(f"{len(chosen)} kinds", file=sys.stderr)
    begun = os.times()
    tallies = fuzz(chosen, results, share=share, workers=workers)
    spent = [b - a for a, b in zip(begun[:4], os.times()[:4], strict=True)]  # children's too
    typer.echo(table(tallies, sum(spent)))


@app.command()
def kills(
    count: Annotated[int, typer.Option(help="Kills in all, with results in flight.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    job: Annotated[str, typer.Option(help="Only jobs whose name holds this.")] = "",
) -> None:
    """Kill grids, labs, confirmations and streamed scores, and take them up again."""
    from lab.faults.counts import table
    from lab.faults.kills import COLUMNS, kill
    from lab.faults.scenes import SHARES

    tolls = []
    for scene, share in SHARES:
        if job in scene.name and scene.name == "Ray grid" and find_spec("ray") is None:
            print("The Ray grid was left out: Ray is not installed.", file=sys.stderr)
        elif job in scene.name:
            tolls.append(kill(scene, max(1, round(share * count)), seed=seed))
            print(table("job", tolls[-1:], COLUMNS), file=sys.stderr)
    typer.echo(table("job", tolls, COLUMNS))


@app.command()
def writes(
    count: Annotated[int, typer.Option(help="Kills in all.")] = 108,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Kill whoever writes a file; write on full disks and into closed pipes."""
    from lab.faults.disks import on_disks
    from lab.faults.writes import broken_streams, closed_pipes, kill_writers, table

    disks = on_disks()
    if not disks:
        print("Real disks were not tried: this process may not mount one.", file=sys.stderr)
    typer.echo(table([*kill_writers(count, seed=seed), *disks], closed_pipes(), broken_streams()))


@app.command()
def same(
    results: Annotated[
        Path, typer.Option(help="Folder of answers; the same command goes on from it.")
    ] = _FOLDER / "rksp-same",
    limit: Annotated[int, typer.Option(help="Only so many cells of the matrix.")] = 99,
) -> None:
    """Run every command over runs, threads, hash seeds, locales and folders; compare the bytes."""
    from lab.faults.matrix import cells, outcomes, table

    typer.echo(table(outcomes(cells()[:limit], results)))


def _warm(chosen: list) -> None:
    """Import what the commands need, once and not in every process."""
    from lab.faults.answers import Case, answer
    from lab.faults.commands import CONFIG, RATE
    from lab.faults.originals import configurations

    if all(kind.name.startswith("recipe") for kind in chosen):
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for config in configurations():
            files = {"config.json": json.dumps(config).encode()}
            answer(Case(command=("score", "config.json", *RATE, *CONFIG), files=files))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    app()
