"""Compare ladders in pairs: how far a lever moves the edge and the best rate, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.fit.metrics import bootstrap
from rksp.lab.collection import trivial_loss
from rksp.lab.ladder import LadderRun
from rksp.lab.pairs import LadderPair
from rksp.outcome import OutcomePolicy

_THIRD = (
    0.35  # of a rate that fails: what `rksp confirm` trains beside it, on a grid of half decades
)
Bracket = tuple[float, float]  # log10 of the last rate that passes and of the first that fails


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverEffect:
    """What a lever did to one ladder; the other ladder has equal seed and, unless changed, batches.

    Attributes:
        model, lever, seed: The pair.
        edge: Shift of the edge in decades, each ladder judged beside its own best run; NaN if
            neither ladder failed, or if one of them did not learn.
        reach: The same, both judged beside the best run without the lever: a lever that loses much
            gains nothing here.
        is_bound: Whether one of the two ladders never failed, so that shifts are bounds.
        best: Shift of the best rate in decades.
        loss: Change of the best final loss in nats.
        loss_at_equal_rate: Median change of the final loss in nats over the rates at which the run
            without the lever does not fail.
        failing, saved: Rates, in both ladders, at which the run without the lever fails, and those
            of them at which the run with it ends within the margin of the best without it.
        restored: Nats by which, at the lowest rate above the best one at which the run without the
            lever fails, the run with it ends above the run without it at about a third of that
            rate; NaN if no rate fails or none is as low.
        cost: Processor seconds of a step, as a ratio.
        learned: Whether the ladder with the lever beats the task's trivial loss by the margin.
    """

    model: str
    lever: str
    seed: int
    edge: float
    reach: float
    is_bound: bool
    best: float
    loss: float
    loss_at_equal_rate: float
    failing: int
    saved: int
    restored: float
    cost: float
    learned: bool


def lever_effects(
    pairs: Iterable[LadderPair],
    ladders: Mapping[str, LadderRun],
    policy: OutcomePolicy | None = None,
) -> list[LeverEffect]:
    """Return the effect of every pair of which both ladders are there and the plain one learned.

    Args:
        pairs: Pairs of a plan.
        ladders: Trained ladders by id.
        policy: The policy that labels the runs.
    """
    policy = policy or OutcomePolicy()
    found = []
    for pair in pairs:
        plain, changed = ladders.get(pair.plain.id), ladders.get(pair.changed.id)
        if plain is not None and changed is not None and _learned(plain, policy):
            found.append(_effect(pair, plain, changed, policy))
    return found


def _effect(
    pair: LadderPair, plain: LadderRun, changed: LadderRun, policy: OutcomePolicy
) -> LeverEffect:
    before, after = _finals(plain, policy), _finals(changed, policy)
    best, learned = min(before.values()), _learned(changed, policy)
    own = _shift(_edge(before, best, policy), _edge(after, min(after.values()), policy))
    bar = _shift(_edge(before, best, policy), _edge(after, best, policy))
    both = [rate for rate in before if rate in after]
    good = [rate for rate in both if before[rate] <= best + policy.margin]
    rates = (min(after, key=after.__getitem__), min(before, key=before.__getitem__))
    change = [after[rate] - before[rate] for rate in good]
    return LeverEffect(
        model=pair.model,
        lever=pair.lever,
        seed=pair.plain.seed,
        edge=own if learned else math.nan,
        reach=bar,
        is_bound=learned
        and any(
            math.isinf(_edge(finals, min(finals.values()), policy)[1]) for finals in (before, after)
        ),
        best=math.log10(rates[0] / rates[1]) if learned else math.nan,
        loss=min(after.values()) - best,
        loss_at_equal_rate=float(np.median(change)) if change else math.nan,
        failing=len(both) - len(good),
        saved=sum(after[rate] <= best + policy.margin for rate in both if rate not in good),
        restored=_restored(before, after, best + policy.margin),
        cost=_step_seconds(changed) / _step_seconds(plain),
        learned=learned,
    )


def _restored(before: Mapping[float, float], after: Mapping[float, float], bar: float) -> float:
    top = min(before, key=before.__getitem__)
    failing = [rate for rate in sorted(after) if rate > top and before.get(rate, 0.0) > bar]
    lower = [rate for rate in before if failing and rate <= _THIRD * failing[0]]
    return after[failing[0]] - before[max(lower)] if lower else math.nan


def _finals(run: LadderRun, policy: OutcomePolicy) -> dict[float, float]:
    """Return the final losses by rate; a run that diverged ends at infinity."""
    return {
        rate: math.inf if policy.has_diverged(curves) else policy.final_loss(curves)
        for rate, curves in zip(run.rates, run.curves, strict=True)
    }


def _learned(run: LadderRun, policy: OutcomePolicy) -> bool:
    trivial, lowest = trivial_loss(run.spec), min(_finals(run, policy).values())
    return math.isfinite(lowest) and (trivial is None or lowest < trivial - policy.margin)


def _edge(finals: Mapping[float, float], bar: float, policy: OutcomePolicy) -> Bracket:
    """Return the edge: from the best run up, the first run that ends above `bar` by the margin.

    If the best run itself does, the edge lies below all rates.
    """
    rates = sorted(finals)
    best = min(rates, key=finals.__getitem__)
    if finals[best] > bar + policy.margin:
        return -math.inf, math.log10(rates[0])
    last = best
    for rate in rates[rates.index(best) :]:
        if finals[rate] > bar + policy.margin:
            return math.log10(last), math.log10(rate)
        last = rate
    return math.log10(last), math.inf


def _shift(before: Bracket, after: Bracket) -> float:
    """Return the shift of an edge; where one is open, the bound; where both are, NaN."""
    if math.isinf(before[1]) and math.isinf(after[1]):
        return math.nan
    return _middle(after) - _middle(before)


def _middle(bracket: Bracket) -> float:
    ends = [end for end in bracket if math.isfinite(end)]
    return sum(ends) / len(ends)


def _step_seconds(run: LadderRun) -> float:
    return sum(run.seconds) / sum(len(curves.loss) for curves in run.curves)


COLUMNS: tuple[tuple[str, str], ...] = (
    ("edge", "edge"),
    ("edge beside the best without it", "reach"),
    ("best rate", "best"),
    ("best loss", "loss"),
    ("loss at equal rate", "loss_at_equal_rate"),
    ("cost of a step", "cost"),
)


def lever_table(effects: Sequence[LeverEffect]) -> str:
    """Write the Markdown table of levers: medians over pairs with 95 % bootstrap intervals."""
    names = list(dict.fromkeys(effect.lever for effect in effects))
    header = ["lever", "models", "pairs", *(title for title, _ in COLUMNS), "saved", "bounds"]
    lines = [header, ["---"] * len(header)]
    for name in names:
        of = [effect for effect in effects if effect.lever == name]
        saved = f"{sum(e.saved for e in of)} of {sum(e.failing for e in of)}"
        stopped = sum(not e.learned for e in of)
        numbers = [median_with_interval([getattr(e, field) for e in of]) for _, field in COLUMNS]
        bounds = f"{sum(e.is_bound for e in of)}" + (
            f", {stopped} learn nothing" if stopped else ""
        )
        lines.append([name, str(len({e.model for e in of})), str(len(of)), *numbers, saved, bounds])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def model_table(effects: Sequence[LeverEffect]) -> str:
    """Write the Markdown table of the shift of the edge by lever and model, medians over seeds."""
    models = list(dict.fromkeys(effect.model for effect in effects))
    lines = [["lever", *models], ["---"] * (len(models) + 1)]
    for name in dict.fromkeys(effect.lever for effect in effects):
        cells = []
        for model in models:
            of = [e for e in effects if (e.lever, e.model) == (name, model)]
            shifts = [e.edge for e in of if math.isfinite(e.edge)]
            bound = "≥ " if any(e.is_bound for e in of) else ""
            empty = "–" if all(e.learned for e in of) else "learns nothing"
            cells.append(f"{bound}{np.median(shifts):+.2f}" if shifts else empty)
        lines.append([name, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def median_with_interval(values: Sequence[float]) -> str:
    """Return the median of the known values and its 95 % interval over pairs, as text.

    NaN is not known. Infinity counts: a lever that diverges must not look better for it.
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return "–"
    text = f"{np.median(known):+.2f}"
    if len(known) < 3:  # an interval of two values would only repeat them
        return text
    low, high = bootstrap(
        lambda rows: float(np.median(known[rows])), np.arange(len(known)), draws=1000
    )
    return f"{text} [{low:+.2f}, {high:+.2f}]"
