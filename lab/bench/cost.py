"""Measure what a score costs: its imports beside `import torch`, its stages in forward passes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from rksp.assessment.pipeline import evaluate
from rksp.datasets.probe import make_probe
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

# The second and the fourth are what transformers itself loads, a lower bound of the lines after.
_CODE = {
    "import torch": "import torch",
    "a configuration alone": "from transformers.models.gpt2 import configuration_gpt2",
    "load for --evidence config": (
        "import rksp.assessment.pipeline; "
        "from rksp.models.resolve import resolve; "
        "resolve('gpt2', counts=False)"
    ),
    "a model class alone": "from transformers.models.gpt2 import modeling_gpt2",
    "load for a score": (
        "import rksp.assessment.measuring, rksp.assessment.measured, rksp.assessment.pipeline; "
        "from rksp.models.resolve import resolve; "
        "resolve('gpt2')"
    ),
}
_CLOCK = "import gc, time; gc.disable(); {}; print(time.process_time())"


def import_cost(rounds: int = 1) -> list[dict[str, object]]:
    """Time imports in processes of their own.

    Args:
        rounds: The least of so many measurements counts.

    Returns:
        A row a purpose: `stage`, `seconds` of processor time with the interpreter's own start, and
        `torches`, the ratio to `import torch` alone.
    """
    seconds = {
        name: min(_timed_import(code) for _ in range(rounds)) for name, code in _CODE.items()
    }
    torch = seconds["import torch"]
    return [
        {"stage": name, "seconds": value, "torches": value / torch}
        for name, value in seconds.items()
    ]


def _timed_import(code: str) -> float:
    command = [sys.executable, "-c", _CLOCK.format(code)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def score_cost(
    target: str = "gpt2", *, overrides: Mapping[str, str] | None = None, rounds: int = 1
) -> list[dict[str, Any]]:
    """Time every stage of a score and divide by one forward pass of the bare model.

    Args:
        target: As for `rksp.resolve`.
        overrides: Likewise.
        rounds: The least of so many measurements counts.

    Returns:
        A row a stage and one for all of them: `stage`, `seconds` of processor time, which other
        work on the machine changes less than the clock, and `forward_passes`.
    """
    source = resolve(target, overrides=overrides)
    model, probe = source.build(0), make_probe(source)
    forward = min(_forward(model, probe) for _ in range(1 + rounds))  # the first is to warm up
    del model
    runs = [_stages(source) for _ in range(rounds)]
    rows: list[dict[str, Any]] = [
        {"stage": "one forward pass", "seconds": forward, "forward_passes": 1.0}
    ]
    for stage in runs[0]:
        seconds = min(run[stage] for run in runs)
        rows.append({"stage": stage, "seconds": seconds, "forward_passes": seconds / forward})
    total = sum(row["seconds"] for row in rows[1:])
    rows.append({"stage": "all", "seconds": total, "forward_passes": total / forward})
    return rows


def _stages(source) -> dict[str, float]:
    """Return the processor seconds of each stage of one score."""
    begun: dict[str, float] = {}

    def note(done: float, total: float, stage: str) -> None:
        begun.setdefault(stage, time.process_time())

    evaluate(
        source,
        Recipe(learning_rate=1e-3),
        progress=note,
    )
    ends = [*begun.values(), time.process_time()][1:]
    return {stage: end - start for (stage, start), end in zip(begun.items(), ends, strict=True)}


def _forward(model: torch.nn.Module, probe) -> float:
    start = time.process_time()
    with torch.no_grad():
        model(**probe.inputs)
    return time.process_time() - start
