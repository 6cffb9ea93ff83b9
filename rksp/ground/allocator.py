"""What glibc, where it is there, does with freed memory; and the rest of Python's collector."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

# Parameters of mallopt in malloc.h of glibc, and what the first three are by default.
_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX, _MMAP_THRESHOLD = -4, -1, -8, -3
_MOST_MAPS, _TRIM_AT, _BY_CORES = 65_536, 128 * 1024, 0
_LARGE, _LARGEST = 128 * 1024, 32 * 1024**2  # the least size that glibc maps, and the most


def _glibc() -> ctypes.CDLL | None:
    import ctypes  # not for what measures nothing

    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


def return_freed_memory() -> None:
    """Give freed memory back to the system: small pieces stay with the process otherwise."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@contextlib.contextmanager
def _tuned(inside: dict[int, int], after: dict[int, int]) -> Iterator[None]:
    if (library := _glibc()) is None:
        yield
        return
    for name, value in inside.items():
        library.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in after.items():
            library.mallopt(name, value)
        return_freed_memory()


def freed_memory_kept() -> AbstractContextManager[None]:
    """Keep what is freed inside: fresh pages are a quarter of a forward pass.

    Threads that start inside share one heap, because glibc gives back a thread's own. Afterwards
    the memory goes back.
    """
    return _tuned(
        {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: -1},
        {_MMAP_MAX: _MOST_MAPS, _TRIM_THRESHOLD: _TRIM_AT, _ARENA_MAX: _BY_CORES},
    )


def freed_memory_returned() -> AbstractContextManager[None]:
    """Give each large piece that is freed inside back to the system at once.

    torch asks for aligned pieces, which glibc does not place into a hole of the same size, so what
    a backward pass frees would stay beside what it makes.
    """
    return _tuned({_MMAP_THRESHOLD: _LARGE}, {_MMAP_THRESHOLD: _LARGEST})


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector while objects are made of which few are garbage."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load libraries without the collector, which never looks at them again: they stay.

    It takes a tenth of a short command otherwise. All that exists stays, so this is for the
    beginning of a process, before torch: triton complains of what is never collected.
    """
    with collector_paused():
        try:
            yield
        finally:
            gc.freeze()
