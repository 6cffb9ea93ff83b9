"""Count the false alarms of all monitors in runs that are known to be healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import typer

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.ground.errors import RkspError
from rksp.own_runs.outcome import Outcome
from rksp.recipe import Recipe
from rksp.watch.monitors.rules import Rules, replay
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import MONITORS, make_monitors
from rksp.watch.training.loop import RunRecord, run

FAMILIES = ("zoo_pre_ln", "zoo_qk_norm", "zoo_moe", "gpt2", "llama", "mixtral")
WARMUP, STEPS, RATE = 50, 500, 1e-3
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
BATCH, LENGTH = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyRun:
    """One run and the rules that judge it.

    Attributes:
        family: Model family.
        seed: Seed of the initialization and of the data.
        steps: Training steps after the warm-up.
        record: Record of the run; its readings let the rules be replayed.
    """

    family: str
    seed: int
    steps: int
    record: RunRecord


def healthy_run(
    family: str,
    seed: int,
    *,
    steps: int = STEPS,
    rate: float = RATE,
    densest: int | None = None,
) -> HealthyRun:
    """Train a small model of a family on Shakespeare's bytes with every monitor on.

    The recipe is AdamW with 50 steps of warm-up, a cosine schedule and clipping at 1. The
    model has width 64 and depth 4; a step has 512 tokens.

    Args:
        family: Name of the model family.
        seed: Seed of the initialization and of the data.
        steps: Training steps, warm-up included.
        rate: The largest learning rate.
        densest: Read every monitor at least this often (Jacobian alignment a third as often); None
            keeps the default cadence.

    Returns:
        The run with its record.

    Raises:
        RkspError: The run was not healthy, so its alarms are not false.
    """
    recipe = Recipe(
        learning_rate=rate,
        warmup_steps=WARMUP,
        max_steps=steps,
        schedule="cosine",
        batch_size=BATCH,
        sequence_length=LENGTH,
    )
    batches = make_task("bytes", length=LENGTH).batches(steps, BATCH, seed=seed)
    watch = Watch(make_monitors(_lines(densest)), Rules(warmup_steps=WARMUP))
    record = run(build_member(family, SHAPE, seed=seed), batches, recipe, watch=watch, seed=seed)
    if record.outcome is not Outcome.HEALTHY:
        raise RkspError(f"The healthy run of {family} at seed {seed} was {record.outcome}.")
    return HealthyRun(family=family, seed=seed, steps=steps - WARMUP, record=record)


def false_alarms(runs: Sequence[HealthyRun]) -> Iterator[dict[str, object]]:
    """Count the alarms of the default rules, per monitor and for all monitors together.

    An alarm that only raises the severity of an open one is not counted again.

    Yields:
        Rows of `monitor`, `readings`, `alarms` and `per_1000_steps`, counted after the warm-up.
    """
    rules = Rules(warmup_steps=WARMUP)
    steps = sum(part.steps for part in runs)
    alarms = Counter(
        alarm.monitor
        for part in runs
        for alarm in replay(part.record.readings, rules)
        if not alarm.is_escalation
    )
    readings = Counter(r.monitor for part in runs for r in part.record.readings)
    for name in (*MONITORS, "all"):
        count = alarms.total() if name == "all" else alarms[name]
        yield {
            "monitor": name,
            "readings": readings.total() if name == "all" else readings[name],
            "alarms": count,
            "per_1000_steps": 1000 * count / steps,
        }


def _lines(densest: int | None) -> list[str]:
    if densest is None:
        return ["all"]
    return [f"{name}:every={min(kind.default_every, densest)}" for name, kind in MONITORS.items()]


def main(
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0",
    steps: Annotated[int, typer.Option(help="Steps of every run, 50 of them warm-up.")] = 500,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = RATE,
    densest: Annotated[
        int | None, typer.Option(help="Read every monitor at least this often.")
    ] = None,
) -> None:
    """Count the false alarms of all monitors in healthy runs of six small models."""
    torch.set_num_threads(1)
    runs = [
        healthy_run(family, int(seed), steps=steps, rate=rate, densest=densest)
        for seed in seeds.split(",")
        for family in FAMILIES
    ]
    typer.echo(f"{sum(part.steps for part in runs)} healthy steps after warm-up")
    for row in false_alarms(runs):
        typer.echo(f"{row['monitor']:<22}{row['readings']:>8} readings{row['alarms']:>5} alarms")


if __name__ == "__main__":
    typer.run(main)
