"""Predict how much memory a streamed pass will take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rksp.ground.errors import InputError
from rksp.models.streaming.units import Unit

_PER_STATE = 40  # bytes per entry of a block's states while its spectrum is fitted
_ACTIVATIONS = 4  # outputs of the widest module that are alive at once inside a block
_SCRATCH = 12  # such outputs that statistics take and the allocator keeps, ...
_MOST_SCRATCH = 400 * 10**6  # ... but no more bytes: larger blocks go back to the system
_WIDTHS = ("hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "d_ff", "ffn_dim")
OVERHEAD = 50 * 10**6  # bytes for threads and BLAS buffers; a tenth is lost between allocations
_SHARE = 0.9  # of the free memory, if no limit is given
# Limit and usage of a container (cgroup 2, cgroup 1), and the name of the usage: file pages do not
# count, because the system frees them on demand.
_CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat", "anon"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_rss",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Predicted peak of a streamed pass, in bytes; the estimate is high rather than low.

    Attributes:
        base: Memory that the process holds already.
        weights: The largest sum of weights in use and in preparation.
        activations: Activations of the widest part of the pass, logits included.
        spectra: States of the blocks whose spectra are being computed.
    """

    base: int
    weights: int
    activations: int
    spectra: int

    @property
    def peak(self) -> int:
        """Predicted peak, in bytes."""
        inside = self.weights + self.activations + self.spectra
        return self.base + OVERHEAD + int(1.1 * inside)

    def check(self, limit: int | None, target: str) -> None:
        """Refuse a pass that would not fit.

        Raises:
            InputError: It does not fit; the message has the prediction and says what to do.
        """
        limit = free_memory() if limit is None else limit
        if self.peak > limit:
            raise InputError(
                f"{target} needs {readable(self.peak)} of memory even when streamed "
                f"({readable(self.weights)} of it weights), more than {readable(limit)}; "
                f"give --max-memory {math.ceil(self.peak / 1e6)}MB if there is as much, use fewer "
                "threads or --snapshots, or build nothing: --evidence config."
            )


def plan_memory(
    order: Sequence[Unit],
    *,
    ahead: int,
    slice_size: int = 0,
    widest: int = 0,
    logits: int = 0,
    entries: int = 0,
    workers: int = 1,
) -> MemoryPlan:
    """Add up the memory that is in use at once.

    Args:
        order: Units in the order of the pass.
        ahead: Bytes prepared ahead.
        slice_size: Bytes of the largest expert that is loaded alone.
        widest: Bytes of the largest module output for the whole batch, without the logits.
        logits: Bytes of the model's output.
        entries: States times width of one block.
        workers: Number of spectra computed at once.

    Returns:
        The plan.
    """
    held = 0
    for place, unit in enumerate(order):
        size = 0
        for coming in order[place + 1 :]:
            if size + coming.size > ahead:
                break
            size += coming.size
        held = max(held, unit.size + size)
    inside = [unit.size for unit in order if not unit.path]
    return MemoryPlan(
        base=resident_memory(),
        weights=held + sum(inside) + 2 * slice_size,
        activations=_ACTIVATIONS * widest
        + min(_SCRATCH * widest, _MOST_SCRATCH)
        + logits
        + logits // 2,
        spectra=_PER_STATE * entries * (workers + 1),
    )


def check_pass(
    target: str,
    config: object,
    *,
    tokens: int,
    limit: int | None = None,
) -> None:
    """Refuse a pass whose inputs alone would fill the memory, before anything is built.

    Args:
        target: Name of the model, for the message.
        config: The configuration; sizes that it does not name count as zero.
        tokens: Tokens or patches of the whole probe.
        limit: Bytes; default the free memory.

    Raises:
        InputError: It does not fit; the message has the prediction and says what to do.
    """
    of_text = getattr(config, "get_text_config", None)
    config = of_text() if callable(of_text) else config
    sizes = {name: getattr(config, name, None) for name in _WIDTHS}
    widths = [size for size in sizes.values() if isinstance(size, int)]
    vocabulary = getattr(config, "vocab_size", None)
    logits = 4 * tokens * vocabulary if isinstance(vocabulary, int) else 0
    states = 4 * tokens * max(widths, default=0)
    needed = resident_memory() + logits + logits // 2 + _ACTIVATIONS * states
    limit = free_memory() if limit is None else limit
    if needed > limit:
        raise InputError(
            f"{target} needs {readable(needed)} of memory for a probe of {tokens} tokens "
            f"({readable(logits)} of it logits), more than {readable(limit)}; use fewer "
            "--snapshots, or raise --max-memory."
        )


def readable(size: int) -> str:
    """Format a size in GB, or in MB below one GB."""
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def resident_memory() -> int:
    """Return the bytes of this process in memory."""
    return psutil.Process().memory_info().rss


def free_memory() -> int:
    """Return the bytes this process may hold: nine tenths of free plus already held memory."""
    containers = [spare for files in _CONTAINERS if (spare := _container(*files)) is not None]
    free = min([psutil.virtual_memory().available, *containers])
    return int(_SHARE * (free + resident_memory()))


def _container(limit: str, usage: str, name: str) -> int | None:
    """Return the bytes left in the container of this process; None if it sets no limit."""
    if not Path(limit).exists() or not (text := Path(limit).read_text().strip()).isdigit():
        return None
    lines = dict(line.split() for line in Path(usage).read_text().splitlines())
    return int(text) - int(lines.get(name, 0))
