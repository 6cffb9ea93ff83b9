"""`rksp watch -- COMMAND`: monitors for a script that knows nothing of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

STOPPED = 75  # exit code of --on-alarm stop, EX_TEMPFAIL: a scheduler may try again


T = TypeVar("T")


def living(*kinds: type[T]) -> Iterator[T]:
    """Yield the objects of these kinds in this process."""
    return (found for found in gc.get_objects() if issubclass(type(found), kinds))
