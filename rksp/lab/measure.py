"""The evidence beside each ladder: what rksp would have seen before its first step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rksp.batch import Batch
from rksp.datasets.tasks import Task, make_task
from rksp.errors import ArtifactError
from rksp.features import FEATURE_NAMES, SCHEMA, FeatureVector, extract
from rksp.files import ResultFolder, read_text
from rksp.lab.plan import LadderSpec
from rksp.measure.lr_range import STEPS, range_test
from rksp.measure.response import measure_response
from rksp.measure.snapshots import collect
from rksp.models.zoo import build_member
from rksp.spectra.profile import SpectralAccumulator

_STATES_PER_WIDTH = 2.7  # 2,048 states at width 768, the ratio that rksp score uses for GPT-2
_LARGEST = 2**20  # bytes of a stored measurement
_EVIDENCE_SEED = 1_000_003  # keeps the probe's batches apart from the training batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One ladder before training.

    Attributes:
        features: At learning rate 1; every run of the ladder is a shift of it.
        parameters: Number of trainable parameters.
        points: (rate, change of the fresh loss in nats) of the response, for the baseline that
            predicts from one step; infinite after overflow.
        forward_passes: Cost of everything but the range test, over the response's batches.
    """

    ladder: str
    features: FeatureVector
    parameters: int
    points: tuple[tuple[float, float], ...]
    forward_passes: float


def measure_ladder(spec: LadderSpec) -> Measurement:
    """Measures every tier of evidence for a ladder's model, task and recipe, in training mode."""
    task = make_task(spec.task, **spec.task_options)
    recipe = spec.recipe.model_copy(update={"learning_rate": 1.0})
    seed = spec.seed + _EVIDENCE_SEED
    batches = task.batches(STEPS + 2, recipe.batch_size, seed=seed)
    model = build_member(spec.family, spec.shape, seed=spec.seed)
    spectra = SpectralAccumulator()
    seen = collect(model, _probe(task, spec, seed + 1), consume=spectra.consume)
    response = measure_response(model, batches[0], batches[1], recipe)
    rising = range_test(model, batches[2:], recipe, update_rms=response.update_rms or 1.0)
    features = extract(
        recipe,
        depth=spec.shape["num_hidden_layers"],
        forward=seen.forward,
        spectra=spectra.finish(),
        response=response,
        range_test=rising,
    )
    return Measurement(
        ladder=spec.id,
        features=features,
        parameters=sum(p.numel() for p in model.parameters()),
        points=tuple((point.rate, point.fresh) for point in response.points),
        forward_passes=response.forward_passes + 1,
    )


def _probe(task: Task, spec: LadderSpec, seed: int) -> Batch:
    """Enough sequences for `_STATES_PER_WIDTH` states per dimension, and at least 256 states."""
    states = max(256, math.ceil(_STATES_PER_WIDTH * spec.shape["hidden_size"]))
    count = math.ceil(states / task.sequence_length)
    return task.batches(1, count, seed=seed)[0]


def write_measurement(folder: Path, measurement: Measurement) -> None:
    """Stores a measurement under its ladder's id, whole or not at all."""
    document = {
        "schema": SCHEMA,
        "ladder": measurement.ladder,
        "features": {
            name: _number(value)
            for name, value in zip(FEATURE_NAMES, measurement.features.values, strict=True)
        },
        "tier": str(measurement.features.tier),
        "parameters": measurement.parameters,
        "points": [[_number(rate), _number(change)] for rate, change in measurement.points],
        "forward_passes": measurement.forward_passes,
    }
    ResultFolder(folder).write(measurement.ladder, json.dumps(document, allow_nan=False))


def read_measurement(path: Path) -> dict[str, object]:
    """The stored form, checked for its schema.

    Raises:
        ArtifactError: The file follows another feature schema.
    """
    try:
        document = json.loads(read_text(path, _LARGEST))
        found, names = document.get("schema"), set(document["features"])
        document["ladder"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path.name} is not a measurement: {error!r:.200}.") from error
    if found != SCHEMA or names != set(FEATURE_NAMES):
        raise ArtifactError(
            f"{path.name} holds features of {found!r}, not {SCHEMA!r}; measure the folder again."
        )
    return document


def _number(value: float) -> float | str | None:
    """Seven digits; not measured is null, and infinity is spelled out."""
    if np.isnan(value):
        return None
    return float(f"{value:.7g}") if np.isfinite(value) else str(float(value))
