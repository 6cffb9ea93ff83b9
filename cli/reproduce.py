"""`rksp reproduce`: a published table again, ours beside theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.lab import progress
from rksp.errors import InputError, nearest

if TYPE_CHECKING:
    from rksp.confirm.experiments.rows import Row

_TRAINED = ("kss", "kss-batch", "msign", "msign-deep", "cross-talk")
_MEASURED = ("cost", "table-1")  # without training, in minutes
_KNOWN = (*_TRAINED, *_MEASURED)


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(_KNOWN)}.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Train here, one file a trial; the same command continues there."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of one thread each; default one a core.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the rows of the table here.")
    ] = None,
    stored: Annotated[
        bool,
        typer.Option("--stored", help="Train nothing: what --folder holds, or what is shipped."),
    ] = False,
) -> None:
    """Run a published experiment again and print ours beside theirs, as Markdown.

    Alarms of cross-talk are judged anew from the stored readings, by the rules of today.
    """
    if name not in _KNOWN:
        hint = nearest(name, _KNOWN) or f"; choose among {', '.join(_KNOWN)}."
        raise InputError(f"There is no experiment {name!r}{hint}")
    if output is not None and not output.parent.is_dir():
        raise InputError(f"-o {output}: there is no folder {output.parent}.")
    if name in _MEASURED:
        if folder is not None:
            raise InputError(f"{name} trains nothing that a folder could keep; leave --folder out.")
        typer.echo(_measured(name, stored, output), nl=False)
        return
    # Not above: both train, so they import torch.
    from rksp.confirm.experiments.rows import shipped_rows, write_rows

    experiment = _experiment(name)
    if stored and folder is None:
        rows = shipped_rows(name)
    elif folder is None:
        raise InputError(
            f"The trials of {name} take a while and are kept; give --folder, or --stored to see "
            "the shipped results."
        )
    else:
        rows = _rows(name, experiment, folder, workers=0 if stored else workers or os.cpu_count())
    if output is not None:
        write_rows(output, rows)
    typer.echo(experiment.table(rows), nl=False)


def _rows(name: str, experiment: ModuleType, folder: Path, *, workers: int) -> Sequence[Row]:
    """The rows of a folder, after what is missing was trained if there are workers to."""
    from rksp.confirm.experiments.plan import read_trials, run_trials
    from rksp.confirm.experiments.rows import to_rows

    plan = experiment.plan()
    if workers:
        with progress(f"reproduce {name}", "trials") as report:
            return to_rows(run_trials(plan, folder, workers=workers, progress=report))
    found = read_trials(plan, folder)
    if not found:
        raise InputError(f"{folder} holds no trial of {name}; leave --stored out to train them.")
    if len(found) < len(plan):
        print(f"rksp: {len(found)} of {len(plan)} trials so far", file=sys.stderr)
    return to_rows(found)


def _measured(name: str, stored: bool, output: Path | None) -> str:
    experiment = _experiment(name)
    if name == "table-1":
        if stored or output is not None:
            raise InputError("table-1 takes minutes and is not stored; leave --stored and -o out.")
        return experiment.table(experiment.measure())
    from rksp.confirm.experiments.rows import shipped_rows, write_rows

    if stored:
        return experiment.table(shipped_rows(name, experiment.Cost))
    import torch

    torch.set_num_threads(1)
    costs = experiment.measure()
    if output is not None:
        write_rows(output, costs)
    return experiment.table(costs)


def _experiment(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f"rksp.confirm.experiments.{name.replace('-', '_')}")
