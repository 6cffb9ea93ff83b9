"""What a score costs, in multiples of one forward pass over the same probe."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from rksp.datasets.probe import make_probe
from rksp.models.resolve import resolve
from rksp.pipeline import evaluate
from rksp.recipe import Recipe


def score_cost(
    target: str = "gpt2", *, overrides: Mapping[str, str] | None = None, rounds: int = 3
) -> list[dict[str, object]]:
    """Time every stage of a score and divide by one forward pass of the bare model.

    Returns:
        A row a stage and one for all of them: `stage`, `seconds` (median over rounds) and
        `forward_passes`.
    """
    source = resolve(target, overrides=overrides)
    model, probe = source.build(0), make_probe(source)
    forward = statistics.median(_timed(lambda: _forward(model, probe)) for _ in range(rounds))
    runs = [evaluate(source, Recipe(learning_rate=1e-3))[0].seconds for _ in range(rounds)]
    rows = [{"stage": "one forward pass", "seconds": forward, "forward_passes": 1.0}]
    for stage in runs[0]:
        seconds = statistics.median(run[stage] for run in runs)
        rows.append({"stage": stage, "seconds": seconds, "forward_passes": seconds / forward})
    total = sum(row["seconds"] for row in rows[1:])
    rows.append({"stage": "all", "seconds": total, "forward_passes": total / forward})
    return rows


def _forward(model: torch.nn.Module, probe) -> None:
    with torch.no_grad():
        model(**probe.inputs)


def _timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
