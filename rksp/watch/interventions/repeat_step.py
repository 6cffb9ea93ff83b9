"""Repeated steps: a gradient that leaps is computed again before it moves a weight."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.watch.groups import local
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment, Repeat

MIN_SAMPLES = 8


class RepeatStep(Intervention):
    """Computes a suspicious step again, to tell a hard batch from a device that miscalculated.

    A step is suspicious if its gradient norm is above `ratio` times the median of the last
    `window` ones. Its gradient g is then computed again from the same batches, with the same
    random numbers, as g'. If ‖g − g'‖ ≤ `tolerance` ‖g'‖ the batch is hard and the step stands. If
    not, the gradient is computed a third time, as g''. Where g' and g'' agree, the defect was
    transient and the step takes g'; where they do not, the step is dropped. Detection by a jump
    and the repetition are those of Altenbernd et al. (2026, arXiv 2604.00726); the constants are
    ours.

    In a run of several processes the detail `rank` names the one whose own loss differed most
    between the repetitions. It is -1 if no loss differed, as after a defect of the backward pass.
    A defect that gives the same wrong number every time is not seen, and neither is a changed
    weight. Needs a loop that can repeat a step, as `rksp.watch.training.run` does.

    Args:
        ratio: Of the gradient norm to its median.
        tolerance: Relative distance of two gradients that count as equal.
        window: Norms that are remembered.
    """

    name = "repeat_step"

    def __init__(self, ratio: float = 3.0, tolerance: float = 1e-3, window: int = 64) -> None:
        super().__init__()
        if not ratio > 1 or not tolerance > 0 or window < MIN_SAMPLES:
            raise InputError(
                f"Repeated steps need ratio > 1, tolerance > 0 and window >= {MIN_SAMPLES}, got "
                f"ratio={ratio}, tolerance={tolerance}, window={window}."
            )
        self.ratio, self.tolerance = ratio, tolerance
        self._norms: deque[float] = deque(maxlen=window)

    def before_update(self, moment: Moment) -> None:
        """Repeat the step if its gradient norm is suspicious."""
        params = [p for p in moment.model.parameters() if p.grad is not None]
        norm = float(_norm([definite(p.grad) for p in params]))
        is_known = len(self._norms) >= MIN_SAMPLES
        if moment.repeat is None or not is_known or norm <= self._bar():
            self._norms.append(norm)
            return
        start = time.perf_counter()
        first = [definite(p.grad) for p in params]
        second = moment.repeat()
        distance, rank = _distance(first, second), -1
        what = "repeated a hard step"
        if distance > self.tolerance:
            rank = _culprit(second.moved, self.tolerance)
            third = moment.repeat()
            is_transient = _distance(second.gradients, third) <= self.tolerance
            what = "took the repeated gradient" if is_transient else "dropped the step"
            for p, gradient in zip(params, second.gradients, strict=True):
                p.grad = gradient if is_transient else None
        detail: dict[str, Any] = {
            "ratio": norm / statistics.median(self._norms),
            "distance": distance,
        }
        record(self, moment, what, since=start, **detail, rank=float(rank))

    def _bar(self) -> float:
        return self.ratio * statistics.median(self._norms)


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    return torch.stack([local(g).double().norm() for g in gradients]).norm()


def _distance(gradients: Sequence[Tensor], other: Repeat) -> float:
    """Return the norm of the difference over the norm of the other; infinite if not finite."""
    pairs = zip(gradients, other.gradients, strict=True)
    apart = float(_norm([local(g).double() - local(o).double() for g, o in pairs]))
    ratio = apart / max(float(_norm(other.gradients)), 1e-30)
    return ratio if math.isfinite(ratio) else math.inf


def _culprit(moved: float, tolerance: float) -> int:
    """Return the rank whose own loss moved most between the repetitions; -1 if none did."""
    if not (dist.is_available() and dist.is_initialized()):
        return -1
    own = torch.tensor(moved if math.isfinite(moved) else 1e30, dtype=torch.float64)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    worst = max(range(len(parts)), key=lambda rank: float(parts[rank]))
    return worst if float(parts[worst]) > tolerance else -1
