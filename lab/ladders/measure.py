"""Measure each ladder's model as rksp would have seen it before the first step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from lab.ladders.plan import LadderSpec
from lab.ladders.response import measure_response, of_response
from lab.tasks.tasks import Task, make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.measure.snapshots import collect
from rksp.spectra.dmd import SpectralAccumulator
from rksp.spectra.features import Features, extract

_STATES_PER_WIDTH = 2.7  # 2,048 states at width 768, the ratio that rksp score uses for GPT-2
_EVIDENCE_SEED = 1_000_003  # separates the probe's batches from the training batches


def measure_ladder(spec: LadderSpec) -> Features:
    """Measure every tier of evidence for a ladder's model, task and recipe, in training mode."""
    task = make_task(spec.task, **spec.task_options)
    recipe = spec.recipe.model_copy(update={"learning_rate": 1.0})
    seed = spec.seed + _EVIDENCE_SEED
    same, fresh = task.batches(2, recipe.batch_size, seed=seed)
    model = build_member(spec.family, spec.shape, seed=spec.seed)
    spectra = SpectralAccumulator()
    seen = collect(model, _probe(task, spec, seed + 1), consume=spectra.consume)
    response = measure_response(model, same, fresh, recipe)
    found = extract(seen.forward, spectra.finish())
    return replace(found, values={**found.values, **of_response(response)})


def _probe(task: Task, spec: LadderSpec, seed: int) -> Batch:
    """Draw a batch with `_STATES_PER_WIDTH` states per dimension, and at least 256 states."""
    states = max(256, math.ceil(_STATES_PER_WIDTH * cast(int, spec.shape["hidden_size"])))
    count = math.ceil(states / task.sequence_length)
    return task.batches(1, count, seed=seed)[0]
