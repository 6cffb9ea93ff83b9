"""What broke: the cause of an alarm, from what is known of the run and from a repetition."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.documents.confirm import Cause, CauseReport
from rksp.recipe.optimizers.groups import groups_of
from rksp.watch.attach.arithmetic import Operation, first_bad
from rksp.watch.attach.audit import Defect, audited
from rksp.watch.attach.checks import Checks
from rksp.watch.attach.kept import Kept, Pass, Step, losses_of
from rksp.watch.attach.settings import Change, Settings
from rksp.watch.attach.targets import Targets
from rksp.watch.attach.trial import STEPS, tried
from rksp.watch.expected import UNBEGUN, UNTOLD
from rksp.watch.groups import local

_LONE = 30.0  # times the second largest change: no optimizer moves one number of a tensor alone
_FEWEST = 16  # numbers of a tensor of which one can be alone
_OUTLIER = 8.0  # robust standard deviations of a batch's loss from those of its neighbors
_MATTERS = 0.05  # of the loss
_EARLY = 100  # steps in which a run that never warmed up is said to have lacked it
_RECENT = 20  # steps that a usual ratio is of: that with label smoothing drifts
_FACTOR = 1.4  # by which the script's loss changes against the model's, and no term that it adds
_STARVED = 0.5  # of the entries of an optimizer whose epsilon swallows them
_UNMOVED, _CLIPPED, _DECAYS = 0.5, 0.01, 0.01
_DROPS = 0.6  # of what passes; papers use 0.5 at most
_SHORTER = {"a quarter": 1 / 4, "1/16": 1 / 16, "1/64": 1 / 64}
_LONGER = tuple(8.0**power for power in range(1, 7))
_SECONDS = 60.0  # for all trials at an alarm
_SLOW = UNBEGUN | {"behind"}
_TOO_LONG = frozenset({"worse_than_nothing", "attention_max_logit", "loss_excess", "behind"})
# The word for a change of a setting after which the loss is worse, where it is not just `setting`.
_CHANGED: dict[str, Cause] = {
    "learning rate": "rate",
    "weight decay": "decay",
    "types of weights": "precision",
}
_OF_STEPS = ("passes", "clip")  # which harm none by themselves


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What is known of a run by the time of an alarm.

    Attributes:
        kept: What is kept of it.
        called: What the script calls, without wrappers; None where it cannot be repeated.
        optimizers: Those of the model.
        checks, settings, targets: As they follow the run.
        words: Names of the alarms (`not_begun`, `loss`).
        loss: What backward was called on in this step; None if unknown.
        ratios: That over the model's own loss, of earlier steps.
        scale: The loss scale of the backward passes.
        has_moved: Whether the weights have moved since the step's passes.
        has_warmed_up: Whether the rate rose at the start, or the run goes on with another.
        is_faithful: Whether a repeated step once gave the loss that the script had.
        has_loaded: Whether the script loaded weights or a state.
        before: Why this run may not continue the one before it; empty if it does not go on.
        starved: The share of second moments that ε swallows; None where there are none.
        has_learned: Whether the loss was once well below what it is.
    """

    kept: Kept
    called: nn.Module | None
    optimizers: Sequence[Optimizer]
    checks: Checks
    settings: Settings
    targets: Targets
    words: frozenset[str] = frozenset()
    loss: float | None = None
    ratios: Sequence[float] = ()
    scale: float = 1.0
    has_moved: bool = False
    has_warmed_up: bool = True
    is_faithful: bool = False
    has_loaded: bool = False
    before: str = ""
    starved: float | None = None
    has_learned: bool = False
    ruled_out: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The newest step."""
        return self.kept.steps[-1].number

    def report(self, cause: Cause, text: str, module: str = "") -> CauseReport:
        """Return a cause of the newest step."""
        return CauseReport(step=self.step, cause=cause, module=module, text=text)


def diagnose(of: Evidence) -> CauseReport:
    """Return the cause of an alarm in the newest of the kept steps.

    A number that is not finite is traced first: to a weight, to the script's arithmetic, to an
    operation. Then comes what is known without a repetition, then numbers that changed by
    themselves, products of the repeated step, batches, and the length of the steps. A cause is
    named by a number alone; what was ruled out is said where none is found.
    """
    for look in (
        _not_finite,
        _script,
        _resumed,
        _start,
        _changed,
        _weight,
        _gradient,
        _repeated,
        _slow,
        _lengths,
    ):
        found = look(of)
        if found is not None:
            return found
    ruled = ", ".join(of.ruled_out) or "the step cannot be repeated here"
    return of.report("unknown", f"no cause was found: {ruled}")


def _not_finite(of: Evidence) -> CauseReport | None:
    is_bad = of.loss is not None and not math.isfinite(of.loss)
    if not is_bad and not any("finite" in word or "overflow" in word for word in of.words):
        return None
    if of.targets.masked:
        return of.report("labels", "no target of the step counts: all are masked")
    if (found := _bad_weight(of)) is not None:
        return found
    own, steps = of.targets.own, [one for one in of.kept.steps if one.passes]
    if is_bad and own is not None and math.isfinite(own):
        text = (
            f"the loss of the model is {own:.4g}, and what backward was called on is {of.loss}: "
            "look at what the script does to the loss"
        )
        return of.report("script", text)
    if not steps or not (last := steps[-1].passes[-1]).is_whole:
        return None
    if where := last.not_a_number:
        return of.report("data", f"the model is given NaN ({where}): look at what feeds it")
    if (called := of.called) is None:
        return None
    with of.kept.repeating():
        bad = first_bad(of.kept.model, lambda: _scaled(last, called, of.scale))
    return None if bad is None else _of_operation(of, bad)


def _scaled(one: Pass, called: nn.Module, factor: float) -> Tensor | None:
    loss, output = one.run(called)
    if loss is None:  # any number shows whether the products are right
        return None if output is None else output.float().square().mean() / 2
    return loss * factor


def _of_operation(of: Evidence, bad: Operation) -> CauseReport | None:
    where = f" in {bad.module}" if bad.module else ""
    kind = str(bad.kind).removeprefix("torch.")
    limit = torch.finfo(bad.kind).max
    if bad.kind == torch.float16:
        if bad.is_cast:
            text = (
                f"a cast to {kind}{where} exceeds what it holds ({bad.largest:.3g} > {limit:.3g})"
            )
        else:
            text = f"{bad.name}{where} exceeds what {kind} holds ({limit:.3g})"
            if of.scale > 1 and bad.module == "":
                text += f" at a loss scale of {of.scale:g}; lower the scale"
        return of.report("precision", f"{text}; compute it in float32 or bfloat16", bad.module)
    if bad.largest > math.sqrt(limit):
        return None  # it is large because of what came before
    text = (
        f"{bad.name}{where} returns {'nan' if bad.is_nan else 'inf'} in {kind}, and is given "
        f"finite numbers of at most {bad.largest:.3g}: look at its arguments (0 / 0, log of 0, "
        "a root of 0)"
    )
    return of.report("script", text, bad.module)


def _bad_weight(of: Evidence) -> CauseReport | None:
    states = {p: state for one in of.optimizers for p, state in one.state.items()}
    own_eps = {p: group.eps for group in groups_of(*of.optimizers) for p in group.params}
    bad = [(n, p) for n, p in of.kept.parameters.items() if not bool(local(p).isfinite().all())]
    if not bad:
        return None
    name, p = bad[0]
    count = int((~local(p).isfinite()).sum())
    eps = own_eps.get(p) or 0.0
    if p.dtype == torch.float16 and 0 < eps < torch.finfo(torch.float16).smallest_normal / 2**10:
        text = (
            f"{name} is not finite: the optimizer's ε {eps:g} is 0 in float16, so that it divides "
            "0 by 0; keep the weights in float32"
        )
        return of.report("precision", text, name)
    state = [
        v for v in states.get(p, {}).values() if isinstance(v, Tensor) and v.is_floating_point()
    ]
    is_alone = bool(state) and all(bool(local(one).isfinite().all()) for one in state)
    if is_alone and len(bad) == 1:
        text = (
            f"{count} numbers of {name} are not finite, and the optimizer's state of them is: "
            "something other than the optimizer wrote them; go back to a state from before"
        )
        return of.report("weight", text, name)
    if of.step and (change := _newest(of)) is not None:
        text = f"{change}, and the weights are not finite since; go back to a state from before"
        return of.report(_CHANGED.get(change.name, "setting"), text)
    text = f"no cause was found: the update before this step left {name} not finite"
    return of.report("unknown", text, name)


def _script(of: Evidence) -> CauseReport | None:
    own, loss = of.targets.own, of.loss
    if not own or loss is None or not math.isfinite(loss / own) or len(of.ratios) < 3:
        return None
    usual, now = statistics.median(list(of.ratios)[-_RECENT:]), loss / own
    if not usual or (1 / _FACTOR < now / usual < _FACTOR):
        return None
    changed = [one for one in of.settings.recent(of.step) if one.name in ("passes", "targets")]
    passes = next((one for one in changed if one.name == "passes"), None)
    text = (
        f"what backward was called on is {loss:.4g}, and the loss of the model {own:.4g}: their "
        f"ratio was {usual:.3g} and is {now:.3g}"
    )
    if passes is not None:
        return of.report("script", f"{text}, with {passes}: divide by the number of passes")
    return of.report("script", f"{text}; look at what the script does to the loss")


def _resumed(of: Evidence) -> CauseReport | None:
    if not of.before or of.step >= _EARLY:
        return None
    causes: dict[str, Cause] = {"the learning rate": "rate", "its data": "data"}
    found = (cause for start, cause in causes.items() if of.before.startswith(start))
    return of.report(next(found, "state"), of.before)


def _start(of: Evidence) -> CauseReport | None:
    if "start_high" not in of.words:
        return None
    if of.has_loaded or not of.checks.was_fresh_now():
        text = "weights or a state were loaded, and they do not fit these data"
        return of.report("state", f"{text}: was the right checkpoint loaded?")
    tables = {m.weight for m in of.kept.model.modules() if isinstance(m, nn.Embedding)}
    sizes = {
        n: float(local(p).float().std()) * (1 if p in tables else math.sqrt(p[0].numel()))
        for n, p in of.kept.parameters.items()
        if p.dim() > 1 and p.numel() > _FEWEST
    }
    if not sizes:
        return None
    name = max(sizes, key=sizes.__getitem__)
    std = float(local(of.kept.parameters[name]).float().std())
    text = (
        f"the first loss is far above that of a model that knows nothing; look at the "
        f"initialization (or the scale of the inputs): {name} has a standard deviation of "
        f"{std:.3g}; 0.02 or 1/√inputs is usual"
    )
    return of.report("initialization", text, name)


def _newest(of: Evidence) -> Change | None:
    changes = [one for one in of.settings.recent(of.step) if _worsens(one)]
    return min(changes, key=lambda one: one.name not in _CHANGED, default=None)


def _worsens(one: Change) -> bool:
    harms_above = ("learning rate", "weight decay", "dropout")
    return one.name not in _OF_STEPS and (one.name not in harms_above or one.rises)


def _changed(of: Evidence) -> CauseReport | None:
    checks, step = of.checks, of.step
    if checks.written_at is not None and step - checks.written_at <= _EARLY:
        return of.report("written", checks.written_text)
    if checks.lost_state_at is not None and step - checks.lost_state_at <= _EARLY:
        text = (
            f"the optimizer lost its state at step {checks.lost_state_at} (made anew, or not "
            "loaded); keep it, or warm up again"
        )
        return of.report("state", text)
    change = _newest(of)
    if change is None:
        return None
    text = f"{change}"
    if change.name == "learning rate":
        text += _shorter(of)
    cause = _CHANGED.get(change.name, "setting")
    return of.report(cause, f"{text}; go back to a state from before it, and undo it")


def _shorter(of: Evidence) -> str:
    """Say what a quarter of the last steps would give, where it can be told."""
    steps = [one for one in of.kept.steps if one.passes]
    if of.called is None or not steps or not of.kept.earlier:
        return ""
    with of.kept.repeating():
        losses = [_losses_at(of, share, steps, of.called) for share in (1, 0.25)]
    pair = [(a, b) for a, b in zip(*losses, strict=True) if math.isfinite(b)]
    if not pair:
        return ""
    now, short = (statistics.median(side) for side in zip(*pair, strict=True))
    return (
        f": a quarter of the last steps gives {short:.4g} instead of {now:.4g}"
        if short < now
        else ""
    )


def _losses_at(of: Evidence, share: float, steps: Sequence[Step], called: nn.Module) -> list[float]:
    """Return the losses of steps with weights this share of the way from older ones to now."""
    if share == 1 or not of.kept.earlier:
        return losses_of(steps, called)
    with of.kept.between(share):
        return losses_of(steps, called)


def _repeated(of: Evidence) -> CauseReport | None:
    steps = [one for one in of.kept.steps if one.passes]
    called, number = of.called, of.step
    if called is None or not steps:
        of.ruled_out.append("the step cannot be repeated here")
        return None
    with of.kept.repeating():
        if found := _by_products(of, steps[-1].passes[-1], called):
            return found
        older, quarter, present = (_losses_at(of, share, steps, called) for share in (0, 0.25, 1))
        if not of.has_moved and (found := _passing(of, steps[-1], called, present[-1])):
            return found
    if found := _data(steps, older):
        return found
    of.ruled_out += ["products are exact", "no batch stands out"]
    before = older if of.kept.earlier else [one.loss or math.nan for one in steps]
    why = _too_far(before, present, quarter)
    if why is None:
        of.ruled_out.append("a shorter step is no better")
        return None
    if not of.has_warmed_up and number < _EARLY:
        text = f"{why}; the rate was at its full value from the first step: warm it up"
        return of.report("warm-up", text)
    return of.report("rate", f"{why}; lower the learning rate")


def _slow(of: Evidence) -> CauseReport | None:
    if not of.words & (_SLOW | {"above_best", "starved_share"}):
        return None
    checks, told, starved = of.checks, of.targets.information, of.starved
    unmoved = statistics.median(checks.unmoved or [0.0])
    is_starved = starved is not None and starved >= _STARVED
    rows: tuple[tuple[bool, Cause, str], ...] = (
        (
            told is not None and told < UNTOLD,
            "labels",
            f"a token tells {max(told or 0.0, 0.0):.2g} nats of its label: the labels have nothing "
            "to do with the inputs; look at how both are paired",
        ),
        (_UNMOVED <= unmoved < 1 and any(checks.rates), "precision", checks.unmoved_text),
        (
            checks.clip <= _CLIPPED and (starved is None or is_starved),
            "clip",
            f"the clip leaves {100 * checks.clip:.2g} % of the gradients in the median step, so "
            "that steps are that much shorter; raise it, or mind the scale of the loss",
        ),
        (
            is_starved,
            "precision",
            f"the optimizer's ε is above {100 * (starved or 0):.3g} % of its second moments; "
            "lower ε",
        ),
        (checks.decays >= _DECAYS, "decay", checks.decay_text),
        (checks.dropout >= _DROPS, "setting", checks.dropout_text),
    )
    return next((of.report(cause, text) for holds, cause, text in rows if holds), None)


def _lengths(of: Evidence) -> CauseReport | None:
    first, last = of.checks.first_length, of.checks.length
    if of.called is None or of.has_learned or not of.words & (UNBEGUN | _TOO_LONG):
        return None
    trial = partial(tried, of.kept, of.called, until=time.monotonic() + _SECONDS)
    for name, factor in _SHORTER.items():
        if found := trial(first * factor, is_new=True):
            text = (
                f"{STEPS} steps of {name} of the length of the run's first ones, from its first "
                f"weights on, reach a loss of {found[1]:.4g}, and the run is at {found[0]:.4g}; "
                "lower the learning rate"
            )
            return of.report("rate", text)
    for factor in _LONGER if of.words & UNBEGUN else ():
        if found := trial(last * factor):
            text = (
                f"{STEPS} steps of {factor:g} times the length bring the loss of other batches "
                f"from {found[0]:.4g} to {found[1]:.4g}; raise the learning rate"
            )
            return of.report("rate", text)
    of.ruled_out.append("neither a shorter nor a longer step learns")
    return None


def _weight(of: Evidence) -> CauseReport | None:
    """Find a weight that moved alone, by more than the weights of its tensor are large."""
    for name, parameter in of.kept.parameters.items():
        now, before = local(parameter), of.kept.earlier.get(name)
        change = now if before is None else now - before.to(now)
        alone = _alone(change)
        if alone and (before is None or alone >= 3 * _size(before)):
            text = (
                f"one number of {name} changed, and the optimizer did not do it: a bit has "
                "flipped; go back to a state from before it, and test the device"
            )
            return of.report("weight", text, name)
    return None


def _gradient(of: Evidence) -> CauseReport | None:
    grads = {n: local(p.grad) for n, p in of.kept.parameters.items() if p.grad is not None}
    sizes = {name: _size(grad) * math.sqrt(grad.numel()) for name, grad in grads.items()}
    for name, grad in grads.items():
        alone = _alone(grad)
        others = math.hypot(*(size for other, size in sizes.items() if other != name))
        if alone and not alone <= others:
            text = (
                f"one number of the gradient of {name} is larger than all others together: a "
                "bit has flipped; drop this step, and test the device"
            )
            return of.report("gradient", text, name)
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


def _by_products(of: Evidence, one: Pass, called: nn.Module) -> CauseReport | None:
    if not one.is_whole:
        return None
    audit = partial(audited, of.kept.model, partial(_scaled, one, called, of.scale))
    found = audit()
    if not found or not (again := audit()):
        return None
    is_same = (again[0].module, again[0].what) == (found[0].module, found[0].what)
    return _wrong(of, found[0]) if is_same else None


def _wrong(of: Evidence, first: Defect) -> CauseReport:
    if (changed := _changed_by_script(of.kept.model, first.module)) is not None:
        text = f"the {first.what} of {first.module} is not what its factors give: {changed}"
        return of.report("script", text, first.module)
    size = "is not finite" if math.isinf(first.error) else f"is off by {first.error:.2g} roundings"
    if first.what == "attention":
        what = f"attention in {first.module} {size}; use another kernel (eager or math attention)"
        return of.report("attention", what, first.module)
    what = f"the {first.what} of {first.module} {size}, each time; replace the device"
    return of.report("product", what, first.module)


def _changed_by_script(model: nn.Module, path: str) -> str | None:
    module = model.get_submodule(path)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    hooks += (*module._backward_hooks.values(), *module._backward_pre_hooks.values())
    names = [str(getattr(getattr(hook, "func", hook), "__module__", "")) for hook in hooks]
    if any(not name.startswith("rksp.") for name in names):
        return "a hook of the script changes it"
    if "forward" in vars(module):
        return "the script replaced its forward"
    return None


def _passing(of: Evidence, last: Step, called: nn.Module, repeated: float) -> CauseReport | None:
    """Tell whether the step's loss was bad, and is not when the step is repeated, twice."""
    if not math.isfinite(repeated) or not of.is_faithful:
        return None
    for observed in (last.loss, of.targets.own):
        if observed is None:
            continue
        if math.isfinite(observed) and observed - repeated <= _MATTERS * (1 + abs(repeated)):
            return None
    if last.loss is None or losses_of([last], called)[-1] != repeated:
        return None
    what = f"the loss was {last.loss:.4g}, and {repeated:.4g} both times the step was repeated"
    text = f"{what}: the step was computed wrongly once; drop it, and mind whether it comes again"
    return CauseReport(step=of.step, cause="passing", text=text)


def _data(steps: Sequence[Step], losses: Sequence[float]) -> CauseReport | None:
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
        and (math.isfinite(loss) or not math.isfinite(one.loss or 0.0))  # NaN may be unknown
    ]
    if not bad:
        return None
    number, loss = bad[0]
    since = [one.number for one in steps if one.number >= number]
    if len(bad) > 2 and len(bad) == len(since):
        which, what = f"all batches since step {number} have", "look at what feeds them"
    else:
        which, what = f"the batch of step {number} has", "look at that batch, or skip it"
    text = (
        f"under the same weights {which} a loss of {loss:.4g}, its neighbors {middle:.4g}; {what}"
    )
    return CauseReport(step=steps[-1].number, cause="data", text=text)


def _too_far(
    before: Sequence[float], present: Sequence[float], quarter: Sequence[float]
) -> str | None:
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
    return sum(not high[i] <= low[i] for i in known) >= max(len(known) - 1, 3)
