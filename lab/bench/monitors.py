"""Measure what monitors and interventions cost, as a share of a training step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
import typer

from lab.bench.rotation import Rotation
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.recipe import Recipe
from rksp.watch.moment import Moment
from rksp.watch.monitors.watch import Watch
from rksp.watch.monitors.weights import QKSpectralEntropy
from rksp.watch.registry import MONITORS, make_intervention, make_monitors
from rksp.watch.training import train
from rksp.watch.training.loop import Beside

# 25.5 million parameters. Monitors of weights cost the same for any batch, so with 1,024 tokens a
# step their share is larger than in real training.
SHAPE = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
BATCH, LENGTH = 4, 256
# Intervention → number of steps over which the cost of one action is spread.
INTERVENTIONS = {
    "kss:every=1": 1,
    "kss:form=published,every=1": 10,
    "msign:every=1,scope=attention": 100,
    "msign:every=1,scope=all": 100,
    "qk_clip": 1,
    "clip": 1,
    "zclip": 1,
    "adagc": 1,
    "z_loss": 1,
}


@dataclass(slots=True, kw_only=True)
class _Case:
    """One kind of step: its companion and the time of its fastest run."""

    name: str
    kind: str
    every: int
    companion: Beside
    reason: str | None = None
    seconds: float = 0.0


class _Sampled(Beside):
    """Records what the watch has spent on each monitor after every step that it joins."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch, [], [], None)
        self.totals: list[dict[str, float]] = []

    def after_update(self, moment: Moment) -> None:
        """Let the monitors read, then record the seconds spent so far."""
        super().after_update(moment)
        self.totals.append(dict(self.watch.seconds))

    def cheapest(self, name: str) -> float:
        """Return the least seconds spent on a monitor in one step, without the first step."""
        return min(later[name] - sooner[name] for sooner, later in pairwise(self.totals))


def monitor_cost(
    shape: dict[str, object] | None = None,
    *,
    batch_size: int = BATCH,
    length: int = LENGTH,
    rounds: int = 3,
    interventions: Mapping[str, int] = INTERVENTIONS,
) -> list[dict[str, object]]:
    """Time training steps: bare, with every monitor sampling, and under each intervention.

    All kinds of step take turns in one run. Times are CPU seconds, the least of `rounds`, so that
    other work on the machine adds little; give torch one thread. A monitor's share is the time
    that the watch spent on it, hooks included, over the bare step, spread over its cadence. An
    intervention's share is the extra time of the whole step; noise can make it negative. The row
    `whole` compares, for the monitors, the extra time of the step that samples all of them with
    the time that the watch reports.

    Args:
        shape: Settings of the model; default `SHAPE`.
        batch_size: Sequences per step.
        length: Tokens per sequence.
        rounds: Timed steps of each kind.
        interventions: Lines to time, with the steps that the cost of each is spread over.

    Returns:
        One row each: `name`, `kind` (step, monitor, intervention, sum or whole), `every`, `ms` (of
        the step or of the monitor) and `share`; or `reason` if it does not apply to this model.
    """
    watch = Watch(make_monitors([f"{name}:every=1" for name in MONITORS]), clock=time.process_time)
    for monitor in watch.monitors:
        if isinstance(monitor, QKSpectralEntropy):
            monitor.windows = monitor.windows[:1]  # the other runs at every tenth reading
    bare = _Case(name="bare step", kind="step", every=1, companion=Beside())
    sampled = _Sampled(watch)
    watched = _Case(name="all monitors in one step", kind="whole", every=1, companion=sampled)
    acted = [
        _Case(
            name=line,
            kind="intervention",
            every=every,
            companion=Beside(Watch([]), [make_intervention(line)], [], None),
        )
        for line, every in interventions.items()
    ]
    cases = [bare, watched, *acted]
    recipe = Recipe(
        learning_rate=1e-4,
        max_steps=len(cases) * (rounds + 1),
        schedule="constant",
        batch_size=batch_size,
        sequence_length=length,
    )
    batch = make_task("bytes", length=length).batches(1, batch_size, seed=0)[0]
    model = build_member("zoo_pre_ln", shape or SHAPE, seed=0)
    rotation = Rotation([case.companion for case in cases])
    train(model, [batch] * recipe.max_steps, recipe, companion=rotation)
    for index, case in enumerate(cases):
        case.reason = rotation.missing.get(index)
        case.seconds = min(rotation.seconds[index][1:], default=0.0)

    step = bare.seconds
    monitors = []
    for name, kind in MONITORS.items():
        row: dict[str, object] = {"name": name, "kind": "monitor", "every": kind.default_every}
        if name in watch.silent:
            monitors.append(row | {"reason": watch.silent[name]})
            continue
        seconds = sampled.cheapest(name)
        monitors.append(row | {"ms": 1e3 * seconds, "share": seconds / step / kind.default_every})
    together = sum(row["share"] for row in monitors if "share" in row)
    whole = _row(watched, step) | {
        "by_the_watch": sum(row["ms"] for row in monitors if "ms" in row) / (1e3 * step)
    }
    return [
        {"name": bare.name, "kind": bare.kind, "every": 1, "ms": 1e3 * step, "share": 1.0},
        *monitors,
        {"name": "all monitors", "kind": "sum", "share": together},
        whole,
        *(_row(case, step) for case in acted),
    ]


def fixed_cost(steps: int = 80) -> dict[str, object]:
    """Time a model so small that the watch costs only its fixed part.

    The model has two layers of width 64 and takes 512 tokens a step. All monitors run at their
    default cadence from the first step on, so each samples at least once and `bind` counts too.

    Returns:
        A row: `name`, `kind`, `bare` and `watched` (mean CPU ms per step) and `ms` (their
        difference).
    """
    shape = SHAPE | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    recipe = Recipe(
        learning_rate=1e-3,
        max_steps=steps,
        schedule="constant",
        batch_size=8,
        sequence_length=64,
    )
    batches = make_task("bytes", length=64).batches(steps, 8, seed=0)
    mean = {}
    for name, monitors in (("warm-up", []), ("bare", []), ("watched", make_monitors())):
        model = build_member("zoo_pre_ln", shape, seed=0)
        beside = Beside(Watch(monitors))
        started = time.process_time()
        train(model, batches, recipe, companion=beside)
        mean[name] = 1e3 * (time.process_time() - started) / steps
    row = {"name": f"two layers, {steps} steps", "kind": "fixed"}
    return (
        row
        | {"bare": mean["bare"], "watched": mean["watched"]}
        | {"ms": mean["watched"] - mean["bare"]}
    )


def _row(case: _Case, step: float) -> dict[str, object]:
    row: dict[str, object] = {"name": case.name, "kind": case.kind, "every": case.every}
    if case.reason is not None:
        return row | {"reason": case.reason}
    return row | {"ms": 1e3 * case.seconds, "share": (case.seconds / step - 1) / case.every}


def main(
    rounds: Annotated[int, typer.Option(help="Steps of every kind.")] = 3,
    batch_size: Annotated[int, typer.Option(help=f"Sequences of {LENGTH} tokens a step.")] = BATCH,
    interventions: Annotated[bool, typer.Option(help="Time interventions too.")] = True,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Time these alone: {'; '.join(INTERVENTIONS)}.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Time every monitor and intervention as a share of a training step."""
    torch.set_num_threads(1)
    lines = INTERVENTIONS if interventions else {}
    if only:
        lines = {line: every for line, every in INTERVENTIONS.items() if line in only}
    rows = monitor_cost(batch_size=batch_size, rounds=rounds, interventions=lines)
    rows.append(fixed_cost())
    if output_format == "json":
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        every = f"every {row['every']}" if "every" in row else ""
        spent = f"{row['ms']:>9.1f} ms" if "ms" in row else ""
        if row["kind"] == "fixed":
            share = f"a step of {row['bare']:.1f} ms is that much longer"
        else:
            share = f"{row['share']:>8.2%}" if "share" in row else row["reason"]
        typer.echo(f"{row['name']:<32}{every:<11}{spent:<13}{share}")


if __name__ == "__main__":
    typer.run(main)
