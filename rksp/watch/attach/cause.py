"""What broke: the cause of an alarm, told from a repetition of the step."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rksp.watch.attach.audit import Defect, audited
from rksp.watch.attach.kept import Kept, Pass, Step, losses_of
from rksp.watch.groups import local

Cause = Literal[
    "rate", "warm-up", "precision", "attention", "data", "weight", "gradient", "product", "passing",
    "unknown",
]  # fmt: skip
_LONE = 30.0  # times the second largest change: no optimizer moves one number of a tensor alone
_FEWEST = 16  # numbers of a tensor of which one can be alone
_OUTLIER = 8.0  # robust standard deviations of a batch's loss from those of its neighbors
_MATTERS = 0.05  # of the loss
_EARLY = 100  # steps in which a run that never warmed up is said to have lacked it
_JUMP = 2.0  # of the rate, within the newest steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause of an alarm.

    Attributes:
        step: The step of the alarm.
        cause: `rate`, `warm-up` (the rate, from the first step at its full value), `precision` (a
            number beyond the range of its type), `attention` (fused attention is not what its
            inputs give), `data`, `weight` and `gradient` (one number changed by itself: a flipped
            bit), `product` (a matrix product is wrong each time), `passing` (the step was wrong
            once, and repeated is not) or `unknown`.
        module: Path of the first module, or of the parameter, that is bad; empty where it is none.
        text: What was found and what to do.
    """

    step: int
    cause: Cause
    module: str = ""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """What the session knows of the step whose cause is asked for.

    Attributes:
        model: What is trained.
        called: What the script calls, without wrappers; None where it calls parts.
        scale: The loss scale on the gradients of the passes.
        is_compiled: Whether the script compiles the model.
        is_whole: Whether this rank can run the model by itself.
        has_moved: Whether the weights have moved since the step's passes.
        was_warm: Whether the rate rose at the start.
        is_too_far: Whether a monitor alarmed because a step moved outputs too far.
        is_critical: Whether the alarm is critical.
    """

    model: nn.Module
    called: nn.Module | None
    scale: float
    is_compiled: bool
    is_whole: bool
    has_moved: bool
    was_warm: bool
    is_too_far: bool
    is_critical: bool


def diagnose(kept: Kept, suspect: Suspect) -> Diagnosis:
    """Return the cause of an alarm in the newest of the kept steps.

    What needs no repetition comes first: numbers that changed by themselves. Then the products of
    the repeated step are compared with exact ones, its loss with the script's, the losses of the
    newest batches with each other under the same, older weights, and these losses with those under
    the present weights.
    """
    with contextlib.closing(_causes(kept, suspect)) as causes:
        return next(filter(None, causes))


def _causes(kept: Kept, suspect: Suspect) -> Generator[Diagnosis | None, None, None]:
    step, copy = kept.steps[-1].number, kept.earlier
    yield _weight(step, kept, copy)
    yield _gradient(step, kept)
    called, steps = suspect.called, [one for one in kept.steps if one.passes]
    if called is None or not suspect.is_whole or not steps:
        yield _by_rate_alone(kept, suspect)
        yield _unknown(step, "the step cannot be repeated here")
        return
    with kept.repeating(suspect.is_compiled):
        yield _by_products(step, steps[-1].passes[-1], called, suspect)
        present = losses_of(steps, called)
        if not suspect.has_moved:
            yield _passing(step, steps[-1].loss, present[-1])
        older, quarter = present, present
        if copy:
            with kept.between(0.0):
                older = losses_of(steps, called)
            with kept.between(0.25):
                quarter = losses_of(steps, called)
    yield _data(step, steps, older)
    yield _by_losses(steps, suspect, present, older, quarter)
    yield _by_rate_alone(kept, suspect)
    exact = "products are exact and no batch stands out"
    if suspect.is_critical:
        yield _rate(step, suspect, f"{exact}, which leaves the length of the steps")
    yield _unknown(step, f"{exact}, and the weights are no worse")


def _unknown(step: int, why: str) -> Diagnosis:
    return Diagnosis(step=step, cause="unknown", text=f"no cause was found: {why}")


def _weight(step: int, kept: Kept, copy: Mapping[str, Tensor]) -> Diagnosis | None:
    """Find a weight that moved alone, by more than the weights of its tensor are large."""
    for name, parameter in kept.parameters.items():
        now, before = local(parameter), copy.get(name)
        change = now if before is None else now - before.to(now)
        alone = _alone(change)
        if alone and (before is None or alone >= 3 * _size(before)):
            return Diagnosis(
                step=step,
                cause="weight",
                module=name,
                text=f"one number of {name} changed, and the optimizer did not do it: a bit has "
                "flipped; go back to a state from before it, and test the device",
            )
    return None


def _gradient(step: int, kept: Kept) -> Diagnosis | None:
    """Find a gradient of which one number is larger than all numbers of the model together."""
    grads = {n: local(p.grad) for n, p in kept.parameters.items() if p.grad is not None}
    sizes = {name: _size(grad) * math.sqrt(grad.numel()) for name, grad in grads.items()}
    for name, grad in grads.items():
        alone = _alone(grad)
        others = math.hypot(*(size for other, size in sizes.items() if other != name))
        if alone and not alone <= others:
            return Diagnosis(
                step=step,
                cause="gradient",
                module=name,
                text=f"one number of the gradient of {name} is larger than all others together: a "
                "bit has flipped; drop this step, and test the device",
            )
    return None


def _alone(tensor: Tensor) -> float:
    """Return the size of the one number that is far larger than all others, or 0."""
    sizes = tensor.flatten().abs()
    if len(sizes) < _FEWEST or int((~sizes.isfinite()).sum()) > 1:
        return 0.0
    top, second = sizes.nan_to_num(nan=math.inf, posinf=math.inf).topk(2).values.tolist()
    return top if top >= _LONE * second > 0 else 0.0


def _size(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) / math.sqrt(tensor.numel())


def _by_products(step: int, one: Pass, called: nn.Module, suspect: Suspect) -> Diagnosis | None:
    """Find the first module whose product is not what its factors give."""
    if not one.is_whole:
        return None

    def passed(scale: float) -> Tensor | None:
        loss, output = one.run(called)
        if loss is None:  # any number shows whether the products are right
            return None if output is None else output.float().square().mean() / 2
        return loss * scale

    found = audited(suspect.model, lambda: passed(suspect.scale))
    if not found:
        return None
    first = found[0]
    if first.overflows:
        forward = first.what == "output"
        is_scale = (
            not forward and suspect.scale > 1 and not audited(suspect.model, lambda: passed(1.0))
        )
        if is_scale:
            remedy = (
                f"at a loss scale of 1 instead of {suspect.scale:g} it is finite; lower the scale"
            )
        else:
            remedy = "in float32 it is finite; train in bfloat16"
        what = f"the {first.what} of {first.module} exceeds what float16 holds; {remedy}"
        return Diagnosis(step=step, cause="precision", module=first.module, text=what)
    return _wrong(step, first)


def _wrong(step: int, first: Defect) -> Diagnosis:
    size = "is not finite" if math.isinf(first.error) else f"is off by {first.error:.2g} roundings"
    if first.what == "attention":
        what = f"attention in {first.module} {size}; use another kernel (eager or math attention)"
        return Diagnosis(step=step, cause="attention", module=first.module, text=what)
    what = f"the {first.what} of {first.module} {size}, each time; replace the device"
    return Diagnosis(step=step, cause="product", module=first.module, text=what)


def _passing(step: int, observed: float | None, repeated: float) -> Diagnosis | None:
    """Tell whether the step's loss was bad, and is not when the step is repeated."""
    if observed is None or not math.isfinite(repeated):
        return None
    if math.isfinite(observed) and observed - repeated <= _MATTERS * (1 + abs(repeated)):
        return None
    what = f"the loss was {observed:.4g}, and {repeated:.4g} when the step was repeated"
    text = f"{what}: the step was computed wrongly once; drop it, and test the device"
    return Diagnosis(step=step, cause="passing", text=text)


def _data(step: int, steps: Sequence[Step], losses: Sequence[float]) -> Diagnosis | None:
    """Find batches whose loss, under the same weights, is unlike that of their neighbors."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if len(known) < 5 or len(known) < len(losses) / 2:
        return None
    middle = statistics.median(known)
    spread = 1.4826 * statistics.median(abs(loss - middle) for loss in known)
    bar = max(_OUTLIER * spread, _MATTERS * abs(middle))
    bad = [
        (one.number, loss)
        for one, loss in zip(steps, losses, strict=True)
        if not abs(loss - middle) <= bar
    ]
    if not bad:
        return None
    number, loss = bad[0]
    text = (
        f"under the same weights the batch of step {number} has a loss of {loss:.4g}, its "
        f"neighbors {middle:.4g}; look at that batch, or skip it"
    )
    return Diagnosis(step=step, cause="data", text=text)


def _by_losses(
    steps: Sequence[Step],
    suspect: Suspect,
    present: Sequence[float],
    older: Sequence[float],
    quarter: Sequence[float],
) -> Diagnosis | None:
    """Tell whether the optimizer's own steps made the weights worse, on the same batches."""
    before = older if older is not present else [one.loss or math.nan for one in steps]
    known = [i for i, loss in enumerate(before) if math.isfinite(loss)]
    if len(known) < 3:
        return None
    start, end, short = (
        statistics.median(math.inf if math.isnan(losses[i]) else losses[i] for i in known)
        for losses in (before, present, quarter)
    )
    number = steps[-1].number
    if _rises(before, present, known) and end - start > _MATTERS / 2 * abs(start):
        text = f"the last steps raised the loss of the same batches from {start:.4g} to {end:.4g}"
        text += f"; a quarter of their way gives {short:.4g}" if short < end else ""
        return _rate(number, suspect, text)
    if _rises(quarter, present, known) and end - short > _MATTERS / 2 * abs(end):
        text = "the last steps went too far: on the same batches a quarter of their way gives"
        return _rate(number, suspect, f"{text} a loss of {short:.4g}, all of it {end:.4g}")
    return None


def _rises(low: Sequence[float], high: Sequence[float], known: Sequence[int]) -> bool:
    """Tell whether the loss of every known batch but one at most is higher, or no number."""
    return sum(not high[i] <= low[i] for i in known) >= max(len(known) - 1, 3)


def _by_rate_alone(kept: Kept, suspect: Suspect) -> Diagnosis | None:
    """Tell whether the rate has just jumped, or outputs move too far in a step."""
    rates = [one.rate for one in kept.steps]
    jump = rates[-1] / min(rates) if min(rates) > 0 else 1.0
    number = kept.steps[-1].number
    if suspect.is_too_far:
        return _rate(number, suspect, "single steps move outputs by as much as they are large")
    if jump >= _JUMP and number >= _EARLY / 5:
        return _rate(number, suspect, f"the learning rate rose {jump:.3g}-fold")
    return None


def _rate(step: int, suspect: Suspect, found: str) -> Diagnosis:
    if not suspect.was_warm and step < _EARLY:
        text = f"{found}; the rate was at its full value from the first step: warm it up"
        return Diagnosis(step=step, cause="warm-up", text=text)
    return Diagnosis(step=step, cause="rate", text=f"{found}; lower the learning rate")
