"""Predict how much memory a pass will take, whole or streamed, and refuse what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import psutil

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.declared import Declared
from rksp.models.source import ModelSource

Streaming = Literal["auto", "always", "never"]
STREAMING: tuple[Streaming, ...] = get_args(Streaming)
_COPY = 4  # bytes per parameter of a copy of the weights
# Copies in memory at once; of the gradient's, one is that of the largest weights alone.
_COPIES = {"forward": 1, "gradient": 2}

ACTIVATIONS = 4  # outputs of the widest module that are alive at once inside a block
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


def check_pass(source: ModelSource, tokens: int, limit: int | None = None) -> None:
    """Refuse a pass whose inputs alone would fill the memory, before anything is built.

    Args:
        source: The model; sizes that its configuration does not name count as zero.
        tokens: Tokens or patches of the whole probe.
        limit: Bytes; default the free memory.

    Raises:
        InputError: It does not fit; the message has the prediction and says what to do.
    """
    declared = Declared(source.config)
    logits = 4 * tokens * (declared.vocabulary or 0)
    states = 4 * tokens * max(declared.width or 0, declared.inner or 0)
    needed = resident_memory() + logits + logits // 2 + ACTIVATIONS * states
    limit = free_memory() if limit is None else limit
    if needed > limit:
        raise InputError(
            f"{source.target} needs {readable(needed)} of memory for a probe of {tokens} tokens "
            f"({readable(logits)} of it logits), more than {readable(limit)}; use fewer "
            "--snapshots, or raise --max-memory."
        )


def should_stream(
    source: ModelSource, streaming: Streaming, max_memory: int | None, evidence: str = "forward"
) -> bool:
    """Tell whether a model is streamed: if it must be, or would not fit in memory.

    Args:
        source: The target.
        streaming: The user's choice.
        max_memory: Bytes; default the free memory.
        evidence: What is measured of it: "forward" or "gradient".

    Returns:
        Whether to stream.

    Raises:
        InputError: Streaming was requested but is impossible, or it was forbidden and what is
            measured does not fit.
    """
    if streaming not in STREAMING:
        raise InputError(f"--stream {streaming!r} is not one of {', '.join(STREAMING)}.")
    can = source.construct_empty is not None
    if streaming == "always" and not can:
        raise InputError(
            f"{source.target} is a {source.kind}, whose weights cannot be drawn one by one; "
            "use --stream never."
        )
    if streaming == "always" or source.num_parameters is None:
        return streaming == "always"
    is_large = source.num_parameters > source.max_params
    if streaming == "auto" and can:
        return is_large or not fits(source, max_memory, evidence)
    check_whole(source, max_memory, evidence)
    return False


def check_whole(source: ModelSource, max_memory: int | None, evidence: str) -> None:
    """Refuse what does not fit in memory with the whole model.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    if fits(source, max_memory, evidence):
        return
    limit = readable(free_memory() if max_memory is None else max_memory)
    needed, can = readable(_needed(source, evidence)), source.construct_empty is not None
    if evidence == "gradient" and fits(source, max_memory, "forward"):
        raise InputError(
            f"The gradient of {source.target} needs {needed} of memory for its weights and the "
            f"largest gradients, more than {limit}; --evidence forward needs "
            f"{readable(_needed(source, 'forward'))} and fits, or raise --max-memory."
        )
    advice = "use --stream auto" if can else "use a smaller one"
    raise InputError(
        f"{source.target} needs {needed} of memory if held whole, more than {limit}; {advice}, or "
        "raise --max-memory."
    )


def fits(source: ModelSource, max_memory: int | None, evidence: str) -> bool:
    """Tell whether what is measured fits in memory with the whole model."""
    limit = free_memory() if max_memory is None else max_memory
    return source.num_parameters is None or _needed(source, evidence) <= limit


def _needed(source: ModelSource, evidence: str) -> int:
    copies = _COPIES[evidence] - (source.model is not None)
    return resident_memory() + copies * _COPY * definite(source.num_parameters)


def readable(size: int) -> str:
    """Format a size in GB, or in MB below one GB."""
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def resident_memory() -> int:
    """Return the bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def free_memory() -> int:
    """Return the bytes this process may hold: nine tenths of free plus already held memory."""
    containers = [spare for files in _CONTAINERS if (spare := _container(*files)) is not None]
    free = min([psutil.virtual_memory().available, *containers])
    return int(_SHARE * (free + resident_memory()))


def _container(limit: str, usage: str, name: str) -> int | None:
    if not Path(limit).exists() or not (text := Path(limit).read_text().strip()).isdigit():
        return None
    lines = dict(line.split() for line in Path(usage).read_text().splitlines())
    return int(text) - int(lines.get(name, 0))
