"""What a watched run says: lines on stderr, its log, and files for `rksp watch`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rksp.ground.errors import RkspError
from rksp.watch.attach.log import RunLog


class Voice:
    """Speaks for a rank, or for all ranks that step together.

    Args:
        options: As `rksp watch` passes them on.
        rank: The rank of this process.
        is_heard: Whether it prints.
    """

    def __init__(self, options: Mapping[str, Any], rank: int, *, is_heard: bool) -> None:
        self.options, self.rank, self.is_heard = options, rank, is_heard
        self.log = RunLog(self._path())
        self._said_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line on stderr, for all ranks that this one speaks for."""
        if self.is_heard:
            which = f"rank {self.rank}: " if self.rank else ""
            with contextlib.suppress(OSError, ValueError):  # the script closed it
                print(f"rksp watch: {which}{text}", file=sys.stderr, flush=True)

    def is_time(self) -> bool:
        """Tell whether the next line of status is due, and count on from now if it is."""
        every, now = self.options["status"], time.monotonic()
        if not every or now - self._said_at < every:
            return False
        self._said_at = now
        return True

    def note(self, kind: str, **facts: Any) -> None:
        """Append a line to the log."""
        with contextlib.suppress(RkspError, ValueError):  # of which `Careful` tells
            self.log.note(kind, **facts)

    def leave(self, event: str, text: str) -> None:
        """Leave a file for `rksp watch`, whole or not at all; it may have ended before."""
        path = Path(self.options["folder"], f"{os.getpid()}.{event}")
        with contextlib.suppress(OSError):
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.rename(path)

    def _path(self) -> Path:
        """Return the log of this rank; a second process of the same rank has one of its own."""
        path, rank = Path(self.options["log"]), f".rank{self.rank}" if self.rank else ""
        try:
            Path(self.options["folder"], f"rank{self.rank}").touch(exist_ok=False)
        except FileExistsError:
            rank = f".{os.getpid()}"
        return path.with_name(f"{path.stem}{rank}{path.suffix}")
