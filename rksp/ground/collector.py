"""The rest of Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
