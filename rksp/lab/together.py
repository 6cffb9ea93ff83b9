"""Train ladders of one shape together on an accelerator, their runs as one program."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial

import torch

from rksp.ground.model import definite
from rksp.lab.batched import train_replicas
from rksp.lab.ladder import LadderRun, Pair, Timed, ladder_batches, run_ladders, train_alone
from rksp.lab.plan import LadderSpec
from rksp.models.zoo import zoo_config

MAX_REPLICAS = 256  # per program


def shape_key(spec: LadderSpec) -> str | None:
    """Return a key that is equal for ladders that can share a program; None for other ladders.

    They share everything but the seed and the settings that each replica may have: rate, warm-up,
    schedule, betas, epsilon, decay and clipping.
    """
    recipe = spec.recipe
    if zoo_config(spec.family, spec.shape) is None or spec.interventions:
        return None
    if (recipe.optimizer, recipe.precision) != ("adamw", "fp32"):
        return None
    if recipe.gradient_accumulation_steps != 1:
        return None
    shared = (spec.family, spec.shape, spec.task, spec.task_options)
    sizes = (recipe.max_steps, recipe.batch_size, recipe.sequence_length)
    return json.dumps((*shared, *sizes), sort_keys=True)


def groups(specs: Sequence[LadderSpec]) -> list[list[LadderSpec]]:
    """Group ladders by shape, in order of first appearance; a ladder without a key is alone."""
    found: dict[str, list[LadderSpec]] = {}
    for spec in specs:
        found.setdefault(shape_key(spec) or spec.id, []).append(spec)
    return list(found.values())


def run_group(specs: Sequence[LadderSpec], *, device: torch.device | str) -> list[LadderRun]:
    """Train the ladders of one group of `groups`, with the labels of `run_ladders`.

    Curves agree with those trained alone to rounding (tests/lab/test_batched.py). If the rounding
    moves a rate across a label, the ladder is bisected differently, as on another machine.
    """
    if shape_key(specs[0]) is None:
        return run_ladders(specs, train_alone)
    return run_ladders(specs, partial(train_together, device=device))


def train_together(pairs: Sequence[Pair], *, device: torch.device | str) -> list[Timed]:
    """Train the runs of one round as batched programs of at most `MAX_REPLICAS`."""
    batches = {spec.id: ladder_batches(spec) for spec, _ in pairs}
    results: list[Timed] = []
    for start in range(0, len(pairs), MAX_REPLICAS):
        part = pairs[start : start + MAX_REPLICAS]
        began = time.perf_counter()
        curves = train_replicas(
            definite(zoo_config(part[0][0].family, part[0][0].shape)),
            [spec.recipe.model_copy(update={"learning_rate": rate}) for spec, rate in part],
            seeds=[spec.seed for spec, _ in part],
            batches=[batches[spec.id] for spec, _ in part],
            device=device,
        )
        share = (time.perf_counter() - began) / len(part)
        results += [(curve, share) for curve in curves]
    return results
