"""The cost of interventions in the settings of the experiments, as a share of a training step.

Steps of every kind alternate in one run, so that other work on the machine slows all of them. The
cost of a kind is the processor time of its cheapest step over that of the cheapest bare step, on
one thread. `kss-batch` is `kss` at four times the batch, where a penalty of as many tokens costs a
quarter as much, and `kss-wide` the same at width 256.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lab.bench.rotation import Rotation
from lab.experiments.catalog import ENERGY, EXPERIMENTS, PUBLISHED
from lab.experiments.rows import Cost
from lab.experiments.trials import Trial
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention
from rksp.watch.training import train
from rksp.watch.training.loop import Beside

ROUNDS = 40
# Arm → the same intervention acting at every step, and its real cadence in steps.
LINES = {
    "kss": {
        "clip=1.0": ("clip:norm=1.0", 1),
        ENERGY: (ENERGY, 1),
        "step_clip": ("step_clip", 1),
        PUBLISHED: (f"{PUBLISHED},every=1", 10),
    },
    "kss-batch": {ENERGY: (ENERGY, 1)},
    "kss-wide": {ENERGY: (ENERGY, 1)},
    "msign": {
        "msign:every=100,scope=attention": ("msign:every=1,scope=attention", 100),
        "msign:every=100,scope=mlp": ("msign:every=1,scope=mlp", 100),
        "msign:every=100,scope=all": ("msign:every=1,scope=all", 100),
    },
}


def measure(*, rounds: int = ROUNDS) -> list[Cost]:
    """Time the arms in the settings of their experiments, on one thread."""
    torch.set_num_threads(1)
    kss = EXPERIMENTS["kss"].setting
    batch = kss.recipe.model_copy(update={"batch_size": 128})
    larger = kss.model_copy(update={"recipe": batch})
    trials = {
        "kss": kss,
        "kss-batch": larger,
        "kss-wide": larger.model_copy(update={"shape": {**larger.shape, "hidden_size": 256}}),
        "msign": EXPERIMENTS["msign"].setting,
    }
    return [
        cost for name, lines in LINES.items() for cost in _of(name, trials[name], lines, rounds)
    ]


def _of(name: str, trial: Trial, lines: Mapping[str, tuple[str, int]], rounds: int) -> list[Cost]:
    acted = [Beside(Watch([]), [make_intervention(line)], [], None) for line, _ in lines.values()]
    rotation = Rotation([Beside(), *acted])
    steps = rounds * len(rotation.companions)
    # The low rate keeps the states those of a run that trains.
    recipe = trial.recipe.model_copy(
        update={"learning_rate": 1e-4, "max_steps": steps, "warmup_steps": 0}
    )
    task = make_task(trial.task, **trial.task_options)
    batch = task.batches(1, recipe.batch_size, seed=0)[0]
    model = build_member(trial.family, trial.shape, seed=0)
    train(model, [batch] * steps, recipe, companion=rotation)
    bare, *acting = (1e3 * min(seconds) for seconds in rotation.seconds)
    return [
        Cost(experiment=name, arm=arm, every=every, bare=bare, acting=spent)
        for (arm, (_, every)), spent in zip(lines.items(), acting, strict=True)
    ]
