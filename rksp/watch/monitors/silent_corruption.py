"""Silent corruption: compare replicas that should agree with each other, not with the past."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.watch.groups import of_all_ranks, world_size
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Monitor, Reading, Rule

OUTLIER = 2.5  # robust standard deviations from the other ranks (TrainSDC)
DOMINANCE = 1.5  # of the largest score over the second largest (TrainSDC)
WINDOW = 64
MIN_RANKS = 4
MIN_HISTORY = 16
FLOOR = 1e-6


@dataclass(eq=False)
class SilentCorruption(Monitor):
    """Compares data-parallel replicas, so that a hard batch is not taken for a broken device.

    - `residual_gain_outlier` per block, the Residual Gain Guard of TrainSDC (2026, arXiv
      2608.30769): g = ln RMS(out) - ln RMS(in) on every rank, e = g - median over the other ranks,
      scaled by 1.4826 times the MAD of that rank's e over 64 samples. The value is the largest |e|
      in these scales if it is 1.5 times the second largest, else 0 (no rank stands out). The paper
      alarms at 2.5, rksp at 6. It needs four ranks, because with three a bad rank moves the median
      of each of the others. `rank` is the rank that stands out.
    - `checksum_mismatch`: number of ranks whose weights differ in any bit from those of most ranks,
      by a 64-bit sum over each tensor's bits, every `checksum_every` samples. It needs weights that
      are whole on every rank (not FSDP). `rank` is the first that differs; if two ranks disagree it
      is -1, because nothing tells which is right.

    Every rank must take the same steps. A sample costs one small gather.
    """

    name = "silent-corruption"
    default_every = 10
    quantities: ClassVar = {
        "residual_gain_outlier": Rule(direction=None, warn=6.0),
        "checksum_mismatch": Rule(direction=None, critical=1.0, advice="backoff"),
    }
    source = "TrainSDC, arXiv 2608.30769"

    blocks: PositiveInt = 4
    checksum_every: PositiveInt = 10

    def bind(self, model: nn.Module) -> str | None:
        if world_size() < 2:
            return "the run has one process, so there is no replica to compare with"
        paths = block_paths(model)
        count = min(self.blocks, len(paths))
        self._blocks = [paths[i * len(paths) // count] for i in range(count)]
        self._params = list(model.named_parameters())
        self._is_sharded = any(isinstance(p, DTensor) for _, p in self._params)
        if world_size() < MIN_RANKS and self._is_sharded:
            return f"the weights are sharded, and a comparison of gains needs {MIN_RANKS} ranks"
        return super().bind(model)

    def reset(self) -> None:
        super().reset()
        self._samples = 0

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        handles = []
        for path in self._blocks:
            block, before = model.get_submodule(path), partial(self._before, path)
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(block.register_forward_hook(partial(self._after, path)))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        readings = []
        for path, gains in zip(self._blocks, self._gathered_gains(), strict=True):
            found = self._outlier(path, gains)
            if found is not None:
                value, rank = found[0], float(found[1])
                name = "residual_gain_outlier"
                readings.append(self.reading(name, moment.step, value, layer=path, rank=rank))
        if self._samples % self.checksum_every == 0 and not self._is_sharded:
            readings.append(self._checksums(moment.step))
        self._samples += 1
        return readings

    def _before(self, path: str, module: nn.Module, args: object, kwargs: object) -> None:
        self.seen[path] = _log_rms((args, kwargs))

    def _after(self, path: str, module: nn.Module, args: object, output: object) -> None:
        self.seen[path] += _log_rms(output)

    def _gathered_gains(self) -> list[list[float]]:
        """Return ln of every block's gain on every rank; NaN if a block did not run."""
        pairs = [self.seen.get(path, ()) for path in self._blocks]
        missing = self._params[0][1].new_tensor(math.nan, dtype=torch.float32)
        own = torch.stack([pair[1] - pair[0] if len(pair) == 2 else missing for pair in pairs])
        return of_all_ranks(own).T.tolist()

    def _outlier(self, path: str, gains: list[float]) -> tuple[float, int] | None:
        """Return (value, rank) of one block; None while the history is too short."""
        if len(gains) < MIN_RANKS:
            return None
        history = self.past.setdefault(path, [deque(maxlen=WINDOW) for _ in gains])
        errors, scores = [], []
        for rank, past in enumerate(history):
            error = gains[rank] - statistics.median(gains[:rank] + gains[rank + 1 :])
            errors.append(error)
            scores.append(_robust_score(error, past))
        ready = min(map(len, history)) >= MIN_HISTORY
        order = sorted(range(len(scores)), key=lambda rank: scores[rank])
        worst, second = scores[order[-1]], scores[order[-2]]
        value = worst if worst >= DOMINANCE * second else 0.0
        if not ready or value < OUTLIER:  # flagged samples do not enter the history
            for past, error in zip(history, errors, strict=True):
                if math.isfinite(error):
                    past.append(error)
        return (value, order[-1]) if ready else None

    def _checksums(self, step: int) -> Reading:
        own = torch.stack([_checksum(p) for _, p in self._params])
        rows = [tuple(row) for row in of_all_ranks(own).tolist()]
        usual = statistics.mode(rows)
        wrong = [rank for rank, row in enumerate(rows) if row != usual]
        is_split = len(rows) == 2 and bool(wrong)
        layer = ""
        if wrong:
            pairs = zip(self._params, rows[wrong[0]], usual, strict=True)
            layer = next(name for (name, _), own_sum, sum_ in pairs if own_sum != sum_)
        rank = -1 if is_split or not wrong else wrong[0]
        count = float(len(wrong))
        return self.reading("checksum_mismatch", step, count, layer=layer, rank=float(rank))


def _log_rms(value: object) -> list[Tensor]:
    tensor = first_tensor(value)
    return [] if tensor is None else [0.5 * tensor.detach().float().square().mean().log()]


def _robust_score(error: float, past: Sequence[float]) -> float:
    if not past:
        return 0.0
    if not math.isfinite(error):
        return math.inf
    spread = 1.4826 * statistics.median([abs(e - statistics.median(past)) for e in past])
    return abs(error) / max(spread, FLOOR)


def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of the bits read as integers, int64, wrapping around."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(kinds[tensor.element_size()])
    return bits.sum(dtype=torch.int64)
