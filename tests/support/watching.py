"""One watched step of a tiny model, and alarms of artificial series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from support.tiny_models import loss_of
from torch import Tensor, nn

from rksp.confirm.watched import watched_run
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Monitor, Reading
from rksp.watch.monitors.rules import Rules, replay
from rksp.watch.monitors.sinks import read_lines, record_of
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import MONITORS


def observe(
    model: nn.Module, monitor: Monitor, inputs: Tensor, *, step: int = 0, watch: Watch | None = None
) -> list[Reading]:
    """Return the readings of one step's forward pass, backward pass and (absent) update."""
    if watch is None:
        watch = Watch([monitor])
        assert watch.bind(model) == {}
    before = len(watch.readings)
    watch.begin_step(step)
    loss_of(model(inputs)).backward()
    watch.after_backward(Moment(step=step, model=model))
    watch.after_update(Moment(step=step, model=model))
    model.zero_grad()
    assert watch.silent == {}
    return watch.readings[before:]


def values_of(readings: Sequence[Reading], quantity: str) -> dict[str, float]:
    """Return layer → value of one quantity."""
    return {r.layer: r.value for r in readings if r.quantity == quantity}


def alarms_of(quantity: str, rows: Mapping[str, Sequence[float]]) -> list[Alarm]:
    """Return the alarms of the default rules on series of one quantity, layer by layer."""
    count = len(next(iter(rows.values())))
    readings = [
        Reading(monitor="m", quantity=quantity, step=step, layer=layer, value=float(values[step]))
        for step in range(count)
        for layer, values in rows.items()
    ]
    return replay(readings, Rules())


def markdown_table() -> str:
    """Return every quantity of every monitor with its cadence, alarm rule, advice and source."""
    lines = [
        "| monitor | quantity | every | alarm | advice | source |",
        "|---|---|---:|---|---|---|",
    ]
    for monitor in MONITORS.values():
        for quantity, rule in monitor.quantities.items():
            cells = (monitor.name, f"`{quantity}`", monitor.default_every, rule, rule.advice)
            lines.append("| " + " | ".join(map(str, (*cells, monitor.source))) + " |")
    return "\n".join(lines) + "\n"


def noise(count: int, seed: int = 0) -> np.ndarray:
    """Return standard normal samples."""
    return np.random.default_rng(seed).standard_normal(count)


def read_log(path: Path) -> tuple[list[Reading], list[Alarm]]:
    """Return the readings and alarms that `JsonLines` wrote."""
    records = list(read_lines(path, record_of))
    readings = [record for record in records if isinstance(record, Reading)]
    return readings, [record for record in records if isinstance(record, Alarm)]


def read_losses(log: Path) -> list[float]:
    """Return the losses that a log of `rksp watch` shows, by step."""
    return [loss for _, loss in watched_run(log).trial.loss]
