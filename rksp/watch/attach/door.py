"""`with rksp.watch(model, optimizer): …` and its callbacks: the watch of this process."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rksp.documents.confirm import CauseReport
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.flags import checked
from rksp.ground.model import definite
from rksp.recipe_files.said.facts import Facts
from rksp.watch.attach import living
from rksp.watch.attach.finder import Finder
from rksp.watch.attach.options import Watching
from rksp.watch.attach.session import Session
from rksp.watch.groups import is_first_rank
from rksp.watch.interventions.base import Action
from rksp.watch.monitors.base import Alarm
from rksp.watch.monitors.sinks import Latest
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
from rksp.watch.training.known_faults import (
    facts_of_arguments,
    facts_of_lightning,
    facts_of_loop,
    log_known_faults,
)


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

    Alarms and their causes are printed on stderr and written to the log, of which `rksp report
    watch.jsonl` makes a page. Without interventions the run stays bitwise the same.

    Interventions act as in `rksp.watch.training.run`: what they add to a loss is added where the
    script calls `backward`, shared among the passes of a step as the step before had them; their
    factor on the rate holds while the optimizer steps, so that no schedule sees it; a step whose
    loss is not finite is dropped.

    Args:
        model: The module that is trained; by default the first one that an optimizer moves.
        optimizer: Its optimizer; by default all that there are.
        options: Those of `rksp watch` by name (`log`, `monitors`, `on_alarm`, `to`, `record`,
            `memory`, `status`; `stop` raises `SystemExit`, and in a trainer's callback it ends the
            training), and `interventions` and `sinks`: lines (`"backoff"`, `"zclip:threshold=3"`)
            or objects, in their order.

    Raises:
        InputError: An option or its value is unknown, or a file cannot be written.
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer: Optimizer | None = None, **options: Any
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InputError(
                f"The model must be a torch.nn.Module, got {type(model).__name__}; call "
                "rksp.watch(model, optimizer)."
            )
        lists = ("monitors", "to", "interventions", "sinks")
        given = {k: list(v) if k in lists else v for k, v in options.items()}
        self._options = checked(Watching, {"status": 0.0} | given, noun="watch")
        make_monitors(self._options.monitors)  # a name that is wrong is said here, not in the run
        for line in self._options.interventions:
            if isinstance(line, str):
                make_intervention(line)
        for path, name in ((self._options.log, "log"), (self._options.record, "record")):
            if path is not None:
                check_writable(path, name)
        self.model, self.optimizer = model, optimizer
        self.latest = Latest()
        self._stops = True  # by raising
        self._finder: Finder | None = None
        self._session: Session | None = None
        self._facts: Facts | None = None

    def __enter__(self) -> Watched:
        while hasattr(self.optimizer, "optimizer"):  # a trainer's wrapper
            self.optimizer = definite(self.optimizer).optimizer
        self._folder = tempfile.TemporaryDirectory(prefix="rksp-watch-")
        more = {"folder": Path(self._folder.name), "sinks": (*self._options.sinks, self.latest)}
        self._finder = finder = Finder(self._options.model_copy(update=more))
        finder.raises = InputError
        finder.hook()
        for one in living(Optimizer) if self.optimizer is None else (self.optimizer,):
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
    def session(self) -> Session:
        """The watch of the model.

        Raises:
            InputError: Nothing has trained yet.
        """
        if self._session is None:
            raise InputError("Nothing has trained yet; train inside of the watch's block.")
        return self._session

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors; raises as `session`."""
        return self.session.watch

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far, in order."""
        return [] if self._session is None else self.watch.alarms

    @property
    def causes(self) -> list[CauseReport]:
        """Their causes so far, in order."""
        return [] if self._session is None else self._session.causes

    @property
    def actions(self) -> tuple[Action, ...]:
        """The interventions' actions so far, grouped by intervention."""
        acting = () if self._session is None else self._session.interventions
        return tuple(action for one in acting for action in one.actions)

    @property
    def should_stop(self) -> bool:
        """Whether an alarm is to stop the run."""
        return self._session is not None and self._session.was_stopped

    def close(self) -> None:
        """End the watch, and leave torch as it was."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()
            atexit.unregister(self.close)
            self._folder.cleanup()

    def _begin(self, model: nn.Module, optimizer: Optimizer | None, facts: Facts) -> None:
        """Begin the watch of a trainer, which ends by itself where an alarm is to stop it."""
        self.model, self.optimizer, self._facts, self._stops = model, optimizer, facts, False
        self.__enter__()

    def _keep(self, session: Session) -> None:
        self._session = session
        session.raises_stop = self._stops
        if is_first_rank():
            facts = facts_of_loop() if self._facts is None else self._facts
            log_known_faults(session.model, session.optimizers[0], facts)


def callback(**options: Any) -> Watched:
    """Return a callback of the Trainer of transformers that watches its run.

        Trainer(model, args, callbacks=[rksp.watch.Callback(interventions=["backoff"])])

    The newest readings go through `trainer.log` at its logging steps, one number for each quantity.

    Args:
        options: Those of `Watched`.
    """
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainingArguments

    class Callback(TrainerCallback, Watched):
        """The watch of a Trainer's run."""

        def on_train_begin(self, args: TrainingArguments, *_: object, **given: Any) -> None:
            self._begin(given["model"], given["optimizer"], facts_of_arguments(args))

        def on_step_end(
            self, args: object, state: object, control: TrainerControl, **_: object
        ) -> None:
            control.should_training_stop |= self.should_stop
            if control.should_log and self.latest.values:
                found = (one for one in living(Trainer) if self in one.callback_handler.callbacks)
                next(found).log(dict(self.latest.values))
                control.should_log = True  # which the Trainer's own log is still to see

        def on_train_end(self, *_: object, **__: object) -> None:
            self.close()

    return Callback(**options)


def lightning_callback(**options: Any) -> Watched:
    """Return a callback of the Trainer of Lightning that watches its run.

        Trainer(callbacks=[rksp.watch.LightningCallback(interventions=["backoff"])])

    The newest readings go through `log_dict` of the module, one number for each quantity.

    Args:
        options: Those of `Watched`.
    """
    from lightning import Callback as Base

    class Callback(Base, Watched):
        """The watch of a Trainer's run."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            own = trainer.optimizers
            self._begin(module, own[0] if len(own) == 1 else None, facts_of_lightning(trainer))

        def on_train_batch_end(self, trainer: Any, module: Any, *_: object) -> None:
            trainer.should_stop |= self.should_stop
            module.log_dict(self.latest.values, on_step=True, on_epoch=False)

        def on_train_end(self, *_: object) -> None:
            self.close()

        def on_exception(self, *_: object) -> None:
            self.close()

    return Callback(**options)
