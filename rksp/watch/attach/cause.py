"""What broke: the cause of an alarm, told from a repetition of the step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rksp.documents.confirm import CauseReport
from rksp.watch.attach.audit import Defect, audited
from rksp.watch.attach.kept import Kept, Pass, Step, losses_of
from rksp.watch.groups import local

_LONE = 30.0  # times the second largest change: no optimizer moves one number of a tensor alone
_FEWEST = 16  # numbers of a tensor of which one can be alone
_OUTLIER = 8.0  # robust standard deviations of a batch's loss from those of its neighbors
_MATTERS = 0.05  # of the loss
_EARLY = 100  # steps in which a run that never warmed up is said to have lacked it


def diagnose(
    kept: Kept,
    called: nn.Module | None,
    *,
    scale: float,
    has_moved: bool,
    is_critical: bool,
    has_warmed_up: bool,
) -> CauseReport:
    """Return the cause of an alarm in the newest of the kept steps.

    What needs no repetition comes first: numbers that changed by themselves. Then the products of
    the repeated step are compared with exact ones, its loss with the script's, the losses of the
    newest batches with each other under the same, older weights, and these losses with those under
    the present weights.

    Args:
        kept: What is kept of the run.
        called: What the script calls, without wrappers; None where it cannot be repeated.
        scale: The loss scale of the backward passes.
        has_moved: Whether the weights have moved since the step's passes.
        is_critical: Whether the alarm is critical.
        has_warmed_up: Whether the rate rose at the start.
    """
    steps = [one for one in kept.steps if one.passes]
    number = kept.steps[-1].number
    found = _weight(number, kept) or _gradient(number, kept)
    if found is not None:
        return found
    if called is None or not steps:
        return _unknown(number, "the step cannot be repeated here")
    with kept.repeating():
        found = _by_products(number, steps[-1].passes[-1], kept.model, called, scale)
        if found is not None:
            return found
        older = quarter = present = losses_of(steps, called)
        if kept.earlier:
            with kept.between(0.0):
                older = losses_of(steps, called)
            with kept.between(0.25):
                quarter = losses_of(steps, called)
    if not has_moved and (found := _passing(number, steps[-1].loss, present[-1])):
        return found
    if found := _data(steps, older):
        return found
    before = older if kept.earlier else [one.loss or math.nan for one in steps]
    why = _too_far(before, present, quarter)
    exact = "products are exact and no batch stands out"
    if why is None and not is_critical:
        return _unknown(number, f"{exact}, and the weights are no worse")
    why = why or f"{exact}, which leaves the length of the steps"
    if not has_warmed_up and number < _EARLY:
        text = f"{why}; the rate was at its full value from the first step: warm it up"
        return CauseReport(step=number, cause="warm-up", text=text)
    return CauseReport(step=number, cause="rate", text=f"{why}; lower the learning rate")


def _unknown(step: int, why: str) -> CauseReport:
    return CauseReport(step=step, cause="unknown", text=f"no cause was found: {why}")


def _weight(step: int, kept: Kept) -> CauseReport | None:
    """Find a weight that moved alone, by more than the weights of its tensor are large."""
    for name, parameter in kept.parameters.items():
        now, before = local(parameter), kept.earlier.get(name)
        change = now if before is None else now - before.to(now)
        alone = _alone(change)
        if alone and (before is None or alone >= 3 * _size(before)):
            return CauseReport(
                step=step,
                cause="weight",
                module=name,
                text=f"one number of {name} changed, and the optimizer did not do it: a bit has "
                "flipped; go back to a state from before it, and test the device",
            )
    return None


def _gradient(step: int, kept: Kept) -> CauseReport | None:
    """Find a gradient of which one number is larger than all numbers of the model together."""
    grads = {n: local(p.grad) for n, p in kept.parameters.items() if p.grad is not None}
    sizes = {name: _size(grad) * math.sqrt(grad.numel()) for name, grad in grads.items()}
    for name, grad in grads.items():
        alone = _alone(grad)
        others = math.hypot(*(size for other, size in sizes.items() if other != name))
        if alone and not alone <= others:
            return CauseReport(
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


def _by_products(
    step: int, one: Pass, model: nn.Module, called: nn.Module, scale: float
) -> CauseReport | None:
    """Find the first module whose product is not what its factors give."""
    if not one.is_whole:
        return None

    def scaled(factor: float) -> Tensor | None:
        loss, output = one.run(called)
        if loss is None:  # any number shows whether the products are right
            return None if output is None else output.float().square().mean() / 2
        return loss * factor

    found = audited(model, lambda: scaled(scale))
    if not found or not found[0].overflows:
        return _wrong(step, found[0]) if found else None
    first = found[0]
    remedy = "in float32 it is finite; train in bfloat16"
    if first.what != "output" and scale > 1 and not audited(model, lambda: scaled(1.0)):
        remedy = f"at a loss scale of 1 instead of {scale:g} it is finite; lower the scale"
    text = f"the {first.what} of {first.module} exceeds what float16 holds; {remedy}"
    return CauseReport(step=step, cause="precision", module=first.module, text=text)


def _wrong(step: int, first: Defect) -> CauseReport:
    size = "is not finite" if math.isinf(first.error) else f"is off by {first.error:.2g} roundings"
    if first.what == "attention":
        what = f"attention in {first.module} {size}; use another kernel (eager or math attention)"
        return CauseReport(step=step, cause="attention", module=first.module, text=what)
    what = f"the {first.what} of {first.module} {size}, each time; replace the device"
    return CauseReport(step=step, cause="product", module=first.module, text=what)


def _passing(step: int, observed: float | None, repeated: float) -> CauseReport | None:
    """Tell whether the step's loss was bad, and is not when the step is repeated."""
    if observed is None or not math.isfinite(repeated):
        return None
    if math.isfinite(observed) and observed - repeated <= _MATTERS * (1 + abs(repeated)):
        return None
    what = f"the loss was {observed:.4g}, and {repeated:.4g} when the step was repeated"
    text = f"{what}: the step was computed wrongly once; drop it, and test the device"
    return CauseReport(step=step, cause="passing", text=text)


def _data(steps: Sequence[Step], losses: Sequence[float]) -> CauseReport | None:
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
    return CauseReport(step=steps[-1].number, cause="data", text=text)


def _too_far(
    before: Sequence[float], present: Sequence[float], quarter: Sequence[float]
) -> str | None:
    """Tell whether the optimizer's own steps made the weights worse, on the same batches.

    Args:
        before: Losses with older weights; NaN where one is unknown.
        present: Those with the present ones.
        quarter: Those with weights a quarter of the way between.
    """
    known = [i for i, loss in enumerate(before) if math.isfinite(loss)]
    if len(known) < 3:
        return None
    start, end, short = (
        statistics.median(math.inf if math.isnan(losses[i]) else losses[i] for i in known)
        for losses in (before, present, quarter)
    )
    if _rises(before, present, known) and end - start > _MATTERS / 2 * abs(start):
        way = f"; a quarter of their way gives {short:.4g}" if short < end else ""
        return (
            f"the last steps raised the loss of the same batches from {start:.4g} to {end:.4g}{way}"
        )
    if _rises(quarter, present, known) and end - short > _MATTERS / 2 * abs(end):
        way = f"a quarter of their way gives a loss of {short:.4g}, all of it {end:.4g}"
        return f"the last steps went too far: on the same batches {way}"
    return None


def _rises(low: Sequence[float], high: Sequence[float], known: Sequence[int]) -> bool:
    """Tell whether the loss of every known batch but one at most is higher, or no number."""
    return sum(not high[i] <= low[i] for i in known) >= max(len(known) - 1, 3)
