"""What a watched run says: its log, the trackers that read along, and lines on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rksp.ground.errors import RkspError
from rksp.watch.attach.lines import Line, text_of
from rksp.watch.attach.options import Watching
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import (
    JsonLines,
    MLflow,
    Sink,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
)

_DENSE = 1000  # steps with all readings of layers
_SPARSE = 20  # after them, every how many steps
TRACKERS: dict[str, type[Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


class RunLog(JsonLines):
    """The monitors' log, with a line for what else is known of the run: its kind is not theirs.

    Runs are appended; a run begins with its line of kind `run`. After 1,000 steps the readings of
    single layers are written every 20th step and beside alarms only.
    """

    def note(self, line: Line) -> None:
        """Append a line."""
        self._append(text_of(line))

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Append the records; raises as `JsonLines.write`."""
        if readings and not alarms and readings[0].step > _DENSE and readings[0].step % _SPARSE:
            readings = [reading for reading in readings if not reading.layer]
        super().write(readings, alarms)


class Careful(Sink):
    """Passes on to a sink until it fails once: a full disk or a lost tracker ends no watch.

    Were a rank to detach, the others would wait for it where ranks exchange numbers.

    Args:
        sink: The sink.
        say: Prints a line.
    """

    def __init__(self, sink: Sink, say: Callable[[str], None]) -> None:
        self._sink: Sink | None = sink
        self._say = say

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Write, or do nothing once that failed."""
        self._pass_on(lambda sink: sink.write(readings, alarms))

    def close(self) -> None:
        """Close the sink."""
        self._pass_on(lambda sink: sink.close())

    def _pass_on(self, call: Callable[[Sink], None]) -> None:
        if self._sink is None:
            return
        try:
            call(self._sink)
        except Exception as error:
            failed, self._sink = self._sink, None
            self._say(f"{type(failed).__name__} gets nothing more: {error}")
            with contextlib.suppress(Exception):
                failed.close()


class Voice:
    """Speaks for a rank, or for all ranks that step together.

    Args:
        options: Those of the watch.
        rank: The rank of this process.
        is_heard: Whether it prints.
    """

    def __init__(self, options: Watching, rank: int, *, is_heard: bool) -> None:
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
        every, now = self.options.status, time.monotonic()
        if not every or now - self._said_at < every:
            return False
        self._said_at = now
        return True

    def note(self, line: Line) -> None:
        """Append a line to the log."""
        with contextlib.suppress(RkspError, ValueError):  # of which `Careful` tells
            self.log.note(line)

    def leave(self, event: str, text: str) -> None:
        """Leave a file for `rksp watch`, whole or not at all; it may have ended before."""
        path = Path(self.options.folder, f"{os.getpid()}.{event}")
        with contextlib.suppress(OSError):
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.rename(path)

    def _path(self) -> Path:
        """Return the log of this rank; a second process of the same rank has one of its own."""
        path, rank = self.options.log, f".rank{self.rank}" if self.rank else ""
        first, own = Path(self.options.folder, f"rank{self.rank}"), str(os.getpid())
        try:
            with first.open("x", encoding="utf-8") as file:
                file.write(own)
        except FileExistsError:
            if first.read_text(encoding="utf-8") != own:  # that process may have had other models
                rank = f".{own}"
        return path.with_name(f"{path.stem}{rank}{path.suffix}")
