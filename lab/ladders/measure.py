"""Measure each ladder's model as rksp would have seen it before the first step."""

from __future__ import annotations

import math
from typing import cast

from lab.ladders.plan import LadderSpec
from lab.tasks.tasks import Task, make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.measure.gradient import measure_gradient
from rksp.measure.snapshots import collect
from rksp.spectra.dmd import SpectralAccumulator
from rksp.spectra.features import Features, extract

_STATES_PER_WIDTH = 2.7  # 2,048 states at width 768, the ratio that rksp score uses for GPT-2
_EVIDENCE_SEED = 1_000_003  # separates the probe's batches from the training batches


def measure_ladder(spec: LadderSpec) -> Features:
    """Measure every tier of evidence for a ladder's model, task and recipe, in training mode."""
    task = make_task(spec.task, **spec.task_options)
    seed = spec.seed + _EVIDENCE_SEED
    # The second was that of steps along the first update, which older rows hold columns of.
    batch, _ = task.batches(2, spec.recipe.batch_size, seed=seed)
    model = build_member(spec.family, spec.shape, seed=spec.seed)
    spectra = SpectralAccumulator()
    seen = collect(model, _probe(task, spec, seed + 1), consume=spectra.consume)
    return extract(seen.forward, spectra.finish(), measure_gradient(model, batch))


def _probe(task: Task, spec: LadderSpec, seed: int) -> Batch:
    """Draw a batch with `_STATES_PER_WIDTH` states per dimension, and at least 256 states."""
    states = max(256, math.ceil(_STATES_PER_WIDTH * cast(int, spec.shape["hidden_size"])))
    count = math.ceil(states / task.sequence_length)
    return task.batches(1, count, seed=seed)[0]
