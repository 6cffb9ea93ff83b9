"""`rksp watch -- COMMAND`: monitors for a script that knows nothing of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

STOPPED = 75  # exit code of --on-alarm stop, EX_TEMPFAIL: a scheduler may try again


def living(*kinds: type) -> Iterator[Any]:
    """Yield the objects of these kinds in this process."""
    return (found for found in gc.get_objects() if issubclass(type(found), kinds))
