"""Run an experiment of the catalog, or read its stored trials, and return its tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from lab.experiments import bounds, cost, shaping, spectrum, tables
from lab.experiments.catalog import EXPERIMENTS, AnyExperiment
from lab.experiments.profiles import PRESETS
from lab.experiments.rows import Cost, shipped_rows, write_rows
from lab.experiments.trials import read_trials, run_trials
from lab.ladders.run import Progress
from rksp.ground.errors import InputError


def reproduce(
    name: str,
    *,
    folder: Path | None = None,
    data: Path | None = None,
    workers: int | None = None,
    output: Path | None = None,
    stored: bool = False,
    progress: Progress = lambda done, total: None,
) -> str:
    """Run an experiment and return its tables, rksp's results beside the paper's, as Markdown.

    Args:
        name: A key of `EXPERIMENTS` or `PRESETS`, or one of `SPECIAL`.
        folder: The folder of the trials, one file a trial; the same call resumes there.
        data: The user's copy of a preset's data.
        workers: Processes of one thread each; by default one a core.
        output: The JSON file for the rows of the table.
        stored: Train nothing; read `folder`, or the results that rksp ships.
        progress: Called with the number of finished trials and of all trials.

    Raises:
        InputError: The experiment needs a folder or data, or cannot use them.
        Incomplete: A worker died; stored trials stay.
    """
    if data is not None and name not in PRESETS:
        raise InputError(f"{name} brings its own data; leave --data out.")
    if name not in EXPERIMENTS and name not in PRESETS:
        if folder is not None:
            raise InputError(f"{name} has no trials to store in a folder; leave --folder out.")
        return SPECIAL[name](stored, output)
    experiment = PRESETS[name] if name in PRESETS else EXPERIMENTS[name]
    if data is not None:
        experiment = experiment.on(data)
    if folder is not None:
        workers = 0 if stored else workers or os.cpu_count()
        rows = _rows(name, experiment, folder, workers, progress)
    elif stored:
        rows = shipped_rows(name, experiment.row_type)
    else:
        raise InputError(
            f"The trials of {name} take long and need a folder; give --folder, or give --stored "
            "to see the shipped results."
        )
    if output is not None:
        write_rows(output, rows)
    return experiment.table(rows)


def _rows(
    name: str, experiment: AnyExperiment, folder: Path, workers: int, progress: Progress
) -> Sequence[BaseModel]:
    """Return the rows of a folder; with workers, train the missing trials first."""
    plan = experiment.plan()
    if workers:
        return experiment.rows(run_trials(plan, folder, workers=workers, progress=progress))
    found = read_trials(plan, folder)
    if not found:
        raise InputError(f"{folder} holds no trial of {name}; leave --stored out to train them.")
    if len(found) < len(plan):
        print(f"rksp: {len(found)} of {len(plan)} trials so far", file=sys.stderr)
    return experiment.rows(found)


def _cost(stored: bool, output: Path | None) -> str:
    if stored:
        return tables.cost(shipped_rows("cost", Cost))
    costs = cost.measure()
    if output is not None:
        write_rows(output, costs)
    return tables.cost(costs)


def _shaping(stored: bool, output: Path | None) -> str:
    if not stored or output is not None:
        raise InputError(
            "shaping is made of ladders: train datasets/plans/step_clip.yaml and "
            "step_clip_long.yaml with python -m lab run, pack them, and give --stored for what "
            "rksp ships."
        )
    return shaping.shipped() + "\n" + bounds.shipped()


def _rksp(stored: bool, output: Path | None) -> str:
    if not stored or output is not None:
        raise InputError(
            "rksp is made of ladders that are trained; give --stored for what rksp ships."
        )
    return spectrum.tables()


# Experiments that are no plan of trials.
SPECIAL: Mapping[str, Callable[[bool, Path | None], str]] = {
    "cost": _cost,
    "rksp": _rksp,
    "shaping": _shaping,
}
