"""The monitors of a watched run, and what an alarm sets off in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.option_lines import build
from rksp.watch.attach.log import TRACKERS, Careful, Voice
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Monitor
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_monitors
from rksp.watch.run_state import Checkpoints
from rksp.watch.training.loop import Beside

_KEEP = 10_000  # readings in memory; the log has all of them


class Ranks:
    """The processes of a run, and whether they take every step together.

    Attributes:
        count: Their number.
        rank: That of this one.
        are_shared: Whether they exchange losses and alarms: under DDP, and where every weight is
            sharded over all of them. Other ranks are watched apart.
        is_whole: Whether this one can run the model by itself.
    """

    def __init__(self, model: nn.Module, called: nn.Module | None) -> None:
        group = torch.distributed
        is_group = group.is_available() and group.is_initialized()
        self.count = group.get_world_size() if is_group else 1
        self.rank = group.get_rank() if is_group else int(os.environ.get("RANK", "0"))
        modules = () if called is None else called.modules()
        parallel = next((m for m in modules if isinstance(m, DistributedDataParallel)), None)
        sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
        if parallel is not None:
            is_joint = parallel.process_group.size() == self.count
        else:
            is_joint = bool(sharded) and all(p.device_mesh.size() == self.count for p in sharded)
        self.are_shared = self.count > 1 and is_joint
        self.is_whole = self.count == 1 or (parallel is not None and not sharded)


def companion(
    model: nn.Module, optimizer: Any, ranks: Ranks, voice: Voice, *, is_compiled: bool
) -> Beside:
    """Return the monitors and interventions of a run, bound to its model.

    Args:
        model: What is trained.
        optimizer: As `optimizer_of` returns it.
        ranks: The processes.
        voice: Says what cannot be had, and has the options of `rksp watch`.
        is_compiled: Whether a hook inside of the model would be compiled too.
    """
    options = voice.options
    action = options["on_alarm"]
    if action == "shape" and (is_compiled or (ranks.count > 1 and not ranks.are_shared)):
        voice.say("step clip cannot act here (a compiled model, or ranks apart); alarms are logged")
        action = "log"
    monitors = make_monitors(["loss", "non-finite", *options["monitors"]])  # the two always
    if not ranks.are_shared:
        monitors = [m for m in monitors if m.name != "silent-corruption"]
    inside = [m for m in monitors if type(m).arm is not Monitor.arm and m.name != "non-finite"]
    if is_compiled:
        for monitor in monitors:
            monitor.arm = lambda model: ()  # type: ignore[method-assign]  # this one alone
    rules = Rules(warmup_steps=2**31)  # until the rate no longer rises
    sinks = [Careful(sink, voice.say) for sink in (voice.log, *_trackers(voice))]
    watch = Watch(monitors, rules, sinks, keep=_KEEP)
    folder = Path(options["log"]).with_suffix("") / f"rank{ranks.rank}"
    beside = Beside(
        watch,
        [_ClipFromAlarm()] if action == "shape" else [],
        checkpoints=Checkpoints(folder, keep=2) if action == "checkpoint" else None,
        must_agree=ranks.are_shared,
        keep=_KEEP,
    )
    beside.bind(model, optimizer)
    if is_compiled:
        for monitor in inside:
            watch.silent.setdefault(monitor.name, "the model is compiled")
    return beside


def _trackers(voice: Voice) -> Iterator[Sink]:
    for line in voice.options["to"] if voice.is_heard else ():
        try:
            yield build(TRACKERS, line, noun="tracker")
        except Exception as error:  # a tracker that fails takes no watch along
            voice.say(f"--to {line}: {error}")


def optimizer_of(optimizers: Sequence[Optimizer]) -> Any:
    """Return the optimizer of a model; of several, what monitors need of them together."""
    if len(optimizers) == 1:
        return optimizers[0]
    return SimpleNamespace(
        parts=optimizers,
        param_groups=[group for one in optimizers for group in one.param_groups],
    )


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


def bare(model: nn.Module) -> nn.Module:
    """Return the module inside of the wrappers of torch.compile, DDP and FSDP."""
    if isinstance(model, DistributedDataParallel | FullyShardedDataParallel):
        return bare(model.module)
    inner = getattr(model, "_orig_mod", None)
    return model if inner is None else bare(inner)


def name_of(model: nn.Module) -> str:
    """Return the name of a model's class, without what `fully_shard` puts before it."""
    return type(model).__name__.removeprefix("FSDP" if isinstance(model, FSDPModule) else "")


def has_compiled_part(module: nn.Module) -> bool:
    """Tell whether a module, or one inside of it, is compiled."""
    return any(
        hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in module.modules()
    )
