"""The training loop, what is called in its steps, and the monitored run with its record."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from rksp.datasets.batch import Batch, task_loss
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.own_runs.outcome import Curves, Outcome, OutcomePolicy
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.faults.base import Fault
from rksp.watch.groups import mean_over_ranks, world_size
from rksp.watch.interventions.base import Action, Intervention
from rksp.watch.moment import Handle, Moment, Repeat
from rksp.watch.monitors.base import Alarm, Reading, Severity
from rksp.watch.monitors.watch import Watch
from rksp.watch.run_state import Checkpoints

_LOG = logging.getLogger("rksp")
Stop = Callable[[list[float], list[float]], bool]
Progress = Callable[[int, float], None]  # (step, loss)


def hopeless(losses: list[float], norms: list[float]) -> bool:
    """Return whether a run's outcome is certain: not finite, or three losses in a row above 50."""
    return not np.isfinite(losses[-1]) or not np.isfinite(norms[-1]) or min(losses[-3:]) > 50.0


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    stop: Stop = hopeless,
    companion: Beside | None = None,
) -> Curves:
    """Train `model` in place for `recipe.max_steps` steps, or until `stop` returns true.

    Under `torch.distributed` every rank calls it with its own batches. Losses are means over the
    ranks, and norms are those of the whole gradient, sharded or not.

    Args:
        model: A model in training mode, on any device; `batches` must be on the same one.
        batches: One for each micro-step: `max_steps` times `gradient_accumulation_steps` of them.
        recipe: A recipe with a learning rate.
        stop: Called after every step with all losses and gradient norms so far.
        companion: Watches the run or acts on it; by default nothing does.

    Returns:
        Raw losses, and gradient norms before clipping. A step whose loss is not finite is recorded
        but not applied. In fp16 a step whose scaled gradient overflows is computed again at half
        the scale, down to a scale of one.

    Raises:
        InputError: The precision is fp8.
    """
    if recipe.precision == "fp8":
        raise InputError("rksp does not train in fp8; choose bf16 (--precision bf16).")
    optimizer = make_optimizer(model, recipe)
    beside = companion or Beside()
    beside.bind(model, optimizer)  # may add parameters
    params = [p for p in model.parameters() if p.requires_grad]
    device = params[0].device.type
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
    cast = torch.autocast(device, dtype=low) if low else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "fp16")
    micro_steps = recipe.gradient_accumulation_steps
    losses: list[float] = []
    norms: list[float] = []

    for step in range(recipe.max_steps):
        rate = recipe.learning_rate_at(step) * beside.rate_scale
        for group in optimizer.param_groups:
            group["lr"] = rate
        moment = Moment(step=step, model=model, optimizer=optimizer, learning_rate=rate)
        micro_batches = batches[step * micro_steps : (step + 1) * micro_steps]
        passes = _Passes(moment, micro_batches, beside, cast, scaler)
        moment.repeat = passes.again
        beside.begin(moment)
        while True:
            moment.loss = loss = mean_over_ranks(passes.run())
            if not math.isfinite(loss):
                break
            scaler.unscale_(optimizer)
            if not _overflowed(scaler, params):
                break
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        beside.after_backward(moment)
        norm = gradient_norm(params) if math.isfinite(loss) else math.nan
        losses.append(loss)
        norms.append(norm)
        if math.isfinite(loss):
            may_have_changed = beside.before_update(moment)
            if recipe.max_grad_norm is not None:
                _clip(params, gradient_norm(params) if may_have_changed else norm, recipe)
            scaler.step(optimizer)
            scaler.update()
        beside.after_update(moment)
        optimizer.zero_grad(set_to_none=True)
        if stop(losses, norms):
            break
    with np.errstate(over="ignore"):  # the norm of many gradients may exceed float32
        return Curves(
            loss=np.array(losses, dtype=np.float32),
            grad_norm=np.array(norms, dtype=np.float32),
            planned_steps=recipe.max_steps,
        )


class Beside:
    """Calls faults, monitors and interventions at their moments, in that order.

    Without any of them it does nothing.

    Under `torch.distributed` the interventions of every rank receive the alarms of all ranks, so
    that all ranks take the same decisions.

    Args:
        watch, interventions, faults, checkpoints: As for `rksp.watch.training.run`.
        must_agree: Share alarms between ranks even without interventions.
        keep: How many of each intervention's newest actions and of the newest step times stay in
            memory at least; None keeps all.
    """

    def __init__(
        self,
        watch: Watch | None = None,
        interventions: Sequence[Intervention] = (),
        faults: Sequence[Fault] = (),
        checkpoints: Checkpoints | None = None,
        *,
        must_agree: bool = False,
        keep: int | None = None,
    ) -> None:
        self.watch = watch or Watch([])
        self.interventions, self.faults, self.checkpoints = interventions, faults, checkpoints
        self.keep = keep
        self.must_agree = must_agree or bool(self.interventions)
        self.undone: list[tuple[int, int]] = []
        self.was_rolled_back = False  # in the current step
        self.step_seconds: list[float] = []
        self.action_seconds = 0.0  # host time of the interventions
        self.heard: list[Alarm] = []  # in the last phase, on any rank
        self._started = 0.0
        self._alarms: list[Alarm] = []
        self._heeded = [0] * len(self.interventions)  # number of known actions of each
        self._handles: list[Handle] = []

    @property
    def rate_scale(self) -> float:
        """The product of the interventions' factors on the learning rate."""
        return math.prod(intervention.rate_scale for intervention in self.interventions)

    def bind(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Bind the interventions and the monitors to the model."""
        for intervention in self.interventions:
            intervention.bind(model, definite(optimizer))
        self.watch.bind(model)
        self.watch.leave_out_of_advice(i.name for i in self.interventions)

    def begin(self, moment: Moment) -> None:
        """Keep a state if it is time, arm faults and interventions, and start the step."""
        self._started = time.perf_counter()
        self.was_rolled_back = False
        if self.checkpoints is not None:
            self.checkpoints.keep(moment.step, moment.model, definite(moment.optimizer))
        self._arm(moment)
        self.watch.begin_step(moment.step)

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return the sum of the interventions' penalties, or None."""
        with self._timed():
            found = [i.penalty(moment) for i in self.interventions]
        terms = [term for term in found if term is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def after_backward(self, moment: Moment) -> None:
        """Remove the hooks, let the faults act, and read the gradients."""
        self._disarm()
        for fault in self.faults:
            fault.after_backward(moment)
        self._alarms = self.heard = self.agreed(self.watch.after_backward(moment))

    @contextmanager
    def repeating(self, moment: Moment) -> Iterator[None]:
        """Hang the hooks of the step again for a repetition of its passes."""
        self._arm(moment)
        yield
        self._disarm()
        for fault in self.faults:  # one that strikes for long strikes again
            fault.after_backward(moment)

    def before_update(self, moment: Moment) -> bool:
        """Let the interventions change the gradients; return whether there are any."""
        with self._timed():
            for intervention in self.interventions:
                intervention.before_update(moment)
        return bool(self.interventions)

    def after_update(self, moment: Moment) -> None:
        """Let faults and interventions act on the weights, read them, and pass the alarms on."""
        for fault in self.faults:
            fault.after_update(moment)
        with self._timed():
            for intervention in self.interventions:
                intervention.after_update(moment)
        self._heed(moment)  # before monitors compare weights with those of earlier steps
        self.heard = self.agreed(self.watch.after_update(moment))
        for alarm in [*self._alarms, *self.heard]:
            if alarm.severity is Severity.CRITICAL and self.checkpoints is not None:
                self.checkpoints.write(alarm.step, moment.model)
            with self._timed():
                for intervention in self.interventions:
                    intervention.on_alarm(alarm, moment)
        self._heed(moment)
        self.step_seconds.append(time.perf_counter() - self._started)
        _trim(self.step_seconds, self.keep)

    def close(self) -> None:
        """Remove the hooks, close the monitors, and let the interventions say what they did."""
        self._disarm()
        self.watch.close()
        for said in filter(None, (intervention.closing() for intervention in self.interventions)):
            _LOG.warning(said)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the host time of the interventions, without work that a device has queued."""
        started = time.perf_counter()
        yield
        self.action_seconds += time.perf_counter() - started

    def _arm(self, moment: Moment) -> None:
        parts: tuple[Fault | Intervention, ...] = (*self.faults, *self.interventions)
        for part in parts:
            self._handles += part.arm(moment)

    def _heed(self, moment: Moment) -> None:
        """Apply the consequences of the interventions' actions since the last call."""
        for place, intervention in enumerate(self.interventions):
            for action in intervention.actions[self._heeded[place] :]:
                if action.moved_weights:
                    self.watch.reset()
                undone = int(action.detail.get("undone", 0))
                if undone:
                    self.undone.append((moment.step + 1 - undone, moment.step + 1))
                    self.was_rolled_back = True
            _trim(intervention.actions, self.keep)
            self._heeded[place] = len(intervention.actions)

    def agreed(self, alarms: list[Alarm]) -> list[Alarm]:
        """Return the alarms of all ranks in rank order, each once, if something may act on them."""
        # In nearly every step there is nothing to gather.
        is_alone = not self.must_agree or world_size() == 1
        if is_alone or not mean_over_ranks(float(len(alarms))):
            return alarms
        parts: list[list[Alarm]] = [[] for _ in range(world_size())]
        torch.distributed.all_gather_object(parts, alarms)
        return list(dict.fromkeys(alarm for part in parts for alarm in part))

    def _disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _trim(entries: list[float] | list[Action], keep: int | None) -> None:
    if keep is not None and len(entries) > 2 * keep:
        del entries[:-keep]


class _Passes:
    def __init__(
        self,
        moment: Moment,
        micro_batches: Sequence[Batch],
        beside: Beside,
        cast: AbstractContextManager[object],
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.moment, self.micro_batches, self.beside = moment, micro_batches, beside
        self.cast, self.scaler = cast, scaler
        self._randomness = torch.get_rng_state()
        self._loss = math.nan

    def run(self) -> float:
        """Add the step's gradients, scaled, to those that stand; return the loss of this rank."""
        loss, count = 0.0, len(self.micro_batches)
        for batch in self.micro_batches:
            with self.cast:
                part = task_loss(self.moment.model, batch) / count
                penalty = self.beside.penalty(self.moment)
            whole = part if penalty is None else part + penalty / count
            torch.autograd.backward(self.scaler.scale(whole))
            loss += part.item()
        self._loss = loss
        return loss

    def again(self) -> Repeat:
        """Repeat the step beside its own gradients; only the CPU's generator is put back."""
        model, own = self.moment.model, self._loss
        held = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        for p, _ in held:
            p.grad = None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._randomness)
            with self.beside.repeating(self.moment):
                loss = self.run()
                for p, _ in held:
                    definite(p.grad).div_(self.scaler.get_scale())
        gradients = [definite(p.grad) for p, _ in held]
        for p, grad in held:
            p.grad = grad
        return Repeat(gradients=gradients, moved=abs(loss - own) / max(abs(own), 1e-30))


def gradient_norm(params: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all gradients together, over all shards, in one reduction.

    It is infinite only if a gradient is: where squares overflow float32, it is computed in float64.
    """
    grads = [p.grad for p in params if p.grad is not None]  # an intervention may drop all
    norm = _total(grads)
    return norm if math.isfinite(norm) else _total([grad.double() for grad in grads])


def _total(gradients: Sequence[Tensor]) -> float:
    norm = get_total_norm(gradients)
    # float() of a sharded norm would silently give the norm of the local shard.
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _clip(params: Sequence[Tensor], norm: float, recipe: Recipe) -> None:
    if norm > definite(recipe.max_grad_norm):
        scale = definite(recipe.max_grad_norm) / (norm + 1e-6)
        torch._foreach_mul_([p.grad for p in params if p.grad is not None], scale)


def _overflowed(scaler: torch.amp.GradScaler, params: Sequence[Tensor]) -> bool:
    """Return whether the gradient left fp16's range at a scale that can still be lowered."""
    if not scaler.is_enabled() or scaler.get_scale() <= 1.0:
        return False
    return not math.isfinite(gradient_norm(params))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a monitored run.

    Attributes:
        curves: Raw losses and gradient norms of every step, including undone ones.
        outcome: `judge_alone` of the steps that were not undone.
        readings: The monitors' readings, in order.
        alarms: The alarms, in order.
        actions: The actions of every intervention, in order.
        silent: Monitors that did not measure, with the reason.
        undone: The ranges (first step, step after the last) that rollbacks undid.
        monitor_seconds: Host time of every monitor.
        action_seconds: Host time of the interventions, without their hooks.
        seconds: Wall time of the run.
        step_seconds: Wall time of the median step, including monitors and interventions.
        checkpoint: The file with a state from before the trouble, if one was written.
    """

    curves: Curves
    outcome: Outcome
    readings: tuple[Reading, ...]
    alarms: tuple[Alarm, ...]
    silent: Mapping[str, str]
    actions: tuple[Action, ...] = ()
    undone: tuple[tuple[int, int], ...] = ()
    monitor_seconds: Mapping[str, float] = field(default_factory=dict)
    action_seconds: float = 0.0
    seconds: float
    step_seconds: float
    checkpoint: str | None = None


def run(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    watch: Watch | None = None,
    interventions: Sequence[Intervention] = (),
    faults: Sequence[Fault] = (),
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda step, loss: None,
) -> RunRecord:
    """Train `model` in place as `train` does, with monitors, interventions and faults.

    With monitors alone the result is bitwise equal to that of `train`. A run ends when its loss is
    not finite, unless an intervention rolled it back at that step.

    Args:
        model: A model in training mode.
        batches: As for `train`.
        recipe: As for `train`; the faults may change it first.
        watch: Monitors and rules; its alarms reach the interventions.
        interventions: Interventions in the order in which they act.
        faults: Faults in the order in which they strike.
        seed: Seed of dropout and of the faults; the global generators are restored.
        checkpoints: Writes a state from before the first critical alarm or, if the run was stopped
            without one, from before that step.
        progress: Called after every step.

    Raises:
        NotCovered: A fault or an intervention finds nothing to act on in this model.
    """
    for fault in faults:
        recipe = fault.recipe(recipe)
        per_step = recipe.gradient_accumulation_steps
        batches = fault.batches(batches, per_step=per_step, seed=seed)
    for fault in faults:
        fault.bind(model, seed=seed)
    beside = Beside(watch, interventions, faults, checkpoints)

    def ends(losses: list[float], norms: list[float]) -> bool:
        step = len(losses) - 1
        progress(step, losses[-1])
        is_over = hopeless(losses, norms) and not beside.was_rolled_back
        if is_over and checkpoints is not None:
            checkpoints.write(step, model)
        return is_over

    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    started = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            curves = train(model, batches, recipe, stop=ends, companion=beside)
    finally:
        beside.close()
    return RunRecord(
        curves=curves,
        outcome=judge_alone(without(curves, beside.undone)),
        readings=tuple(beside.watch.readings),
        alarms=tuple(beside.watch.alarms),
        actions=tuple(a for i in interventions for a in i.actions),
        silent=dict(beside.watch.silent),
        undone=tuple(beside.undone),
        monitor_seconds=dict(beside.watch.seconds),
        action_seconds=beside.action_seconds,
        seconds=time.perf_counter() - started,
        step_seconds=statistics.median(beside.step_seconds),
        checkpoint=str(checkpoints.written) if checkpoints and checkpoints.written else None,
    )


def judge_alone(curves: Curves) -> Outcome:
    """Label a run by its own curve, without a ladder.

    The label is *diverged* as published; *failed* if a spike never came back, or if the final loss
    is above the first by the margin or was never reached; else spiked or healthy. A plateau alone
    is not a failure, since slow runs show it too. Only a ladder can tell that a run is worse than
    another.
    """
    policy = OutcomePolicy()
    if policy.has_diverged(curves):
        return Outcome.DIVERGED
    spiked, lost = policy.spike(curves)
    if lost or policy.final_loss(curves) > curves.loss[0] + policy.margin:
        return Outcome.FAILED_PLATEAU
    return Outcome.SPIKED if spiked else Outcome.HEALTHY


def without(curves: Curves, undone: Sequence[tuple[int, int]]) -> Curves:
    """Return the curves of the steps that still count, with as many planned steps fewer."""
    keep = np.ones(len(curves.loss), dtype=bool)
    for start, stop in undone:
        keep[start:stop] = False
    return Curves(
        loss=curves.loss[keep],
        grad_norm=curves.grad_norm[keep],
        planned_steps=curves.planned_steps - int((~keep).sum()),
    )
