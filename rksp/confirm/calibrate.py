"""A short ladder of real runs of a model, or of its tiny twin, from which rksp then learns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from rksp.assessment.gathering import gather
from rksp.assessment.measured import measured_inputs
from rksp.assessment.risk import declared_inputs
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.confirm.arms import Arm
from rksp.confirm.data import TrainingData, training_data
from rksp.confirm.ranks import Ranks
from rksp.confirm.start import starting_model
from rksp.confirm.trial import train_arm
from rksp.datasets.batch import mean_loss
from rksp.datasets.own_rows import OwnRows
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.models.declared import Declared
from rksp.models.identity import identity
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.own_runs.outcome import Curves, OutcomePolicy
from rksp.own_runs.record import Row, Shape, append_row, read_record, row_of, shape_of
from rksp.recipe import Recipe

STEPS = 100
_FIRST, _STEP = -1.35, 0.3  # decades from the likely edge to the lowest rate; between rates
_COUNT, _MOST = 8, 12  # rates to begin with, and after the ladder was made longer
_COPIES = 6  # of the weights in memory: gradients, two moments, and what a step holds
_TIMED = 3  # steps that are timed before the ladder starts
CalibrateProgress = Callable[[str, int, int], None]  # what, steps done, steps in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A ladder that is to be trained.

    Attributes:
        source: The model that is trained: the target itself, or its tiny twin.
        recipe: As trained, without a rate.
        shape: Of the model.
        inputs: Of the model that answers: that of the edge, or that of fine-tuning.
        seed: Of initialization and data.
        text, data: What it trains on instead of the bundled text.
        device: Where it trains.
    """

    source: ModelSource
    recipe: Recipe
    shape: Shape
    inputs: EdgeInputs | FineTuningInputs
    seed: int = 0
    text: Path | None = None
    data: OwnRows | None = None
    device: str = "cpu"

    @property
    def key(self) -> str:
        """What a stored run must share with this ladder to count as one of it."""
        told = [
            self.source.target,
            self.source.config_hash,
            None if self.source.folder is None else identity(self.source.folder),
            self.recipe.model_dump(mode="json"),
            self.seed,
            str(self.text),
            self.device,
        ]
        return digest(json.dumps(told, sort_keys=True, default=str))

    def first_rates(self) -> list[float]:
        """Return the rates to begin with, around the likely edge of the shipped model."""
        if isinstance(self.inputs, FineTuningInputs):
            center = load_fine_tuning_model().predict(self.inputs).log_edge
        else:
            center = load_edge_model().predict(self.inputs).log_edge
        return [_rounded(10 ** (center + _FIRST + _STEP * n)) for n in range(_COUNT)]


def make_ladder(
    source: ModelSource,
    recipe: Recipe,
    *,
    steps: int = STEPS,
    seed: int = 0,
    text: Path | None = None,
    data: OwnRows | None = None,
    device: str = "cpu",
) -> Ladder:
    """Return the ladder of a model under a recipe, shortened to `steps` steps.

    Raises:
        InputError: It cannot be trained, or its trained weights are not at hand.
    """
    source.check_size()
    if source.config is None and source.batch is None:
        raise InputError(
            f"{source.target} comes without a batch, so it cannot be trained; return (model, "
            "batch) from the factory."
        )
    trained = recipe.shortened(steps).model_copy(update={"learning_rate": None})
    inputs, shape = _described(source, trained, seed)
    return Ladder(
        source=source,
        recipe=trained,
        shape=shape,
        inputs=inputs,
        seed=seed,
        text=text,
        data=data,
        device=device,
    )


def _described(
    source: ModelSource, recipe: Recipe, seed: int
) -> tuple[EdgeInputs | FineTuningInputs, Shape]:
    """Return the inputs of the model that answers, and what a record says of the model."""
    declared = Declared(source.config, source.task)
    if source.holds_trained or recipe.starts_trained:
        shape = shape_of(source.config, source.task, recipe, is_trained=True)
        tuned = None if shape is None else shape.tuned(recipe)
        if not source.is_pretrained or shape is None or tuned is None:
            raise InputError(
                f"A ladder of fine-tuning starts from trained weights, and {source.target} has "
                "none that rksp can describe; give the folder of a checkpoint."
            )
        return tuned, shape
    if declared.width and declared.depth:
        inputs = declared_inputs(declared, recipe)
    else:
        evidence = gather(source, MeasureOptions(evidence="forward", seed=seed))
        inputs = measured_inputs(evidence, recipe)
    return inputs, Shape.of(inputs)


def cost(ladder: Ladder) -> tuple[float, float]:
    """Return the seconds and the bytes that the ladder is expected to take, from a few steps."""
    short = ladder.recipe.model_copy(update={"max_steps": _TIMED, "warmup_steps": 0})
    rate = min(ladder.first_rates())
    batches = _data(ladder, short).batches
    model = _model(ladder)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    train_arm(
        model,
        batches[:1],
        short.model_copy(update={"learning_rate": rate, "max_steps": 1}),
        Arm(label="baseline"),
        seed=ladder.seed,
    )
    started = time.perf_counter()
    train_arm(
        model,
        batches,
        short.model_copy(update={"learning_rate": rate}),
        Arm(label="baseline"),
        seed=ladder.seed,
    )
    step = (time.perf_counter() - started) / _TIMED
    return step * ladder.recipe.max_steps * _COUNT, float(size * _COPIES)


def calibrate(
    ladder: Ladder,
    record: Path,
    progress: CalibrateProgress = lambda what, done, total: None,
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
    known = {r["learning_rate"]: r for r in read_record(record) if _is_of(r, ladder)}
    rows = _by_rate(ranks.told({str(rate): row for rate, row in known.items()})[:1])
    planned = ladder.first_rates()
    here = replace(ladder, device=ranks.place(ladder.device))
    data = None
    while True:
        missing = [rate for rate in planned if rate not in rows]
        if not missing:
            rate = _longer(rows)
            if rate is None:
                return [rows[rate] for rate in sorted(rows)]
            planned.append(rate)
            continue
        mine: dict[str, Row] = {}
        for number, rate in enumerate(missing[ranks.rank :: ranks.count]):
            data = data or _data(here, ladder.recipe)
            total = max(len(planned), _COUNT) * ladder.recipe.max_steps
            place = min(len(rows) + number * ranks.count, len(planned) - 1)
            name = f"run {place + 1} of {len(planned)}, rate {rate:g}"
            done = place * ladder.recipe.max_steps
            progress(name, done, total)
            told = partial(_told, progress, name, done, total)
            mine[str(rate)] = _trained(here, rate, data, told) | {"ladder": ladder.key}
            append_row(record, mine[str(rate)])
        rows |= _by_rate(ranks.told(mine))


def _by_rate(found: Iterable[Mapping[str, Row]]) -> dict[float, Row]:
    return {float(rate): row for part in found for rate, row in part.items()}


def _told(
    progress: CalibrateProgress, name: str, done: int, total: int, step: int, loss: float
) -> None:
    progress(f"{name}: step {step + 1}, loss {loss:.4g}", done + step + 1, total)


def _is_of(row: Row, ladder: Ladder) -> bool:
    rate = row.get("learning_rate")
    return row.get("ladder") == ladder.key and isinstance(rate, int | float) and rate > 0


def _trained(
    ladder: Ladder,
    rate: float,
    data: TrainingData,
    progress: Callable[[int, float], None],
) -> Row:
    policy = OutcomePolicy()
    recipe = ladder.recipe.model_copy(update={"learning_rate": rate})
    model = _model(ladder)
    record = train_arm(
        model,
        data.batches,
        recipe,
        Arm(label="baseline"),
        seed=ladder.seed,
        progress=progress,
    )
    has_diverged = policy.has_diverged(record.curves)
    # Trained weights soon fit what they see: what they did not see tells how they fare.
    held = mean_loss(model, data.held_out) if data.held_out else None
    return row_of(
        f"{ladder.source.target} {rate:g}",
        recipe,
        ladder.shape,
        final_loss=policy.final_loss(record.curves) if held is None else held,
        state="diverged" if has_diverged else "finished",
        seed=ladder.seed,
        ladder=ladder.key,
        seconds=round(record.seconds, 2),
    )


def _longer(rows: dict[float, Row]) -> float | None:
    """Return a rate beyond the ladder's end where its edge or best rate lies there, or None."""
    if len(rows) >= _MOST:
        return None
    rates = sorted(rows)
    curves = []
    for rate in rates:
        stored = rows[rate]["final_loss"]
        loss = float(stored) if isinstance(stored, int | float) else math.nan
        curves.append(Curves(loss=np.array([loss]), grad_norm=np.zeros(1), planned_steps=1))
    ladder = OutcomePolicy().judge(rates, curves)
    if ladder.best_rate is None or ladder.best_rate == rates[0]:
        return _rounded(rates[0] / 10**_STEP)
    return None if ladder.outcomes[-1].is_failure else _rounded(rates[-1] * 10**_STEP)


def _data(ladder: Ladder, recipe: Recipe) -> TrainingData:
    return training_data(
        ladder.source,
        recipe,
        seed=ladder.seed,
        text=ladder.text,
        data=ladder.data,
        device=ladder.device,
        holds_out=ladder.source.is_pretrained,
    )


def _model(ladder: Ladder) -> nn.Module:
    return starting_model(ladder.source, ladder.recipe, ladder.seed).to(ladder.device)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
