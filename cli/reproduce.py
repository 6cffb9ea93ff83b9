"""`rksp reproduce`: a published table again, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.lab import progress
from rksp.errors import InputError, nearest

_NAMES = ("kss", "msign", "cross-talk", "table-1")


def reproduce(
    name: Annotated[str, typer.Argument(help="kss, msign, cross-talk or table-1.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Train here, one file a trial; the same command continues there."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of one thread each; default one a core.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the rows of the trials here.")
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Print the table of the shipped results.")
    ] = False,
) -> None:
    """Re-runs a published experiment and prints ours beside theirs, as Markdown."""
    if name not in _NAMES:
        known = nearest(name, _NAMES) or f"; choose among {', '.join(_NAMES)}."
        raise InputError(f"There is no experiment {name!r}{known}")
    if name == "table-1":
        from rksp.confirm.experiments.table_1 import measure, table  # torch, not for --help

        typer.echo(table(measure()), nl=False)
        return
    from importlib import import_module  # trains, so it imports torch

    from rksp.confirm.experiments.plan import run_trials
    from rksp.confirm.experiments.rows import shipped_rows, to_rows, write_rows

    experiment = import_module(f"rksp.confirm.experiments.{name.replace('-', '_')}")
    if stored:
        typer.echo(experiment.table(shipped_rows(name)), nl=False)
        return
    if folder is None:
        raise InputError(
            f"The trials of {name} take a while and are kept; give --folder, or --stored to see "
            "the shipped results."
        )
    with progress(f"reproduce {name}") as report:
        rows = to_rows(run_trials(experiment.plan(), folder, workers=workers, progress=report))
    if output is not None:
        write_rows(output, rows)
    typer.echo(experiment.table(rows), nl=False)
