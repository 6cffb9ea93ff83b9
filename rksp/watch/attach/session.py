"""A watched run: monitors, status, alarms, what an alarm sets off, and the record."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.documents.confirm import CauseReport
from rksp.ground.errors import summary
from rksp.ground.model import definite
from rksp.ground.versions import version
from rksp.recipe.optimizers.groups import groups_of, highest_rate, parameters_of
from rksp.watch.attach import STOPPED
from rksp.watch.attach.account import EXPECTED, Account
from rksp.watch.attach.cause import Evidence, diagnose
from rksp.watch.attach.checks import Checks
from rksp.watch.attach.companion import (
    Ranks,
    bare,
    companion,
    has_compiled_part,
    name_of,
)
from rksp.watch.attach.kept import Kept, looks_ahead, losses_of
from rksp.watch.attach.lines import Began, Ended, Question, Stepped, Stopped
from rksp.watch.attach.log import Voice
from rksp.watch.attach.options import Watching
from rksp.watch.attach.past import TRAINED, past_runs, siblings
from rksp.watch.attach.pulse import Pulse
from rksp.watch.attach.recipe import Sizes, found_recipe, sizes_of
from rksp.watch.attach.settings import Settings
from rksp.watch.attach.stepping import scale_rates, unscaled
from rksp.watch.attach.targets import Targets, criteria_of
from rksp.watch.expected import Expected, Finding, spread_of
from rksp.watch.groups import gradient_norms, mean_over_ranks
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.monitors.sinks import said
from rksp.watch.training.recorded import Recorded

_SKIPS = 25  # steps in a row without an update; a scale that begins high is right after 16
_CONTROL = 3  # the step whose loss is compared with a repetition, to know what one is worth
_FAITHFUL = 1e-3  # of a loss
_SHIFTED = 0.9  # of the targets are the next token
_NEARER = 0.3  # of the way from the first loss of the run before to its last
_AT_ONCE = 0.5  # of the rate at which that run ended


class Session:
    """Watches one model from its first step on; every rank of a run has a session of its own.

    Args:
        model: What is trained.
        called: The module that the script calls first, such as the model inside of DDP.
        optimizers: The optimizers of the model.
        options: Those of the watch.
        made: Returns all optimizers of the script, by default these.
        loaded: What the script loaded a state into before (`model`, `optimizer`), and what that
            state lacked; empty if nothing.

    Attributes:
        raises_stop: Whether an alarm that is to stop the run raises `SystemExit`; otherwise the
            gradients of the step are dropped, and `was_stopped` says so.
        was_stopped: Whether an alarm was to stop the run.
        watch, causes: Readings and alarms, and what was found of these, in order.
    """

    raises_stop = True
    was_stopped = False

    def __init__(
        self,
        model: nn.Module,
        called: nn.Module | None,
        optimizers: Sequence[Optimizer],
        options: Watching,
        made: Callable[[], Sequence[Optimizer]] | None = None,
        loaded: Mapping[str, str] | None = None,
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
        self._loss_before: float | None = None
        self._rate = -1.0
        self._warm_at = math.inf  # the step from which on the rate no longer rises
        self._limit: float | None = None
        self.crash: BaseException | None = None  # that ended the run, where it is known
        self.scaler: GradScaler | None = None  # of the loss, once the script uses one
        self._passes = 0
        self._is_closed = self._is_looking = False
        self._process = os.getpid()
        self.targets, self.settings = Targets(), Settings(self.model)
        self.checks = Checks(self.model, made or (lambda: self.optimizers), self.targets)
        self._inputs: tuple[tuple[object, ...], Mapping[str, object]] = ((), {})
        self._ratios: deque[float] = deque(maxlen=64)
        self._loaded = loaded or {}
        self._before: Callable[[], str] = str  # why it may not continue the run before it
        self._is_faithful, self._has_checks = False, True
        self._ahead: Finding | None = None
        self._ended = 0
        self._saved: Path | None = None
        self._recorded: Recorded | None = None
        self._account = Account(self.voice)
        self.causes = self._account.causes
        self._beside = companion(
            self.model, self.optimizer, self.ranks, self.voice, is_compiled=self._is_compiled
        )
        self.watch, self.interventions = self._beside.watch, self._beside.interventions
        self.responds = bool(self.interventions)
        self._kept: Kept | None = None
        self._lowered: list[RemovableHandle] = []
        if memory := options.memory * 2**30:
            self._kept = Kept(self.model, memory, is_compiled=self._is_compiled)
        began = Began(
            model=name_of(self.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            optimizer=type(self.optimizers[0]).__name__,
            ranks=self.ranks.count,
            rank=self.ranks.rank,
            command=options.command,
            rksp=version("rksp"),
            torch=torch.__version__,
            silent=self.watch.silent,
        )
        past = past_runs(self.voice.log.path)
        self._last = next((run for run in past[::-1] if run.is_like(began)), None)
        self.expected = Expected(siblings=siblings(past, began))
        self.voice.note(began)
        self._pulse = Pulse(self._stands_still)
        self._passes_before, self._skipped = 1, 0
        self._planned: object = None  # steps, where a schedule or a trainer tells
        if self.responds:
            for one in self.optimizers:
                self._lowered += scale_rates(one, lambda: self._beside.rate_scale)
        if self._is_compiled:
            off = [name for name, why in self.watch.silent.items() if "compiled" in why]
            self.voice.say(f"the model is compiled: {', '.join(off)} are off, and all else is on")
        if not set(self.model.parameters()).issuperset(parameters_of(*optimizers)):
            self.voice.say(f"only {name_of(self.model)} is watched of what the optimizer trains")

    @property
    def optimizer(self) -> Any:
        """The optimizer of the model; of several, what monitors need of them together."""
        if len(self.optimizers) == 1:
            return self.optimizers[0]
        groups = [group for one in self.optimizers for group in one.param_groups]
        return SimpleNamespace(parts=self.optimizers, param_groups=groups)

    # Moments of a step

    def begin(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Begin a step; its first forward pass has these inputs."""
        self.step += 1
        if self.step == 1:
            self._introduce(sizes_of((args, kwargs), self.model))
        self._passes_before, self._passes = max(self._passes, 1), 0
        self._moment = self._now()
        self.targets.begin()
        self.checks.begin(self.step)
        if self._kept is not None:
            self._kept.begin(self.step)
        self._beside.begin(self._moment)

    def begin_pass(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Begin a forward pass with these inputs."""
        self._inputs = args, kwargs
        if self._kept is not None:
            self._kept.add(args, kwargs)

    def begin_backward(self, loss: Tensor) -> None:
        """Begin the backward pass from a loss; raises as `after_backward`."""
        found = self._checked(lambda: self.checks.before_backward(self._passes))
        self._checked(lambda: self._read_targets(loss))
        if found and not self.ranks.are_shared:
            self._hear([], found, has_moved=False)

    def penalty(self, *, is_scaled: bool) -> Tensor | None:
        """Return what interventions add to the loss of a pass.

        A step's loss is the sum of what backward is called on: each pass has its share.

        Args:
            is_scaled: Whether the loss was multiplied by the scale of a loss scaler.
        """
        found = self._beside.penalty(self._moment) if self.responds else None
        scale = self.scaler.get_scale() if is_scaled and self.scaler is not None else 1.0
        return None if found is None else found * (scale / self._passes_before)

    def _read_targets(self, loss: Tensor) -> None:
        found = criteria_of(loss)
        self.targets.add(found, *self._inputs)
        if self._kept is not None:
            self._kept.add_criterion(found)

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
        self._moment.loss, self._loss, self._loss_before = loss, loss, self._loss
        self._limit = limit
        self._end_warm_up()
        if self._recorded is not None:
            self._recorded.note(loss)
        self._checked(self.targets.end)
        own = self._own()
        is_finite = loss is None or math.isfinite(loss)
        with unscaled(self.model, scale, keep_changes=self.responds):
            found = self._checked(lambda: self._expect(loss, own))
            self._beside.after_backward(self._moment)
            self._hear(self._beside.heard, found, has_moved=False)
            mine = self.targets.own
            if mine and loss is not None and math.isfinite(loss / mine):
                self._ratios.append(loss / mine)
            if self.step == _CONTROL:
                self._control()
            self._hear([], self._checked(self.checks.before_update), has_moved=False)
            if is_finite and not self.was_stopped:
                self._beside.before_update(self._moment)
        if self.was_stopped or (self.responds and not is_finite):
            self.model.zero_grad(set_to_none=True)  # no clip makes this step a good one

    def skip(self) -> None:
        """End a step that a loss scaler left out; raises as `after_backward`."""
        self._ended = self.step + 1
        self._skipped += 1
        if self.responds:  # a rollback may be what ends the overflows
            self.after_update()
        elif self._skipped == _SKIPS:
            scale = definite(self.scaler).get_scale()
            text = (
                f"the loss scaler left out each of {_SKIPS} steps (its scale is {scale:.3g}): the "
                "gradients overflow; lower its first scale, or look for what is not finite"
            )
            found = Finding(name="skipped", cause="precision", text=text, is_critical=True)
            self._hear([], [found], has_moved=False)

    def after_update(self) -> None:
        """Read the weights after a step; raises as `after_backward`."""
        if self.was_stopped:
            return
        self._skipped, self._ended = 0, self.step + 1
        found = self._checked(self.checks.after_update)
        found += [] if self._ahead is None else [self._ahead]
        self._ahead = None
        self._beside.after_update(self._moment)
        if self.responds:
            self.checks.accept()
        self._say_what_was_saved()
        self._hear(self._beside.heard, found, has_moved=True)
        self._note_step(self._pulse.beat())
        if self.voice.is_time():
            self._say_where_it_is()

    def __del__(self, suppress: type[contextlib.suppress] = contextlib.suppress) -> None:
        with suppress(Exception):  # modules may be gone by now
            self.close()

    def close(self) -> None:
        """Write the end of the run, once, in the process that trained it."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self._pulse.close()
        error = self.crash or getattr(sys, "last_value", None)
        crash, silent = error and summary(error), self.watch.silent
        seconds = round(time.monotonic() - self._began, 3)
        self.voice.note(Ended(steps=self._ended, seconds=seconds, silent=silent, crash=crash))
        if self.voice.is_heard and self.step >= 0:
            self.voice.leave("end", self._epilogue(seconds, crash))
        self._beside.close()
        for handle in self._lowered:
            handle.remove()
        if self._recorded is not None:
            self._recorded.write(is_whole=crash is None and not self.was_stopped)

    # Parts

    def _now(self) -> Moment:
        rate = next(groups_of(self.optimizers[0])).rate * self._beside.rate_scale
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

    def _introduce(self, sizes: Sizes) -> None:
        """Ask for the forecast and begin the record, once the first step has shown the recipe."""
        if not self.voice.is_heard:
            return
        sizes = replace(sizes, passes=self._passes, ranks=self.ranks.count, limit=self._limit)
        recipe = found_recipe(self.model, self.optimizers, sizes)
        self._planned = recipe.get("max_steps")
        configs = ((m, getattr(m, "config", None)) for m in self.model.modules())
        known = ((m, config) for m, config in configs if hasattr(config, "to_dict"))
        described, config = next(known, (self.model, None))
        if config is not None:
            words = getattr(config, "vocab_size", None)
            question = Question(
                config=config.to_dict(),
                recipe=recipe,
                model=name_of(described),
                log=self.voice.log.path,
                loss=self._loss,
                guess=math.log(words) if words else None,
            )
            self.voice.leave("forecast", json.dumps(question.model_dump(), default=str))
        else:
            self.voice.say("no forecast: the model has no configuration of transformers")
        if self.options.record:
            self._recorded = Recorded(self.options.record, described, self.optimizers[0], recipe)
            self._recorded.note(self._loss)

    # What is expected

    def _own(self) -> float | None:
        own = self.targets.own
        if self.ranks.are_shared:
            known = mean_over_ranks(float(own is not None))
            own = mean_over_ranks(own or 0.0) / known if known else None
        return own

    def _expect(self, loss: float | None, own: float | None) -> Iterator[Finding]:
        norm = None
        if self._limit is not None and (norms := gradient_norms(self._moment)):
            norm = math.sqrt(float(torch.stack(list(norms.values())).square().sum()))
        passing = {"passes": float(self._passes), "clip": self._limit}
        is_settled = self._warm_at < math.inf
        self.settings.note(self.step, self.optimizers, passing, rate=is_settled)
        yield from self.checks.after_backward(
            limit=self._limit, norm=norm, loss=loss, settled=is_settled
        )
        reference = self.targets.reference
        if own is None or reference is None or not math.isfinite(own):
            return
        if not self.expected.losses:
            yield from self._continue(own, reference.nothing)
        settled = int(self._warm_at) if is_settled else None
        yield from self.expected.feed(own, reference, settled=settled)

    def _checked(self, look: Callable[[], Iterable[Finding] | None]) -> list[Finding]:
        """Return what a look finds; one that fails is the last, and the monitors go on."""
        if not self._has_checks:
            return []
        try:
            return list(look() or ())
        except Exception as error:
            self._has_checks = False
            self.watch.silent[EXPECTED] = f"switched off at step {self.step}: {summary(error)}"
            return []

    def _continue(self, loss: float, nothing: float) -> Iterator[Finding]:
        """Tell at the first loss whether the run goes on with the last one in its log."""
        if text := self._loaded.get("model"):
            yield Finding(name="not loaded", cause="state", text=text)
        last, is_fresh = self._last, self.checks.was_fresh_now()
        goes_on = bool(self._loaded) or loss < TRAINED * nothing or not is_fresh
        if last is None or last.end is None or not goes_on:
            return
        self.expected.before, self.expected.spread_before = last.end, spread_of(last.losses)
        rates = self.checks.rates
        self._before = partial(last.differs, loss, nothing, rates=rates, is_fresh=is_fresh)
        # From weights of elsewhere a run would begin where the last one began.
        is_next = abs(loss - last.end) < _NEARER * abs(last.losses[0] - last.end)
        if (
            is_fresh
            and is_next
            and highest_rate(*self.optimizers) >= _AT_ONCE * (last.rate or math.inf)
        ):
            text = (
                f"the run goes on from a loss of {last.end:.4g} at the full rate, and the "
                "optimizer's state was not loaded: its moments begin anew; load it, or warm up"
            )
            yield Finding(name="no state", cause="state", text=text)

    def _control(self) -> None:
        """Repeat a step that nothing is wrong with, to know whether repetitions are faithful."""
        observed = self.targets.own if self.targets.own is not None else self._loss
        if self._kept is None or observed is None or not (called := self._repeatable()):
            return
        with contextlib.suppress(Exception), self._kept.repeating():
            repeated = losses_of([self._kept.steps[-1]], called)[-1]
            self._is_faithful = abs(repeated - observed) <= _FAITHFUL * (1 + abs(observed))
            if self.targets.ahead[1] > _SHIFTED and looks_ahead(self._kept.steps[-1], called):
                self._ahead = Finding(
                    name="looks ahead",
                    cause="labels",
                    text="a change of the last token moves the predictions before it, and these "
                    "are of the next token: the model sees what it is asked for (a leak); mask it",
                )

    def _repeatable(self) -> nn.Module | None:
        """Return what a repetition calls; None where the model cannot be called here."""
        is_possible = self._called is not None and self.ranks.is_whole
        return bare(definite(self._called)) if is_possible else None

    # What is said

    def _hear(self, heard: Sequence[Alarm], found: Sequence[Finding], *, has_moved: bool) -> None:
        """Say what the last phase raised, and do what it is to set off: `SystemExit` is raised."""
        self._beside.heard = []
        own = [self._alarm_of(one) for one in found]
        if self.ranks.are_shared:
            own = self._beside.agreed(own)
        self.watch.raise_alarms(own)
        alarms = [*own, *heard]
        if not alarms:
            return
        self._account.count(alarms)
        known = {one.name: one for one in found if one.cause}
        for alarm in alarms:
            if (finding := known.get(alarm.quantity)) is not None:
                self._account.tell(alarm, self._caused(finding))
        rest = [alarm for alarm in alarms if alarm.quantity not in known]
        if rest:
            diagnose = None if self._kept is None else partial(self._diagnose, has_moved=has_moved)
            self._account.tell_of(rest, loss_before=self._loss_before, diagnose=diagnose)
        critical = next((a for a in alarms if a.severity is Severity.CRITICAL), None)
        if critical is not None and self.options.on_alarm == "stop":
            reason = f"stopped at step {critical.step}: {said(critical)}"
            self.was_stopped = True
            self.voice.note(Stopped(step=critical.step, reason=reason))
            self.voice.leave("stop", reason)
            if self.raises_stop:
                raise SystemExit(STOPPED)

    def _alarm_of(self, one: Finding) -> Alarm:
        return Alarm(
            monitor=EXPECTED,
            quantity=one.name,
            layer=one.module,
            step=self.step,
            severity=Severity.CRITICAL if one.is_critical else Severity.WARN,
            rule="by itself" if one.cause else "expected",
            value=one.value,
            baseline=one.reference,
            text=one.text,
        )

    def _caused(self, one: Finding) -> CauseReport:
        cause = definite(one.cause)
        return CauseReport(step=self.step, cause=cause, module=one.module, text=one.text)

    def _diagnose(self, words: Collection[str], *, has_moved: bool) -> CauseReport:
        readings = reversed(self.watch.readings)
        evidence = Evidence(
            kept=definite(self._kept),
            called=self._repeatable(),
            optimizers=self.optimizers,
            checks=self.checks,
            settings=self.settings,
            targets=self.targets,
            words=frozenset(words),
            loss=self._loss,
            ratios=self._ratios,
            scale=1.0 if self.scaler is None else self.scaler.get_scale(),
            has_moved=has_moved,
            has_warmed_up=self._warm_at > 1 or self.expected.before is not None,
            is_faithful=self._is_faithful,
            has_loaded=bool(self._loaded),
            before=self._before(),
            starved=next((r.value for r in readings if r.quantity == "starved_share"), None),
            has_learned=self.expected.has_learned,
        )
        self._is_looking = True
        try:
            return diagnose(evidence)
        except Exception as error:  # of a model that cannot be repeated; the watch goes on
            text = f"no cause was found: the step cannot be repeated ({summary(error)})"
            return CauseReport(step=self.step, cause="unknown", text=text)
        finally:
            self._is_looking = False

    def _stands_still(self, seconds: float, usual: float, place: str) -> None:
        """Say, from the thread beside, that no step ended for long."""
        if self._is_closed or self._is_looking or os.getpid() != self._process:
            return
        where = f"; the script is at {place}" if place else ""
        text = f"no step for {seconds:.0f} s (usual {usual:.2g} s){where}"
        found = Finding(
            name="no step since", cause="stall", text=text, value=seconds, reference=usual
        )
        alarm = self._alarm_of(found)
        self.watch.raise_alarms([alarm])
        self._account.count([alarm])
        self._account.tell(alarm, self._caused(found))

    def _note_step(self, seconds: float) -> None:
        seen = Stepped(
            step=self.step,
            loss=self._loss,
            own=self.targets.own,
            rate=highest_rate(*self.optimizers),
            seconds=round(seconds, 5),
            targets=self.targets.rows,
            clip=self._limit,
        )
        self.voice.note(seen)

    def _epilogue(self, seconds: float, crash: str | None) -> str:
        first = f"{self.expected.losses[0]:.4g} → " if self.expected.losses else ""
        losses = "" if self._loss is None else f", loss {first}{self._loss:.4g}"
        how = f"raised {crash}" if crash else "was stopped" if self.was_stopped else "ended"
        steps = f"the run {how} after {self._ended} steps in {seconds:.0f} s"
        return f"{steps}{losses}; {self._account}"

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
        usual = self._pulse.usual
        pace = f", rate {highest_rate(*self.optimizers):.3g}, {usual:.2g} s/step" if usual else ""
        if usual and self.targets.rows:
            pace += f", {self.targets.rows / usual:,.0f} targets/s"
        if usual and isinstance(self._planned, int) and self._planned > self.step:
            left = timedelta(seconds=round(usual * (self._planned - self.step)))
            pace += f", {left} left of {self._planned:,} steps"
        self.voice.say(f"step {self.step}{loss}{pace}, {self._account}")
