"""`with rksp.watch(model, optimizer): …` and `rksp.watch.Callback()`: the watch of this process."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from rksp.documents.confirm import CauseReport
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.model import definite
from rksp.watch.attach import living
from rksp.watch.attach.finder import Finder
from rksp.watch.attach.session import Session
from rksp.watch.monitors.base import Alarm
from rksp.watch.registry import make_monitors


class Watched:
    """Watches what trains in a block of this process, as `rksp watch` watches a command.

        >>> import rksp, torch
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with rksp.watch(model, optimizer, log="watch.jsonl"):
        ...     for _ in range(3):
        ...         loss = model(torch.ones(2, 4)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        >>> import pathlib
        >>> pathlib.Path("watch.jsonl").exists()
        True

    The run stays bitwise the same. Alarms and their causes are printed on stderr and written to
    the log, of which `rksp report watch.jsonl` makes a page.

    Args:
        model: The module that is called; by default the first one that trains.
        optimizer: Its optimizer; by default all that there are.
        log: The file of readings and alarms; a run is appended.
        monitors: Names (`all`, `gradient-norm:every=5`).
        on_alarm: `log`, `checkpoint`, `stop` (raises `SystemExit`) or `shape` (step clip).
        to: Trackers that read along, as `--to`.
        record: A file of runs to append the run to.
        memory: GiB of host memory for finding the cause of an alarm.
        status: Seconds between two lines of status; 0 prints none.

    Raises:
        InputError: A file cannot be written, or a monitor is unknown.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        *,
        log: str | Path = "watch.jsonl",
        monitors: Sequence[str] = ("all",),
        on_alarm: Literal["log", "checkpoint", "stop", "shape"] = "log",
        to: Sequence[str] = (),
        record: str | Path | None = None,
        memory: float = 4.0,
        status: float = 0.0,
    ) -> None:
        while hasattr(optimizer, "optimizer"):  # a trainer's wrapper
            optimizer = definite(optimizer).optimizer
        if model is not None and not isinstance(model, nn.Module):
            raise InputError(
                f"The model must be a torch.nn.Module, got {type(model).__name__}; call "
                "rksp.watch(model, optimizer)."
            )
        make_monitors(monitors)  # a name that is wrong is said here, and not in the run
        check_writable(Path(log), "log")
        self.model, self.optimizer = model, optimizer
        self._options: dict[str, Any] = {
            "log": str(Path(log).absolute()),
            "monitors": list(monitors),
            "on_alarm": on_alarm,
            "to": list(to),
            "record": None if record is None else str(Path(record).absolute()),
            "memory": memory,
            "status": status,
            "command": "",
        }
        self._finder: Finder | None = None
        self._session: Session | None = None

    def __enter__(self) -> Watched:
        self._folder = tempfile.TemporaryDirectory(prefix="rksp-watch-")
        self._finder = finder = Finder(self._options | {"folder": self._folder.name})
        finder.hook()
        found = living(Optimizer) if self.optimizer is None else (self.optimizer,)
        for one in found:
            finder.take(one)
        finder.keep = self._keep
        atexit.register(self.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None and isinstance(error, Exception):
            self._session.crash = error
        self.close()

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far, in order."""
        return [] if self._session is None else self._session.watch.alarms

    @property
    def causes(self) -> list[CauseReport]:
        """Their causes so far, in order."""
        return [] if self._session is None else self._session.causes

    def close(self) -> None:
        """End the watch, and leave torch as it was."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()
            atexit.unregister(self.close)
            self._folder.cleanup()

    def _keep(self, session: Session) -> None:
        self._session = session


def callback(**options: Any) -> Any:
    """Return a callback of the Trainer of transformers that watches its run.

        Trainer(model, args, callbacks=[rksp.watch.Callback()])

    Other trainers need none: `with rksp.watch(): trainer.fit(model)`.

    Args:
        options: Those of `Watched`.
    """
    from transformers import TrainerCallback

    class Callback(TrainerCallback, Watched):
        """The watch of a Trainer's run."""

        def on_train_begin(
            self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any
        ) -> None:
            """Begin the watch."""
            while hasattr(optimizer, "optimizer"):
                optimizer = optimizer.optimizer
            self.model, self.optimizer = model, optimizer
            self.__enter__()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """End the watch."""
            self.close()

    return Callback(**options)
