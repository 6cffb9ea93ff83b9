"""A watched run: monitors, status, alarms, what an alarm sets off, and the record."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.documents.confirm import CauseReport
from rksp.ground.errors import summary
from rksp.ground.model import definite
from rksp.ground.versions import version
from rksp.watch.attach import STOPPED
from rksp.watch.attach.cause import diagnose
from rksp.watch.attach.companion import (
    Ranks,
    bare,
    companion,
    has_compiled_part,
    name_of,
    optimizer_of,
)
from rksp.watch.attach.kept import Kept
from rksp.watch.attach.log import Voice
from rksp.watch.attach.recipe import found_recipe, sizes_of
from rksp.watch.groups import mean_over_ranks
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.monitors.sinks import sentence
from rksp.watch.monitors.watch import Watch
from rksp.watch.training.callbacks.plain import unscaled
from rksp.watch.training.recorded import Recorded

_MOST = 3  # diagnoses, and one more for each `_PER_DIAGNOSIS` steps: a twentieth of the time
_PER_DIAGNOSIS = 1000
_EPISODE = 50  # steps after a cause was found in which an alarm is taken for the same trouble


class Session:
    """Watches one model from its first step on; every rank of a run has a session of its own.

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
        self.model, self.optimizers, self.options = bare(model), list(optimizers), options
        self.step = -1
        self.ranks = Ranks(self.model, called)
        self.voice = Voice(
            options, self.ranks.rank, is_heard=self.ranks.rank == 0 or not self.ranks.are_shared
        )
        self._called = called
        self._is_compiled = has_compiled_part(model if called is None else called)
        self._began = time.monotonic()
        self._loss: float | None = None
        self._rate = -1.0
        self._warm_at = math.inf  # the step from which on the rate no longer rises
        self._limit: float | None = None
        self.scaler: Any = None  # of the loss, once the script uses one
        self._passes = 0
        self._was_stopped = self._is_closed = False
        self._process = os.getpid()
        self._first: Alarm | None = None
        self._saved: Path | None = None
        self._count = 0
        self._recorded: Recorded | None = None
        self._diagnoses: list[CauseReport] = []
        self._beside = companion(
            self.model, self.optimizer, self.ranks, self.voice, is_compiled=self._is_compiled
        )
        self._kept: Kept | None = None
        if options["memory"]:
            memory = options["memory"] * 2**30
            self._kept = Kept(self.model, memory, is_compiled=self._is_compiled)
        self.voice.note(
            "run",
            model=name_of(self.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            optimizer=type(self.optimizers[0]).__name__,
            ranks=self.ranks.count,
            rank=self.ranks.rank,
            command=options.get("command", ""),
            rksp=version("rksp"),
            torch=torch.__version__,
            silent=self.watch.silent,
        )
        own = set(self.model.parameters())
        if any(p not in own for one in optimizers for g in one.param_groups for p in g["params"]):
            self.voice.say(f"only {name_of(self.model)} is watched of what the optimizer trains")

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors."""
        return self._beside.watch

    @property
    def optimizer(self) -> Any:
        """The optimizer of the model; of several, what monitors need of them together."""
        return optimizer_of(self.optimizers)

    # Moments of a step

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin a step; its first forward pass has these inputs."""
        self.step += 1
        if self.step == 1:
            self._introduce(sizes_of((args, kwargs), self.model))
        self._passes = 0
        self._moment = self._now()
        if self._kept is not None:
            self._kept.begin(self.step)
        self._beside.begin(self._moment)

    def begin_pass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin a forward pass with these inputs."""
        if self._kept is not None:
            self._kept.add(args, kwargs)

    def begin_backward(self, loss: Tensor) -> None:
        """Begin the backward pass from a loss."""
        if self._kept is not None:
            self._kept.add_targets(loss)

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
        if not self.step:  # from here on there is something to report
            self.voice.leave("log", str(self.voice.log.path))
        self._moment = self._now()
        loss = float(sum(losses)) if losses else None
        if self._kept is not None:
            self._kept.steps[-1].loss = loss  # of this rank
        if loss is not None and self.ranks.are_shared:
            loss = mean_over_ranks(loss)
        self._moment.loss = self._loss = loss
        self._limit = limit if limit is None else float(limit)
        self._end_warm_up()
        if self._recorded is not None:
            self._recorded.note(loss)
        with unscaled(self.model, scale):
            self._beside.after_backward(self._moment)
            self._hear(has_moved=False)
            if self.options["on_alarm"] == "shape" and not math.isfinite(loss or 0.0):
                self.model.zero_grad(set_to_none=True)  # no clip makes this step a good one
            else:
                self._beside.before_update(self._moment)

    def after_update(self) -> None:
        """Read the weights after a step; raises as `after_backward`."""
        self._beside.after_update(self._moment)
        self._say_what_was_saved()
        self._hear(has_moved=True)
        if self.voice.is_time():
            self._say_where_it_is()

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        with suppress(Exception):  # modules may be gone by now
            self.close()

    def close(self) -> None:
        """Write the end of the run, once, in the process that trained it."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        crash = getattr(sys, "last_value", None)
        seconds = round(time.monotonic() - self._began, 3)
        end = {"steps": self.step + 1, "seconds": seconds, "silent": self.watch.silent}
        self.voice.note("end", **end, crash=crash and summary(crash))
        self._beside.close()
        if self._recorded is not None:
            self._recorded.write(is_whole=crash is None and not self._was_stopped)

    # Parts

    def _now(self) -> Moment:
        rate = float(self.optimizers[0].param_groups[0]["lr"])
        optimizer = self.optimizer
        return Moment(step=self.step, model=self.model, optimizer=optimizer, learning_rate=rate)

    def _end_warm_up(self) -> None:
        """Let baselines begin once the rate no longer rises: nobody tells its schedule."""
        rate = self._moment.learning_rate or 0.0
        watch = self.watch
        if self._warm_at == math.inf and rate <= self._rate:
            self._warm_at = self.step
            watch.rules = replace(watch.rules, warmup_steps=self.step)
            watch.leave_out_of_advice(())
        self._rate = rate

    def _introduce(self, sizes: Mapping[str, Any]) -> None:
        """Ask for the forecast and begin the record, once the first step has shown the recipe."""
        if not self.voice.is_heard:
            return
        ranks = self.ranks.count
        sizes = {**sizes, "passes": self._passes, "ranks": ranks, "limit": self._limit}
        recipe = found_recipe(self.model, self.optimizers, sizes)
        described = next(filter(_has_config, self.model.modules()), self.model)
        if _has_config(described):
            config: Any = described.config
            words, loss = getattr(config, "vocab_size", None), self._loss
            guess = math.log(words) if words else None
            asked = {"config": config.to_dict(), "recipe": recipe, "loss": loss, "guess": guess}
            asked |= {"model": name_of(described), "log": str(self.voice.log.path)}
            self.voice.leave("forecast", json.dumps(asked, default=str))
        if self.options["record"]:
            self._recorded = Recorded(self.options["record"], described, self.optimizers[0], recipe)
            self._recorded.note(self._loss)

    # What is said

    def _hear(self, *, has_moved: bool) -> None:
        """Say what alarms the last phase raised, and do what they are to set off.

        Raises:
            SystemExit: One is to stop the run.
        """
        heard, self._beside.heard = self._beside.heard, []
        for alarm in heard:
            self._first = self._first or alarm
            self._count += not alarm.is_escalation
            self.voice.say(f"step {alarm.step}: {sentence(alarm)}")
        if heard:
            self._diagnose(heard, has_moved)
        critical = next((a for a in heard if a.severity is Severity.CRITICAL), None)
        if critical is not None and self.options["on_alarm"] == "stop":
            reason = f"stopped at step {critical.step}: {sentence(critical)}"
            self._was_stopped = True
            self.voice.note("stop", step=critical.step, reason=reason)
            self.voice.leave("stop", reason)
            raise SystemExit(STOPPED)

    def _diagnose(self, heard: Sequence[Alarm], has_moved: bool) -> None:
        """Say and note what caused alarms, if it is time to look for a cause."""
        last = self._diagnoses[-1] if self._diagnoses else None
        is_known = last is not None and last.cause != "unknown"
        is_same = last is not None and self.step - last.step < (_EPISODE if is_known else 1)
        is_spent = len(self._diagnoses) >= _MOST + self.step // _PER_DIAGNOSIS
        if self._kept is None or is_same or is_spent:
            return
        can_repeat = self._called is not None and self.ranks.is_whole
        try:
            found = diagnose(
                self._kept,
                bare(definite(self._called)) if can_repeat else None,
                scale=1.0 if self.scaler is None else self.scaler.get_scale(),
                has_moved=has_moved,
                is_critical=any(alarm.severity is Severity.CRITICAL for alarm in heard),
                has_warmed_up=self._warm_at > 1,
            )
        except Exception as error:  # of a model that cannot be repeated; the watch goes on
            text = f"no cause was found: the step cannot be repeated ({summary(error)})"
            found = CauseReport(step=self.step, cause="unknown", text=text)
        self._diagnoses.append(found)
        self.voice.note("cause", **found.model_dump())
        self.voice.say(f"step {found.step}: {found.cause}: {found.text}")

    def _say_what_was_saved(self) -> None:
        kept = self._beside.checkpoints
        if kept is not None and kept.written is not None and kept.written != self._saved:
            self._saved = kept.written
            self.voice.say(
                f"the state from before the alarm is in {kept.written}; load it with "
                "safetensors.torch.load_file: model.NAME is a weight, optimizer.NAME.KEY a state"
            )

    def _say_where_it_is(self) -> None:
        loss = "" if self._loss is None else f", loss {self._loss:.4g}"
        first, alarms = self._first, "no alarm"
        if first is not None:
            alarms = f"alarms: {self._count}, first {first.monitor} at step {first.step}"
        known = next((one for one in self._diagnoses if one.cause != "unknown"), None)
        cause = "" if known is None else f", cause: {known.cause} {known.module}".rstrip()
        self.voice.say(f"step {self.step}{loss}, {alarms}{cause}")


def _has_config(module: nn.Module) -> bool:
    """Tell whether a module has a configuration of transformers."""
    return hasattr(getattr(module, "config", None), "to_dict")
