"""The monitors of a watched run, and what an alarm sets off in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rksp.ground.errors import InputError
from rksp.ground.option_lines import build
from rksp.watch.attach.log import TRACKERS, Careful, Voice
from rksp.watch.interventions.update_bound import BoundUpdates
from rksp.watch.interventions.updates import is_scaled
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Monitor
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
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
    model: nn.Module, optimizer: Optimizer, ranks: Ranks, voice: Voice, *, is_compiled: bool
) -> Beside:
    """Return the monitors and interventions of a run, bound to its model.

    Args:
        model: What is trained.
        optimizer: Its optimizer, or `parts` and `param_groups` of several.
        ranks: The processes.
        voice: Says what cannot be had, and has the options of the watch.
        is_compiled: Whether a hook inside of the model would be compiled too.
    """
    options = voice.options
    lines = options.interventions
    if lines and hasattr(optimizer, "parts"):
        raise InputError("Interventions act on one optimizer, and the model has several.")
    responses = [make_intervention(one) if isinstance(one, str) else one for one in lines]
    if options.on_alarm == "shape" and is_scaled(optimizer):
        voice.say("--on-alarm shape changes nothing: the script bounds its steps itself")
    elif options.on_alarm == "shape":
        responses.append(_BoundFromAlarm())
    if responses and ranks.count > 1 and not ranks.are_shared:
        voice.say("no rank may act alone, and these share no alarms; they are logged")
        responses = []
    monitors = make_monitors(["loss", "non-finite", *(options.monitors or ["all"])])  # two always
    if not ranks.are_shared:
        monitors = [m for m in monitors if m.name != "silent-corruption"]
    inside = [m for m in monitors if type(m).arm is not Monitor.arm and m.name != "non-finite"]
    if is_compiled:
        for monitor in monitors:
            monitor.arm = lambda model: ()  # type: ignore[method-assign]  # this one alone
    rules = Rules(warmup_steps=2**31)  # until the rate no longer rises
    others = (*_trackers(voice), *options.sinks) if voice.is_heard else ()
    sinks = [Careful(sink, voice.say) for sink in (voice.log, *others)]
    watch = Watch(monitors, rules, sinks, keep=_KEEP)
    folder = options.log.with_suffix("") / f"rank{ranks.rank}"
    beside = Beside(
        watch,
        responses,
        checkpoints=Checkpoints(folder, keep=2) if options.on_alarm == "checkpoint" else None,
        must_agree=ranks.are_shared,
        keep=_KEEP,
    )
    beside.bind(model, optimizer)
    if is_compiled:
        for monitor in inside:
            watch.silent.setdefault(monitor.name, "the model is compiled")
    return beside


def _trackers(voice: Voice) -> Iterator[Sink]:
    for line in voice.options.to:
        try:
            yield build(TRACKERS, line, noun="tracker")
        except Exception as error:  # a tracker that fails takes no watch along
            voice.say(f"--to {line}: {error}")


class _BoundFromAlarm(BoundUpdates):
    """The update bound, asleep until the first alarm; it acts from the step after it."""

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().bind(model, optimizer)
        self._rouse(False)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        self._rouse(True)

    def _rouse(self, is_awake: bool) -> None:
        for bound in self.bounds:
            bound.is_awake = is_awake


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
