"""A short ladder of real runs of a model, or of its tiny twin, from which rksp then learns."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from rksp.assessment.measured import measured_inputs
from rksp.assessment.pipeline import gather
from rksp.assessment.risk import declared_inputs, rounded
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.confirm.arms import Arm
from rksp.confirm.trial import (
    Trainee,
    TrainingData,
    TrainingProgress,
    check_trainable,
    step_progress,
    trial_row,
)
from rksp.datasets.own_data import read_own_rows
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.models.source import ModelSource
from rksp.own_runs.outcome import Curves, OutcomePolicy
from rksp.own_runs.outcome import Ladder as Judged
from rksp.own_runs.record import Row, Shape, append_row, read_record, shape_of
from rksp.recipe import Recipe
from rksp.recipe.start import decide_start

STEPS = 100
_LOWEST, _STEP = 10**-1.35, 10**0.3  # times the likely edge; from rate to rate
_TUNING_STEP = 10**0.5  # the range is wider, as it begins lower
_COUNT, _MOST = 8, 12  # rates to begin with, and after the ladder was made longer
_WAIT = timedelta(days=2)  # for the longest run of another rank; a dead one ends the others


@dataclass(slots=True)
class Ranks:
    """This process among all, which train for themselves and tell each other what they did.

    They talk through the store of the launcher and make no process group: training would take one
    for replicas of a single run.

    Attributes:
        rank: Of this process, from 0.
        count: Of the processes.
        device_number: Which GPU of its machine is this process's own.
    """

    rank: int = 0
    count: int = 1
    device_number: int | None = None
    _store: Any = field(default=None, repr=False)
    _round: int = 0

    @classmethod
    def launched(cls) -> Ranks:
        """Return the processes that a launcher started; one alone without a launcher."""
        numbers = {name: os.environ.get(name, "1") for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
        for name, text in numbers.items():
            if not text.isdecimal():
                raise InputError(f"{name} is {text!r}, which no launcher sets; unset it.")
        if int(numbers["WORLD_SIZE"]) < 2:
            return cls()
        from torch.distributed.rendezvous import rendezvous

        store, rank, count = next(rendezvous("env://"))
        store.set_timeout(_WAIT)
        number = int(os.environ.get("LOCAL_RANK", rank))
        return cls(rank=rank, count=count, device_number=number, _store=store)

    def place(self, device: str) -> str:
        """Return the device of this process: of several GPUs its own."""
        is_shared = self.device_number is not None and device == "cuda"
        return f"cuda:{self.device_number}" if is_shared else device

    def all_gather(self, said: object) -> list[Any]:
        """Tell all ranks something, as JSON, and return what every rank says, in their order.

        Every rank calls it equally often.
        """
        if self._store is None:
            return [said]
        self._round += 1
        keys = [f"rksp/{self._round}/{rank}" for rank in range(self.count)]
        self._store.set(keys[self.rank], json.dumps(said))
        found = [json.loads(self._store.get(key)) for key in keys]
        if self._store.add(f"rksp/{self._round}/heard", 1) == self.count:
            self._store.set(f"rksp/{self._round}/done", "1")
        if self.rank == 0:  # it may hold the store, which must outlive the others' questions
            self._store.wait([f"rksp/{self._round}/done"])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A ladder that is to be trained: arms of one recipe that differ in the rate alone.

    Attributes:
        trainee: The model that is trained, the target itself or its tiny twin, at a rate of 1.
        shape: Of the model.
        inputs: Of the model that answers: that of the edge, or that of fine-tuning.
        seed: Of initialization and data.
        key: What a stored run must share with this ladder to count as one of it.
    """

    trainee: Trainee
    shape: Shape
    inputs: EdgeInputs | FineTuningInputs
    seed: int
    key: str

    @property
    def recipe(self) -> Recipe:
        """As trained, at a rate of 1."""
        return self.trainee.recipe

    def first_rates(self) -> list[float]:
        """Return the rates to begin with.

        Those of random weights lie around the likely edge of the shipped model. Those of trained
        weights begin at a thirtieth of the rate to start with: who asks for a ladder may have a
        model that fails far below the others.
        """
        if isinstance(self.inputs, FineTuningInputs):
            lowest = load_fine_tuning_model().predict(self.inputs).start_here / 30
        else:
            lowest = 10 ** load_edge_model().predict(self.inputs).log_edge * _LOWEST
        return [rounded(lowest * self.step**n) for n in range(_COUNT)]

    @property
    def step(self) -> float:
        """The factor between neighbouring rates."""
        return _TUNING_STEP if isinstance(self.inputs, FineTuningInputs) else _STEP


def make_ladder(
    source: ModelSource,
    recipe: Recipe,
    *,
    steps: int = STEPS,
    seed: int = 0,
    data: Path | None = None,
    device: str = "cpu",
) -> Ladder:
    """Return the ladder of a model under a recipe, shortened to `steps` steps.

    Raises:
        InputError: It cannot be trained, or its trained weights are not at hand.
    """
    check_trainable(source)
    trained = recipe.shortened(steps).model_copy(update={"learning_rate": 1.0})
    inputs, shape = _described(source, trained, seed)
    rows = None if data is None else read_own_rows(data)
    trainee = Trainee(source=source, recipe=trained, data=rows, device=device)
    known = json.dumps(trainee.identity() | {"seed": seed}, sort_keys=True, default=str)
    return Ladder(trainee=trainee, shape=shape, inputs=inputs, seed=seed, key=digest(known))


def _described(
    source: ModelSource, recipe: Recipe, seed: int
) -> tuple[EdgeInputs | FineTuningInputs, Shape]:
    declared = Declared(source.config, source.task)
    start = decide_start(source.start, recipe=recipe)
    if not start.is_scratch:
        shape = shape_of(source.config, source.task, recipe, start)
        tuned = None if shape is None else shape.tuned(recipe)
        if not source.start.is_stored or shape is None or tuned is None:
            raise InputError(
                f"A sweep of fine-tuning starts from trained weights, and {source.target} has "
                "none that rksp can describe; give the folder of a checkpoint."
            )
        return tuned, shape
    if declared.width and declared.depth:
        inputs = declared_inputs(declared, recipe)
    else:
        evidence = gather(source, MeasureOptions(evidence="forward", seed=seed))
        inputs = measured_inputs(evidence, recipe)
    return inputs, Shape.of(inputs)


def calibrate(
    ladder: Ladder,
    record: Path,
    progress: TrainingProgress = lambda what, done, total: None,
    ranks: Ranks | None = None,
) -> list[Row]:
    """Train the ladder and append every run to `record`; runs that it holds are not trained again.

    It grows by a rate at a time where nothing failed at its upper end, or where its lowest rate is
    the best.

    Args:
        ladder: From `make_ladder`.
        record: The file of runs; created if absent.
        progress: Called with the progress.
        ranks: The processes that share the runs; default this one alone.

    Returns:
        The rows of this ladder, by rate.

    Raises:
        InputError: The file cannot be used.
    """
    ranks = ranks or Ranks()
    # All ranks begin with what the first one finds: the file grows while a slow one reads.
    found = [row for row in read_record(record) if _is_of(row, ladder)]
    rows = {_rate(row): row for row in ranks.all_gather(found)[0]}
    planned, steps = ladder.first_rates(), ladder.recipe.max_steps
    device = ranks.place(ladder.trainee.device)
    here = replace(ladder, trainee=replace(ladder.trainee, device=device))
    data = None
    while True:
        missing = [rate for rate in planned if rate not in rows]
        if not missing:
            ordered = [rows[rate] for rate in sorted(rows)]
            rate = _longer(ordered, ladder)
            if rate is None:
                return ordered
            planned.append(rate)
            continue
        mine: list[Row] = []
        for number, rate in enumerate(missing[ranks.rank :: ranks.count]):
            data = data or here.trainee.data_of(ladder.seed)
            place = min(len(rows) + number * ranks.count, len(planned) - 1)
            name = f"run {place + 1} of {len(planned)}, rate {short(rate)}"
            total = max(len(planned), _COUNT) * steps
            progress(name, place * steps, total)
            told = step_progress(progress, name, steps, place * steps, total)
            mine.append(_trained(here, rate, data, told))
            append_row(record, mine[-1])
        rows |= {_rate(row): row for part in ranks.all_gather(mine) for row in part}


def _is_of(row: Row, ladder: Ladder) -> bool:
    rate = row.get("learning_rate")
    return row.get("ladder") == ladder.key and isinstance(rate, int | float) and rate > 0


def _arm(rate: float) -> Arm:
    return Arm(label=f"rate {rate:g}", rate=rate)


def _trained(
    ladder: Ladder, rate: float, data: TrainingData, progress: Callable[[int, float], None]
) -> Row:
    trial = ladder.trainee.trial(_arm(rate), ladder.seed, data, progress=progress)
    more = {"ladder": ladder.key, "seconds": round(trial.seconds, 2)}
    return trial_row(ladder.trainee, _arm(rate), trial, ladder.shape, **more)


def _judged(rows: Sequence[Row], ladder: Ladder) -> Judged:
    losses = (row["final_loss"] for row in rows)
    finals = [float(one) if isinstance(one, int | float) else math.nan for one in losses]
    ends = [np.array([loss]) for loss in finals]
    curves = [Curves(loss=one, grad_norm=np.zeros(1), planned_steps=1) for one in ends]
    policy = OutcomePolicy().of_labels(ladder.trainee.entropy)
    return policy.judge([_rate(row) for row in rows], curves)


def _longer(rows: Sequence[Row], ladder: Ladder) -> float | None:
    if len(rows) >= _MOST:
        return None
    found, lowest = _judged(rows, ladder), _rate(rows[0])
    if found.best_rate is None or found.best_rate == lowest:
        return rounded(lowest / ladder.step)
    return None if found.outcomes[-1].is_failure else rounded(_rate(rows[-1]) * ladder.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a ladder shows without any model.

    Attributes:
        said: One clause.
        start_here: The rate to start with; None where the runs do not show one.
        do_not_exceed: The rate not to exceed: half of the highest that trained below the first that
            failed, as the edges of two seeds differ by less than that in most ladders of the lab.
        runs: Rate, final loss (None if it diverged) and label of every run.
    """

    said: str
    start_here: float | None
    do_not_exceed: float | None
    runs: Sequence[tuple[float, float | None, str]]

    @property
    def answer(self) -> str:
        """The clause with the rates, for a run of which no model can tell."""
        if self.start_here is None:
            return self.said
        rates = short(self.start_here), short(definite(self.do_not_exceed))
        return f"{self.said}; start at {rates[0]}, do not exceed {rates[1]}"


def shown(rows: Sequence[Row], ladder: Ladder) -> Shown:
    """Return what the runs of a ladder show: the best rate, and where it begins to fail.

    Args:
        rows: From `calibrate`.
        ladder: Their ladder.
    """
    found, entropy = _judged(rows, ladder), ladder.trainee.entropy
    losses = [one if isinstance(one := row["final_loss"], float) else None for row in rows]
    labels = [outcome.value for outcome in found.outcomes]
    runs = list(zip(map(_rate, rows), losses, labels, strict=True))
    least = min((loss for loss in losses if loss is not None), default=math.inf)
    margin = OutcomePolicy().of_labels(entropy).margin
    start = most = None
    if found.edge is None or found.best_rate is None:
        said = f"All {len(rows)} runs diverged; train at lower rates"
    elif entropy is not None and least > entropy - margin:
        said = (
            f"None of the {len(rows)} runs learned more than the frequencies of its labels "
            f"({entropy:.2f} nats); train more --steps"
        )
    else:
        trained, failed = found.edge
        most = rounded(trained / 2)
        start = min(found.best_rate, most)
        last = f"no failure up to {short(_rate(rows[-1]))}"
        end = last if failed is None else f"first failure at {short(failed)}"
        said = f"Your {len(rows)} runs: best at {short(found.best_rate)}, {end}"
    return Shown(said=said, start_here=start, do_not_exceed=most, runs=runs)


def _rate(row: Row) -> float:
    return float(str(row["learning_rate"]))
