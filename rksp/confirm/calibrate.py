"""A short ladder of real runs of a model, or of its tiny twin, from which rksp then learns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rksp.assessment.gathering import gather
from rksp.assessment.measured import measured_inputs
from rksp.assessment.risk import declared_inputs
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.confirm.arms import Arm
from rksp.confirm.data import training_data
from rksp.confirm.trial import in_precision, train_arm
from rksp.datasets.own_rows import OwnRows
from rksp.ground.errors import InputError
from rksp.ground.files import digest
from rksp.ground.model import definite
from rksp.models.declared import Declared
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.outcome import Curves, OutcomePolicy
from rksp.own_runs.record import Row, append_row, read_record, row_of
from rksp.own_runs.shape import Shape
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
        inputs: Of the model of the edge.
        seed: Of initialization and data.
        text, data: What it trains on instead of the bundled text.
        device: Where it trains.
    """

    source: ModelSource
    recipe: Recipe
    shape: Shape
    inputs: EdgeInputs
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
            self.recipe.model_dump(mode="json"),
            self.seed,
            str(self.text),
            self.device,
        ]
        return digest(json.dumps(told, sort_keys=True, default=str))

    def first_rates(self) -> list[float]:
        """Return the rates to begin with, around the likely edge of the shipped model."""
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
        InputError: It cannot be trained from random weights.
    """
    if source.is_pretrained or source.starts_trained or recipe.starts_trained:
        raise InputError(
            "rksp calibrate trains ladders from random weights, which say nothing of trained ones; "
            "give a model type or a config.json."
        )
    source.check_size()
    if source.config is None and source.batch is None:
        raise InputError(
            f"{source.target} comes without a batch, so it cannot be trained; return (model, "
            "batch) from the factory."
        )
    trained = recipe.shortened(steps).model_copy(update={"learning_rate": None})
    inputs = _inputs(source, trained, seed)
    return Ladder(
        source=source,
        recipe=trained,
        shape=Shape.of(inputs),
        inputs=inputs,
        seed=seed,
        text=text,
        data=data,
        device=device,
    )


def _inputs(source: ModelSource, recipe: Recipe, seed: int) -> EdgeInputs:
    declared = Declared(source.config, source.task)
    if declared.width and declared.depth:
        return declared_inputs(declared, recipe)
    evidence = gather(source, MeasureOptions(evidence="forward", seed=seed))
    return measured_inputs(evidence, recipe)


def cost(ladder: Ladder) -> tuple[float, float]:
    """Return the seconds and the bytes that the ladder is expected to take, from a few steps."""
    short = ladder.recipe.model_copy(update={"max_steps": _TIMED, "warmup_steps": 0})
    rate = min(ladder.first_rates())
    batches = _batches(ladder, short)
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
) -> list[Row]:
    """Train the ladder and append every run to `record`; runs that it holds are not trained again.

    It grows by a rate at a time where nothing failed at its upper end, or where its lowest rate is
    the best.

    Args:
        ladder: From `make_ladder`.
        record: The file of runs; created if absent.
        progress: Called with the progress.

    Returns:
        The rows of this ladder, by rate.

    Raises:
        InputError: The file cannot be used.
    """
    rows = {float(str(r["learning_rate"])): r for r in read_record(record) if _is_of(r, ladder)}
    planned = ladder.first_rates()
    batches = None
    while True:
        rate = next((rate for rate in planned if rate not in rows), None)
        if rate is None:
            rate = _longer(rows)
            if rate is None:
                return [rows[rate] for rate in sorted(rows)]
            planned.append(rate)
        batches = batches or _batches(ladder, ladder.recipe)
        total = max(len(planned), _COUNT) * ladder.recipe.max_steps
        done = len(rows) * ladder.recipe.max_steps
        name = f"run {len(rows) + 1} of {len(planned)}, rate {rate:g}"
        progress(name, done, total)
        told = partial(_told, progress, name, done, total)
        rows[rate] = _trained(ladder, rate, batches, told)
        append_row(record, rows[rate])


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
    batches: Sequence,
    progress: Callable[[int, float], None],
) -> Row:
    policy = OutcomePolicy()
    recipe = ladder.recipe.model_copy(update={"learning_rate": rate})
    record = train_arm(
        _model(ladder),
        batches,
        recipe,
        Arm(label="baseline"),
        seed=ladder.seed,
        progress=progress,
    )
    has_diverged = policy.has_diverged(record.curves)
    return row_of(
        f"{ladder.source.target} {rate:g}",
        recipe,
        ladder.shape,
        final_loss=policy.final_loss(record.curves),
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


def _batches(ladder: Ladder, recipe: Recipe) -> list:
    found = training_data(
        ladder.source,
        recipe,
        seed=ladder.seed,
        text=ladder.text,
        data=ladder.data,
        device=ladder.device,
    )
    return found.batches


def _model(ladder: Ladder):
    model = in_precision(definite(ladder.source.build(ladder.seed)), ladder.recipe)
    return model.train().to(ladder.device)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
