"""Compare ladders in pairs: how far a lever moves the edge and the best rate, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fit.metrics import bootstrap
from lab.ladders.collection import trivial_loss
from lab.ladders.ladder import LadderRun
from lab.ladders.pairs import LadderPair
from rksp.own_runs.outcome import OutcomePolicy

_THIRD = (
    0.35  # of a rate that fails: what `rksp confirm` trains beside it, on a grid of half decades
)
_HEARD = 0.5  # of what the losses at both ends say of where in between the edge lies


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where a ladder fails.

    Attributes:
        at: log10 of the rate; the nearest end of the ladder where the edge lies beyond it.
        is_open: No rate fails.
    """

    at: float
    is_open: bool = False


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
    pairs: Iterable[LadderPair], ladders: Mapping[str, LadderRun]
) -> list[LeverEffect]:
    """Return the effect of every pair of which both ladders are there and the plain one learned.

    Args:
        pairs: Pairs of a plan.
        ladders: Trained ladders by id.
    """
    policy = OutcomePolicy()
    found = []
    for pair in pairs:
        plain, changed = ladders.get(pair.plain.id), ladders.get(pair.changed.id)
        if plain is not None and changed is not None and _learned(plain, policy):
            found.append(_effect(pair, plain, changed, policy))
    return found


def _effect(
    pair: LadderPair, plain: LadderRun, changed: LadderRun, policy: OutcomePolicy
) -> LeverEffect:
    before, after = final_losses(plain, policy), final_losses(changed, policy)
    best, learned = min(before.values()), _learned(changed, policy)
    lost = float(plain.curves[0].loss[0])  # a run that diverged has lost all that it could learn
    edge = edge_of(before, best, policy.margin, lost)
    own_edge = edge_of(after, min(after.values()), policy.margin, lost)
    both = [rate for rate in before if rate in after]
    good = [rate for rate in both if before[rate] <= best + policy.margin]
    rates = (min(after, key=after.__getitem__), min(before, key=before.__getitem__))
    change = [after[rate] - before[rate] for rate in good]
    return LeverEffect(
        model=pair.model,
        lever=pair.lever,
        seed=pair.plain.seed,
        edge=_shift(edge, own_edge) if learned else math.nan,
        reach=_shift(edge, edge_of(after, best, policy.margin, lost)),
        is_bound=learned and (edge.is_open or own_edge.is_open),
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


def final_losses(run: LadderRun, policy: OutcomePolicy) -> dict[float, float]:
    """Return the final losses by rate; a run that diverged ends at infinity."""
    return {
        rate: math.inf if policy.has_diverged(curves) else policy.final_loss(curves)
        for rate, curves in zip(run.rates, run.curves, strict=True)
    }


def _learned(run: LadderRun, policy: OutcomePolicy) -> bool:
    lowest = min(final_losses(run, policy).values())
    return math.isfinite(lowest) and lowest < trivial_loss(run.spec) - policy.margin


def edge_of(finals: Mapping[float, float], bar: float, margin: float, lost: float) -> Edge:
    """Return the edge: from the best run up, where the final loss passes `bar` by the margin.

    Between the last rate that passes and the first that fails, it lies half as far from the middle
    as a straight line between their losses says. Over the 479 ladders of the collection whose
    edge was bisected from half a decade to an eighth, that misses the bisected edge by 0.11 decades
    (root mean square); the middle misses it by 0.14, and the line itself by 0.13. If the best run
    fails, the edge lies below all rates.

    Args:
        finals: Final losses by rate; infinite where a run diverged.
        bar: The loss that a run is judged beside.
        margin: Nats above it from which a run fails.
        lost: The loss that a run which diverged counts as, in nats.
    """
    rates, limit = sorted(finals), bar + margin
    best = min(rates, key=finals.__getitem__)
    if finals[best] > limit:
        return Edge(at=math.log10(rates[0]))
    last = best
    for rate in rates[rates.index(best) :]:
        if finals[rate] > limit:
            low, high = math.log10(last), math.log10(rate)
            rise = max(min(finals[rate], lost), limit) - finals[last]
            share = (limit - finals[last]) / rise if rise > 0 else 0.5
            return Edge(at=low + (0.5 + _HEARD * (share - 0.5)) * (high - low))
        last = rate
    return Edge(at=math.log10(last), is_open=True)


def _shift(before: Edge, after: Edge) -> float:
    """Return the shift of an edge; where one is open, the bound; where both are, NaN."""
    return math.nan if before.is_open and after.is_open else after.at - before.at


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
