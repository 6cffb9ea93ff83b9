"""Tells that a run stands still, from a thread beside it."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from statistics import median

_LOOKS = 1.0  # seconds between two looks
_LEAST = 30.0  # seconds without a step, and
_USUAL = 50.0  # times the usual step, that are a hang; a longer pause was an evaluation


class Pulse:
    """Watches the time between two steps of the thread that makes it.

    Args:
        call: A method, called once a pause with its seconds, the usual ones of a step, and where
            the script stands; from the thread beside.
    """

    def __init__(self, call: Callable[[float, float, str], None]) -> None:
        self._call = weakref.WeakMethod(call)  # a thread keeps no model of the script alive
        self._script = threading.get_ident()
        self._beats: deque[float] = deque(maxlen=64)
        self._at = time.monotonic()
        self._longest = 0.0
        self._is_said = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> float:
        """Note that a step ended; return its seconds."""
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        if self._is_said:
            self._longest = max(self._longest, seconds)
        else:
            self._beats.append(seconds)
        self._is_said = False
        if self._thread is None and len(self._beats) > 2:
            self._thread = threading.Thread(target=self._look, daemon=True, name="rksp watch")
            self._thread.start()
        return seconds

    def close(self) -> None:
        """End the thread."""
        self._over.set()

    @property
    def usual(self) -> float:
        """Seconds of the median step; 0 before the first."""
        return median(self._beats) if self._beats else 0.0

    def _look(self) -> None:
        while not self._over.wait(_LOOKS) and self._call() is not None:
            since = time.monotonic() - self._at
            usual = self.usual
            if not self._is_said and since > max(_LEAST, _USUAL * usual, 2 * self._longest):
                self._is_said = True
                if (call := self._call()) is not None:
                    call(since, usual, self._place())
                    del call

    def _place(self) -> str:
        frame = sys._current_frames().get(self._script)
        inner = frame
        while frame is not None and "site-packages" in frame.f_code.co_filename:
            frame = frame.f_back
        frame = frame or inner
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
