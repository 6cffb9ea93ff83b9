"""What needs no baseline: weights that an optimizer misses, gradients that stay, empty steps."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.documents.confirm import Cause
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.recipe.optimizers.groups import Group, groups_of, parameters_of
from rksp.watch.attach.targets import Targets
from rksp.watch.expected import Finding
from rksp.watch.groups import local

_TENSORS, _ENTRIES = 64, 12  # that are sampled, and entries of each
_FIRST = 5
_EARLY, _LATER = range(_FIRST), range(40, 40 + _FIRST)  # steps whose every gradient is looked at
_DAYS = 20  # newest steps that a fact is a median of
_UNREACHED = 0.25  # of the numbers in matrices
_MISSED = 0.02  # of the numbers that got a gradient
_DECAYS, _DECAYS_FAST = 0.01, 0.05  # of a weight, each step
_STANDS = 0.9  # of the sampled weights that a step left as they were
_RESTS = 0.5  # of the numbers that have a gradient
_COPIED, _TWICE, _MOSTLY, _MANY = 0.98, 0.9, 0.6, 64  # a row that is rolled ends in another
_REVERTS, _WRITES = 0.2, 2.0  # times the usual step, for a write in each of some steps, and for one
_AT_ONCE = 8.0  # times the usual step, for a write that is told of by itself
_NO_RATE = 1e-6  # of the highest
_NEARLY_ALL = 0.9  # of what passes a dropout
_LONGEST = 50_000  # steps of a warm-up; long ones have 10,000
_OFTEN = 5  # steps in a row before which weights were written
_NO_PASS = 8  # backward passes of a step that began without gradients


@dataclass(slots=True)
class Checks:
    """Looks at the weights, gradients and optimizers of a run; a finding comes once.

    Args:
        model: What is trained.
        optimizers: Returns all optimizers of the script.
        targets: Those of the run.
    """

    model: nn.Module
    optimizers: Callable[[], Sequence[Optimizer]]
    targets: Targets
    step: int = -1
    said: set[str] = field(default_factory=set)
    lost_state_at: int | None = None
    written_at: int | None = None  # weights changed without the optimizer, and did not before
    written: float = 0.0  # times the usual step
    unmoved: deque[float] = field(default_factory=lambda: deque(maxlen=_DAYS))
    clips: deque[float] = field(default_factory=lambda: deque(maxlen=_DAYS))
    decays: float = 0.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_DAYS))
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=_DAYS))
    _first_steps: list[float] = field(default_factory=list)
    _before: Tensor | None = None
    _after: Tensor | None = None
    _pulled: Tensor | None = None
    _pending: Tensor | None = None
    _reached: dict[str, bool] = field(default_factory=dict)
    _count: float = 0.0
    _written_often: int = 0
    _pulls: bool = False
    _is_standing: bool = False
    _without: int = 0
    _peak: float = 0.0
    _sampled: list[Tensor] = field(default_factory=list)

    def begin(self, step: int) -> None:
        """Begin a step."""
        self.step, self._without = step, 0

    @torch.no_grad()
    def before_backward(self, number: int) -> Iterator[Finding]:
        """Look at the gradients before the backward pass of this number in the step."""
        is_time = self.step in (2, 3) or self.step % _DAYS == 0 < self.step
        if number == 0 and is_time and (held := self._left()):
            yield from self._once(
                "never zeroed",
                "script",
                f"the gradients of step {self.step - 1} are still there before the backward pass "
                f"of step {self.step} ({held}): gradients of all steps accumulate; call zero_grad",
            )
        if number and (number < 64 or number % 64 == 0):
            self._without += not self._left()
            if self._without >= _NO_PASS:
                yield from self._once(
                    "no step",
                    "optimizer",
                    f"{number} backward passes began with gradients of zero, and no optimizer took "
                    "a step: call optimizer.step() before zero_grad",
                    is_critical=True,
                )

    @torch.no_grad()
    def after_backward(
        self, *, limit: float | None, norm: float | None, loss: float | None, settled: bool
    ) -> Iterator[Finding]:
        """Look at a step whose backward passes are over.

        Args:
            limit: The largest norm to which the script clips; None without a clip.
            norm: The norm of the gradients.
            loss: What backward was called on.
            settled: Whether the rate no longer rises.
        """
        self._weigh()
        if self.written_at == self.step and self.written > _AT_ONCE:
            yield from self._once("written at once", "written", self.written_text)
        if limit is not None and norm:
            self.clips.append(min(1.0, limit / norm))
        groups = list(groups_of(*self.optimizers()))
        self.rates.append(max((group.rate for group in groups), default=0.0))
        decay = [abs(group.rate * (group.weight_decay or 0.0)) for group in groups]
        self.decays = max(decay, default=0.0)  # of a weight at each step
        yield from self._of_targets(loss)
        yield from self._of_settings(groups)
        if self.decays >= _DECAYS_FAST and settled:
            yield from self._once("decay", "decay", self.decay_text, value=self.decays)
        if self.step == _DAYS and any(self.rates):
            yield from self._resting(groups)
        if self.step in (*_EARLY, *_LATER):
            yield from self._reach()

    def _of_settings(self, groups: Sequence[Group]) -> Iterator[Finding]:
        rate, goal = self.rates[-1], max((one.initial or 0.0 for one in groups), default=0.0)
        end = self.step * goal / rate if rate else 0.0
        if self.step == _DAYS and end > _LONGEST and self.rates[0] < rate:
            text = f"at step {self.step} the learning rate is {short(rate, 2)}: at this pace its "
            text += f"warm-up takes {end:,.0f} steps; look at its schedule"
            yield from self._once("warm-up", "rate", text, value=end)
        self._peak = max(self._peak, self.rates[-1])
        if len(self.rates) == _DAYS and max(self.rates) <= _NO_RATE * self._peak:
            text = f"the learning rate was {short(max(self.rates), 2)} in each of {_DAYS} steps"
            if self._peak:
                text += f", and {short(self._peak, 2)} before: its schedule is over"
            yield from self._once("no rate", "rate", f"{text}; look at its schedule")
        if self.step == _DAYS and self.dropout >= _NEARLY_ALL:
            yield from self._once("dropped", "setting", self.dropout_text)

    @property
    def dropout(self) -> float:
        """The largest share that a module drops of what passes through it."""
        kind = nn.modules.dropout._DropoutNd
        return max((m.p for m in self.model.modules() if isinstance(m, kind)), default=0.0)

    @property
    def dropout_text(self) -> str:
        """What dropout does, in words."""
        return f"dropout takes {100 * self.dropout:.3g} % of what passes through it; lower it"

    @property
    def written_text(self) -> str:
        """When the weights were changed without the optimizer, in words."""
        return (
            f"before step {self.written_at} the weights were changed without the optimizer, by "
            f"{self.written:.3g} times its usual step; look for what writes to them"
        )

    @property
    def decay_text(self) -> str:
        """What weight decay does, in words."""
        return (
            f"weight decay takes {100 * self.decays:.3g} % off every weight at each step (rate "
            "times decay): lower it"
        )

    @torch.no_grad()
    def before_update(self) -> Iterator[Finding]:
        """Remember the weights and the gradients of a step."""
        self._before, self._pulled = self._sample(), self._sample(of_gradients=True) != 0
        if self.step < _DAYS:
            self._pulls |= bool(self._pulled.any())
        elif not self._pulls:
            text = f"in {_DAYS} steps all gradients were 0 when the optimizer stepped: look for a "
            text += "zero_grad between backward and step, or a loss that does not reach the weights"
            yield from self._once("no gradient", "script", text, is_critical=True)

    @torch.no_grad()
    def after_update(self) -> Iterator[Finding]:
        """Look at what a step moved."""
        before, self._after = self._before, self._sample()
        if before is not None and before.shape == self._after.shape:
            moved = self._after - before
            pulled = definite(self._pulled)  # entries that have a gradient
            same = ((moved == 0) & pulled).sum() / pulled.sum().clamp(min=1)
            parts = [moved.square().mean().sqrt(), same]
            self._pending = torch.stack(parts)
        if self.step == 1:
            yield from self._covered()
        count = self._counted()
        if count < self._count:
            self.lost_state_at = self.step
        self._count = count
        if self._written_often >= _OFTEN and not self._is_standing:
            text = (
                f"in each of {_OFTEN} steps up to {self.step} the weights were changed without the "
                f"optimizer, by {self.written:.3g} times its usual step; look for what writes them"
            )
            yield from self._once("written", "written", text, value=self.written)
        if len(self.unmoved) == _DAYS and min(self.unmoved) >= _STANDS and any(self.rates):
            is_wide = all(p.dtype == torch.float32 for p in self._sampled)
            if is_wide and min(self.unmoved) == 1.0:
                text = f"the weights do not move: in {_DAYS} steps no optimizer changed one of them"
                yield from self._once("unmoved", "optimizer", text, is_critical=True)
            else:
                yield from self._once("unmoved", "precision", self.unmoved_text)

    def accept(self) -> None:
        """Take the weights and the optimizers' state as they are: an intervention wrote them."""
        self._after, self._count = self._sample(), self._counted()

    @property
    def unmoved_text(self) -> str:
        """How many weights a step leaves as they were, in words."""
        share, rate = statistics.median(self.unmoved or [0.0]), max(self.rates, default=0.0)
        kinds = sorted({str(p.dtype).removeprefix("torch.") for p in self.model.parameters()})
        return (
            f"{100 * share:.3g} % of the weights are the same before and after a step: updates at "
            f"a rate of {short(rate, 2)} round away in {', '.join(kinds)}; keep the "
            "weights in float32"
        )

    @property
    def clip(self) -> float:
        """The share of a gradient that the clip leaves, in the median; 1 without a clip."""
        return statistics.median(self.clips) if self.clips else 1.0

    @property
    def length(self) -> float:
        """The root mean square of a step over the sampled weights, in the median; 0 if unknown."""
        return statistics.median(self._steps) if self._steps else 0.0

    @property
    def first_length(self) -> float:
        """The largest step of the first ones, as `length`."""
        return max(self._first_steps, default=0.0)

    def was_fresh_now(self) -> bool:
        """Tell whether no optimizer has a state yet; to be asked before the first step's end."""
        return not any(one.state for one in self.optimizers())

    # Parts

    def _once(self, name: str, cause: Cause, text: str, **more: Any) -> Iterator[Finding]:
        if name not in self.said:
            self.said.add(name)
            yield Finding(name=name, cause=cause, text=text, **more)

    def _of_targets(self, loss: float | None) -> Iterator[Finding]:
        seen = self.targets
        if seen.masked:
            text = "no target of the step counts: all are masked (the ignored index); look at how"
            yield from self._once(
                "masked", "labels", f"{text} labels are made", is_critical=self.step < 3
            )
        if seen.is_one and (seen.rows or 0) >= _MANY and seen.is_dense:
            text = (
                f"all {seen.rows} targets of the step are the same token; look at what feeds them"
            )
            yield from self._once("one token", "data", text)
        kinds, count = seen.kinds
        if kinds == 1 and count >= 4 * _MANY and self.step == _DAYS:
            text = (
                f"all {count} targets of {_DAYS} steps are the same class; look at what feeds them"
            )
            yield from self._once("one class", "data", text)
        if seen.is_twice and self.step < _FIRST:
            text = "cross-entropy takes logits, and these went through a softmax already: leave out"
            yield from self._once("softmax twice", "script", f"{text} the softmax of the model")
        own = seen.own
        if own is not None and loss is not None and own > 0.1 and abs(loss + own) < 0.05 * own:
            text = f"backward is called on minus the loss of the model ({loss:.4g}): mind the sign"
            yield from self._once("sign", "script", text, is_critical=True)
        if seen.repeats == _DAYS and seen.is_dense:
            text = f"the same batch came in each of {_DAYS} steps (by its targets)"
            yield from self._once("one batch", "data", text)
        if self.step != 3 or (reference := seen.reference) is None:
            return
        own, one, two = seen.ahead
        varies = reference.is_dense and (reference.entropy or 0) > 0.5
        if varies and two >= _TWICE > 2 * max(one, own):
            text = (
                f"{100 * two:.3g} % of the labels are the token two ahead: they are shifted twice "
                "(by the script and by the model); shift them once"
            )
            yield from self._once("shifted twice", "labels", text)
        if varies and own >= _COPIED:
            text = (
                f"{100 * own:.3g} % of the labels are the input at their own place: "
                "the model is asked for what it is given (a leak); shift them by one token"
            )
            yield from self._once("labels are inputs", "labels", text)
        top, share = seen.most
        if reference.is_dense and share >= _MOSTLY and reference.classes > 8:
            text = (
                f"{100 * share:.3g} % of the targets are token {top}; if it is padding, mask it in "
                "the labels"
            )
            yield from self._once("one target", "labels", text)

    def _resting(self, groups: Sequence[Group]) -> Iterator[Finding]:
        sizes = [
            (group.rate, sum(p.numel() for p in group.params if p.grad is not None))
            for group in groups
        ]
        share = sum(n for lr, n in sizes if lr == 0) / max(sum(n for _, n in sizes), 1)
        if share >= _RESTS:
            text = (
                f"the learning rate of {100 * share:.3g} % of the numbers that have a gradient is 0"
            )
            text += "; leave them out of the optimizer if they are to stay, or give them a rate"
            yield from self._once("resting", "rate", text, value=share)

    def _reach(self) -> Iterator[Finding]:
        """Look for matrices that no gradient reaches, and later for experts that get no token."""
        if self.step == _LATER[0]:
            self._reached.clear()
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        reached = {n for n, p in named if (g := _dense(p.grad)) is not None and _is_any(g)}
        for name, _ in named:
            self._reached[name] = self._reached.get(name, False) or name in reached
        if self.step not in (_EARLY[-1], _LATER[-1]) or not reached:
            return
        tables = {m.weight for m in self.model.modules() if isinstance(m, nn.Embedding)}
        matrices = {n: p for n, p in named if p.dim() > 1 and p not in tables}
        left = {n: p.numel() for n, p in matrices.items() if not self._reached[n]}
        share = sum(left.values()) / max(sum(p.numel() for p in matrices.values()), 1)
        experts = self._experts(set(left))
        if experts and self.step in _LATER:
            path, used, count = experts
            text = (
                f"all tokens go to {used} of the {count} experts in {path}: the others get no "
                "gradient; balance the router"
            )
            yield from self._once("experts", "router", text, module=path)
        elif share >= _UNREACHED and not experts:
            first = next(iter(left))
            text = (
                f"no gradient reaches {len(left)} of {len(matrices)} matrices, {100 * share:.3g} % "
                f"of their numbers (such as {first}): look for detach, no_grad and dead activations"
            )
            yield from self._once("unreached", "unreached", text, module=first, value=share)

    def _experts(self, left: set[str]) -> tuple[str, int, int] | None:
        for path, module in self.model.named_modules():
            if not isinstance(module, nn.ModuleList) or len(module) < 3:
                continue
            kinds = {tuple(p.shape for p in one.parameters()) for one in module}
            owner = self.model.get_submodule(path.rpartition(".")[0])
            outputs = [getattr(one, "out_features", 0) for one in owner.children()]
            if len(kinds) != 1 or len(module) not in outputs:
                continue
            names = [
                {f"{path}.{i}.{n}" for n, _ in one.named_parameters()}
                for i, one in enumerate(module)
            ]
            used = sum(any(self._reached.get(n) for n in of) for of in names)
            if used <= max(1, len(module) // 8) and any(of & left for of in names):
                return path, used, len(module)
        return None

    def _covered(self) -> Iterator[Finding]:
        held = {id(p): p for p in parameters_of(*self.optimizers())}
        own = {id(p) for p in self.model.parameters()}
        got = {
            n: p
            for n, p in self.model.named_parameters()
            if p.requires_grad and self._reached.get(n)
        }
        missed = {n: p for n, p in got.items() if id(p) not in held}
        share = sum(p.numel() for p in missed.values()) / max(
            sum(p.numel() for p in got.values()), 1
        )
        if not missed or share < _MISSED:
            return
        orphans = [p for i, p in held.items() if i not in own]
        shapes = {tuple(p.shape) for p in orphans}
        again = sum(tuple(p.shape) in shapes for p in missed.values())
        text = (
            f"the optimizer never got {len(missed)} of {len(got)} tensors that get a gradient, "
            f"{100 * share:.3g} % of their numbers (such as {next(iter(missed))})"
        )
        if again:
            text += (
                f"; it holds {len(orphans)} that the model lacks: modules were made again after it"
            )
        first = next(iter(missed))
        yield from self._once(
            "missed",
            "optimizer",
            f"{text}; make the optimizer of them too",
            module=first,
            value=share,
        )

    def _left(self) -> int:
        if not self._sampled:
            self._sample()
        grads = [_dense(p.grad) for p in self._sampled[:4]]
        return sum(grad is not None and bool(grad.any()) for grad in grads)

    def _counted(self) -> float:
        counts = [
            float(state["step"])
            for one in self.optimizers()
            for state in list(one.state.values())[:1]
            if "step" in state
        ]
        return max(counts, default=0.0)

    def _weigh(self) -> None:
        """Read what the last step moved, and what something else moved since."""
        now, after = self._sample(), self._after
        if self._pending is None or after is None or now.shape != after.shape:
            return
        other = (now - after).square().mean().sqrt()
        moved, same, rest = torch.cat([self._pending, other[None]]).tolist()
        self._pending = None
        self.unmoved.append(same)
        usual = statistics.median(self._steps) if self._steps else moved
        self._steps.append(moved)
        if self.step <= _DAYS:
            self._first_steps.append(moved)
        if rest > 0 and self.step <= 10:
            self._is_standing = True  # as a script that norms its weights each time
        if not rest > _REVERTS * usual > 0 or self._is_standing:
            self._written_often = 0
            return
        self._written_often += 1
        self.written = max(self.written, rest / usual)
        if self.written_at is None and rest > _WRITES * usual:
            self.written_at = self.step

    def _sample(self, *, of_gradients: bool = False) -> Tensor:
        if not self._sampled:
            trained: list[Tensor] = [
                p for p in self.model.parameters() if p.requires_grad and local(p).numel()
            ]
            every = -(-len(trained) // _TENSORS) or 1
            self._sampled = sorted(trained, key=lambda p: -p.dim())[:: max(every, 1)]
        parts = []
        for p in self._sampled:
            flat, grad = local(p), _dense(p.grad)
            if not flat.is_contiguous() or flat.is_complex():
                continue
            if of_gradients:
                # A copy of the gradient only where its layout is another.
                flat = torch.zeros_like(flat) if grad is None else grad.reshape(flat.shape)
            flat = flat.reshape(-1)
            parts.append(flat[:: -(-len(flat) // _ENTRIES)].float())
        return torch.cat(parts) if parts else torch.zeros(0)


def _dense(grad: Tensor | None) -> Tensor | None:
    """Return this rank's part of a gradient; None of one that is sparse or empty."""
    own = None if grad is None else local(grad)
    return own if own is not None and own.layout is torch.strided and own.numel() else None


def _is_any(grad: Tensor) -> bool:
    # A few numbers nearly always tell it.
    return bool(grad.reshape(-1)[:: -(-grad.numel() // _ENTRIES)].any()) or bool(grad.any())
