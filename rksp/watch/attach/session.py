"""A watched run: monitors, status, alarms, what an alarm sets off, and the record."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.assessment.evidence import LEARNED
from rksp.ground.errors import RkspError, summary
from rksp.ground.option_lines import build
from rksp.ground.versions import version
from rksp.watch.attach import STOPPED
from rksp.watch.attach.log import TRACKERS, Careful, RunLog
from rksp.watch.attach.recipe import found_recipe, sizes_of
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Monitor, Severity
from rksp.watch.monitors.registry import make_monitors
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink, sentence
from rksp.watch.monitors.watch import Watch
from rksp.watch.training.beside import Beside
from rksp.watch.training.callbacks.plain import unscaled
from rksp.watch.training.checkpoints import Checkpoints
from rksp.watch.training.loop import mean_over_ranks
from rksp.watch.training.recorded import Recorded

_KEEP = 10_000  # readings in memory; the log has all of them


class Session:
    """Watches one model from its first step on; every rank of a run has a session of its own.

    Ranks exchange losses and alarms where all of them take the same steps: under DDP, and where
    every weight is sharded over all of them. Other ranks are watched apart.

    Args:
        model: What is trained.
        called: The module that the script calls first, such as the model inside of DDP.
        optimizers: The optimizers of the model.
        options: As `rksp watch` passes them on.
    """

    def __init__(
        self,
        model: nn.Module,
        called: nn.Module | None,
        optimizers: Sequence[Optimizer],
        options: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizers, self.options = _bare(model), list(optimizers), options
        self.step = -1
        group = torch.distributed
        is_group = group.is_available() and group.is_initialized()
        self.ranks = group.get_world_size() if is_group else 1
        self.rank = group.get_rank() if is_group else int(os.environ.get("RANK", "0"))
        self.is_shared = self.ranks > 1 and _takes_equal_steps(self.model, called, self.ranks)
        self._is_heard = self.rank == 0 or not self.is_shared  # speaks for its ranks
        self._is_compiled = any(map(_is_compiled, (model if called is None else called).modules()))
        self._said_at, self._began = time.monotonic(), time.monotonic()
        self._loss: float | None = None
        self._rate = -1.0
        self._is_warm = False
        self._limit: float | None = None
        self._passes = 0
        self._first: Alarm | None = None
        self._saved: Path | None = None
        self._count = 0
        self._recorded: Recorded | None = None
        self._log = RunLog(self._path())
        self._beside = self._companion()
        self._note(
            "run",
            model=type(self.model).__name__,
            parameters=sum(p.numel() for p in self.model.parameters()),
            optimizer=type(self.optimizers[0]).__name__,
            ranks=self.ranks,
            rank=self.rank,
            command=options.get("command", ""),
            rksp=version("rksp"),
            torch=torch.__version__,
            silent=self.watch.silent,
        )
        self._leave("log", str(self._log.path))
        own = set(self.model.parameters())
        if any(p not in own for one in optimizers for g in one.param_groups for p in g["params"]):
            self.say(f"only {type(self.model).__name__} is watched of what the optimizer trains")

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors."""
        return self._beside.watch

    # Moments of a step

    def begin(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Begin a step; its first forward pass has these inputs."""
        self.step += 1
        if self.step == 1:
            self._introduce(sizes_of((args, kwargs), self.model))
        self._passes = 0
        self._moment = self._now()
        self._beside.begin(self._moment)

    def end_micro_batch(self) -> None:
        """End a backward pass."""
        self._passes += 1
        self.watch.end_forward_backward()

    def after_backward(
        self, losses: Sequence[Tensor], *, scale: float, limit: float | None
    ) -> None:
        """Read the gradients of a step whose backward passes are over.

        Args:
            losses: What backward was called on; their sum is the step's loss.
            scale: A factor that is still on the gradients.
            limit: The largest norm to which the script is about to clip them.

        Raises:
            SystemExit: An alarm is to stop the run.
        """
        self._moment = self._now()
        loss = float(sum(losses)) if losses else None
        if loss is not None and self.is_shared:
            loss = mean_over_ranks(loss)
        self._moment.loss = self._loss = loss
        self._limit = limit if limit is None else float(limit)
        self._end_warm_up()
        if self._recorded is not None:
            self._recorded.note(loss)
        with unscaled(self.model, scale):
            self._beside.after_backward(self._moment)
            self._hear()
            if self.options["on_alarm"] == "shape" and not math.isfinite(loss or 0.0):
                self.model.zero_grad(set_to_none=True)  # no clip makes this step a good one
            else:
                self._beside.before_update(self._moment)

    def after_update(self) -> None:
        """Read the weights after a step; raises as `after_backward`."""
        self._beside.after_update(self._moment)
        self._say_what_was_saved()
        self._hear()
        self._show()

    def close(self) -> None:
        """Write the end of the run."""
        crash = getattr(sys, "last_value", None)
        seconds = round(time.monotonic() - self._began, 3)
        end = {"steps": self.step + 1, "seconds": seconds, "silent": self.watch.silent}
        self._note("end", **end, crash=crash and summary(crash))
        self._beside.close()
        if self._recorded is not None:
            self._recorded.write()

    # Parts

    def _companion(self) -> Beside:
        action = self.options["on_alarm"]
        if action == "shape" and (self._is_compiled or (self.ranks > 1 and not self.is_shared)):
            self.say(
                "step clip cannot act here (a compiled model, or ranks apart); alarms are logged"
            )
            action = "log"
        monitors = self._monitors()
        trackers: list[Sink] = []
        for line in self.options["to"] if self._is_heard else ():
            try:
                trackers.append(build(TRACKERS, line, noun="tracker"))
            except (RkspError, TypeError) as error:  # the script goes before it
                self.say(f"--to {line}: {error}")
        rules = Rules(warmup_steps=2**31)  # until the rate no longer rises
        sinks = [Careful(sink, self.say) for sink in (self._log, *trackers)]
        watch = Watch(monitors, rules, sinks, keep=_KEEP)
        folder = Path(self.options["log"]).with_suffix("") / f"rank{self.rank}"
        beside = Beside(
            watch,
            [_ClipFromAlarm()] if action == "shape" else [],
            checkpoints=Checkpoints(folder, keep=2) if action == "checkpoint" else None,
            must_agree=self.is_shared,
            keep=_KEEP,
        )
        beside.bind(self.model, self.optimizer)
        if self._is_compiled:
            for monitor in monitors:
                if type(monitor).arm is not Monitor.arm and monitor.name != "non-finite":
                    watch.silent.setdefault(monitor.name, "the model is compiled")
        return beside

    def _monitors(self) -> list[Monitor]:
        always = ("loss", "non-finite")  # without which a log tells of no run
        monitors = make_monitors([*always, *self.options["monitors"]])
        if not self.is_shared:
            monitors = [m for m in monitors if m.name != "silent-corruption"]
        if self._is_compiled:  # a hook inside of it would be compiled too
            for monitor in monitors:
                monitor.arm = lambda model: ()  # type: ignore[method-assign]  # this one alone
        return monitors

    @property
    def optimizer(self) -> Any:
        """The optimizer of the model; of several, what monitors need of them together."""
        if len(self.optimizers) == 1:
            return self.optimizers[0]
        return SimpleNamespace(
            parts=self.optimizers,
            param_groups=[group for one in self.optimizers for group in one.param_groups],
            state=ChainMap(*(one.state for one in self.optimizers)),
        )

    def _now(self) -> Moment:
        rate = float(self.optimizers[0].param_groups[0]["lr"])
        optimizer = self.optimizer
        return Moment(step=self.step, model=self.model, optimizer=optimizer, learning_rate=rate)

    def _end_warm_up(self) -> None:
        """Let baselines begin once the rate no longer rises: nobody tells its schedule."""
        rate = self._moment.learning_rate or 0.0
        watch = self.watch
        if not self._is_warm and rate <= self._rate:
            self._is_warm = True
            watch.rules = replace(watch.rules, warmup_steps=self.step)
            watch.leave_out_of_advice(())
        self._rate = rate

    def _introduce(self, sizes: Mapping[str, Any]) -> None:
        """Ask for the forecast and begin the record, once the first step has shown the recipe."""
        if not self._is_heard:
            return
        sizes = {**sizes, "passes": self._passes, "ranks": self.ranks, "limit": self._limit}
        recipe = found_recipe(self.model, self.optimizers, sizes)
        described = next(filter(_has_config, self.model.modules()), self.model)
        if _has_config(described):
            config: Any = described.config
            words, loss = getattr(config, "vocab_size", None), self._loss
            is_trained = bool(words and loss is not None and loss < math.log(words) - LEARNED)
            asked = {"config": config.to_dict(), "recipe": recipe, "is_trained": is_trained}
            asked |= {"model": type(described).__name__, "log": str(self._log.path)}
            self._leave("forecast", json.dumps(asked, default=str))
        if self.options["record"]:
            self._recorded = Recorded(self.options["record"], described, self.optimizers[0], recipe)
            self._recorded.note(self._loss)

    # What is said

    def _hear(self) -> None:
        """Say what alarms the last phase raised, and do what they are to set off.

        Raises:
            SystemExit: One is to stop the run.
        """
        heard, self._beside.heard = self._beside.heard, []
        for alarm in heard:
            self._first = self._first or alarm
            self._count += not alarm.is_escalation
            self.say(f"step {alarm.step}: {sentence(alarm)}")
        critical = next((a for a in heard if a.severity is Severity.CRITICAL), None)
        if critical is not None and self.options["on_alarm"] == "stop":
            reason = f"stopped at step {critical.step}: {sentence(critical)}"
            self._note("stop", step=critical.step, reason=reason)
            self._leave("stop", reason)
            raise SystemExit(STOPPED)

    def _say_what_was_saved(self) -> None:
        kept = self._beside.checkpoints
        if kept is not None and kept.written is not None and kept.written != self._saved:
            self._saved = kept.written
            self.say(
                f"the state from before the alarm is in {kept.written}; load it with "
                "safetensors.torch.load_file: model.NAME is a weight, optimizer.NAME.KEY a state"
            )

    def _show(self) -> None:
        """Say where the run is, every so often."""
        every, now = self.options["status"], time.monotonic()
        if every and now - self._said_at >= every:
            self._said_at = now
            loss = "" if self._loss is None else f", loss {self._loss:.4g}"
            first, alarms = self._first, "no alarm"
            if first is not None:
                alarms = f"alarms: {self._count}, first {first.monitor} at step {first.step}"
            self.say(f"step {self.step}{loss}, {alarms}")

    def say(self, text: str) -> None:
        """Print a line on stderr, for all ranks that this one speaks for."""
        if self._is_heard:
            which = f"rank {self.rank}: " if self.rank else ""
            with contextlib.suppress(OSError, ValueError):  # the script closed it
                print(f"rksp watch: {which}{text}", file=sys.stderr, flush=True)

    def _note(self, kind: str, **facts: Any) -> None:
        with contextlib.suppress(RkspError, ValueError):  # of which `Careful` tells
            self._log.note(kind, **facts)

    def _path(self) -> Path:
        """Return the log of this rank; a second process of the same rank has one of its own."""
        path, rank = Path(self.options["log"]), f".rank{self.rank}" if self.rank else ""
        try:
            Path(self.options["folder"], f"rank{self.rank}").touch(exist_ok=False)
        except FileExistsError:
            rank = f".{os.getpid()}"
        return path.with_name(f"{path.stem}{rank}{path.suffix}")

    def _leave(self, event: str, text: str) -> None:
        """Leave a file for `rksp watch`, whole or not at all; it may have ended before."""
        path = Path(self.options["folder"], f"{os.getpid()}.{event}")
        with contextlib.suppress(OSError):
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.rename(path)


class _ClipFromAlarm(StepClip):
    """Step clip that sleeps until the first alarm and acts from the step after it."""

    is_awake = False

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        return super().arm(moment) if self.is_awake else ()

    def before_update(self, moment: Moment) -> None:
        if self.is_awake:
            super().before_update(moment)

    def after_update(self, moment: Moment) -> None:
        if self.is_awake:
            super().after_update(moment)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        self.is_awake = True


def _bare(model: nn.Module) -> nn.Module:
    """Return the module inside of the wrappers of torch.compile and of DDP."""
    inner: Any = model
    while isinstance(inner, DistributedDataParallel) or hasattr(inner, "_orig_mod"):
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner._orig_mod
    return inner


def _has_config(module: nn.Module) -> bool:
    """Tell whether a module has a configuration of transformers."""
    return hasattr(getattr(module, "config", None), "to_dict")


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def _takes_equal_steps(model: nn.Module, called: nn.Module | None, ranks: int) -> bool:
    """Tell whether all ranks take every step together, so that they can exchange numbers."""
    for module in () if called is None else called.modules():
        if isinstance(module, DistributedDataParallel):
            return module.process_group.size() == ranks
    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    return bool(sharded) and all(p.device_mesh.size() == ranks for p in sharded)
