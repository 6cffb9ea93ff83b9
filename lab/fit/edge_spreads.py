"""Measure the errors of the model of the edge on whole sources that it did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from lab.fit.censored import log_chance
from lab.fit.edge_ladder import BOUNDS, FAILED, LAB, PUBLISHED, EdgeLadder
from lab.fit.lapses import Said, lapse_of, power_of, said_of, sharpness_of
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.lines import Amount
from rksp.classifiers.rates import Lapse, Spread
from rksp.ground.model import definite

_SURE = 1e-3  # a run that fails, or passes, with a chance below it has lapsed
_DECIMALS = 5
BEST_HALF = 0.15  # decades on either side of the best rate of a ladder, half a step of most
_BLOCK = 3.0  # sources that those count as which share a design, such as the teams of a course
_COUNTED = 10.0  # ladders that a source counts as at most: it shows its own noise, not all noise
# Decades between teams that mask text, in long runs. The lab's tasks say 0.29, these and the three
# public teams with a failure 0.36, those teams alone 0.98. Of 0.40, 0.45 and 0.5: *do not exceed*
# lies below every rate at which an encoder failed, and 3 of 95 healthy recipes are warned.
_MASKED = 0.45
# Optimizers that are no kin of Adam and stand in the lab and in a public source.
_ELSEWHERE = ("muon", "lion")
# The grids of the posterior, in decades, and the scale of the prior of the spread between sources,
# a half-Cauchy distribution (Gelman, 2006): with few sources a flat one would not be proper.
_WITHIN = np.geomspace(0.03, 1.5, 28)
_BETWEEN = np.geomspace(0.01, 2.0, 45)
_OFFSETS = np.arange(-4.0, 4.0001, 0.02)
_PRIOR_SCALE = 0.3
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(7)

Left = Literal["source", "family", "task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The ladders of one source, family or task, and a model that saw nothing of them."""

    left: Left
    name: str
    seen: EdgeModel
    ladders: Sequence[EdgeLadder]


def with_spreads(model: EdgeModel, held_out: Sequence[HeldOut]) -> EdgeModel:
    """Measure the spreads on what was left out.

    Short runs have the spread of the lab's tasks, long ones that of the public sources. An unknown
    family adds the spread between families of the lab, whose tasks are known, and another objective
    than the next token that between its tasks, or a stated one where text is masked. An optimizer
    that is no kin of Adam adds the part of its spread between sources that goes beyond that of the
    others.
    Lapses and the sharpness are found with these spreads.

    Args:
        model: Fitted on all ladders.
        held_out: What `edge_fit.held_out` gives.
    """
    edge, best, divergence = _misses(held_out)
    begins = model.divergence
    short, long, unlike = model.short, model.long, {}
    if edge["task"]:
        short = replace(short, edge=posterior(edge["task"]), best=posterior(best["task"]))
        begins = replace(begins, short=posterior(divergence["task"]))
        middle = len(_NODES) // 2
        unlike["task"] = Amount(edge=short.edge.between[middle], best=short.best.between[middle])
        unlike["masked"] = replace(unlike["task"], edge=max(unlike["task"].edge, _MASKED))
        unlike["family"] = Amount(
            edge=posterior(edge["family"]).between[middle],
            best=posterior(best["family"]).between[middle],
        )
    if edge["source"]:
        long = replace(long, edge=posterior(edge["source"]), best=posterior(best["source"]))
        begins = replace(begins, long=posterior(divergence["source"]))
        if edge["optimizer"]:
            unlike["optimizer"] = Amount(
                edge=_beyond(edge["optimizer"], long.edge),
                best=_beyond(best["optimizer"], long.best),
            )
    kinds = replace(model.kinds, unlike=unlike)
    model = replace(
        model, short=short, long=long, divergence=begins, weights=node_weights(), kinds=kinds
    )
    model = replace(model, lapse=_lapse(model, held_out))
    model = replace(model, sharpness=_sharpness(model, held_out))
    return replace(model, divergence=replace(begins, power=_power(model, held_out)))


def _misses(held_out: Sequence[HeldOut]) -> tuple[dict[str, list[Miss]], ...]:
    """Return the errors of the edges, the best rates and of divergence by what was left out."""
    kinds = ("source", "family", "task", "optimizer")
    edge, best, divergence = ({name: list[Miss]() for name in kinds} for _ in range(3))
    shares = _shares(held_out)
    for part in held_out:
        # Rates that all trained show no error below, of which *do not exceed* is a quantile.
        told = [x for x in part.ladders if x.best is not None or x.changed == FAILED]
        for x in told:
            kind, name, mine = _kind(part.left, part.name, x), part.name, told
            if kind is None:
                continue
            if kind == "optimizer":
                name = f"{name} {x.inputs.optimizer}"
                mine = [y for y in told if y.inputs.optimizer == x.inputs.optimizer]
            read, reached = part.seen.predict(x.inputs, x.measured), math.log10(x.inputs.peak_share)
            said = read.log_edge + reached
            miss = partial(
                Miss,
                source=name,
                weight=min(1.0, _COUNTED / len(mine)),
                share=shares.get(part.name, 1.0) if part.left == "source" else 1.0,
            )
            edge[kind].append(miss(low=x.low - said, high=x.high - said))
            if x.best is None:
                continue
            off = x.best - read.log_best - reached
            best[kind].append(miss(low=off - BEST_HALF, high=off + BEST_HALF))
            low, high = (end - said - read.diverging.location for end in x.divergence)
            divergence[kind].append(miss(low=low, high=high))
    return edge, best, divergence


def _kind(left: Left, name: str, ladder: EdgeLadder) -> str | None:
    """Return what an error on a ladder of this part is an error of; None where of nothing known."""
    if _is_ordinary(ladder):
        return left
    inputs = ladder.inputs
    is_usual = inputs.climbing < 1 and inputs.lack_of_tokens == 0 and inputs.predicts_next
    if inputs.norm == "none" or not is_usual:
        return None
    return "optimizer" if inputs.optimizer in _ELSEWHERE else None


def _shares(held_out: Sequence[HeldOut]) -> dict[str, float]:
    """Return by how much each source of a block counts, which shares a design, in the spread."""
    blocks: dict[str, set[str]] = {}
    for part in held_out:
        if part.left == "source" and part.ladders and part.ladders[0].block:
            blocks.setdefault(part.ladders[0].block, set()).add(part.name)
    return {name: min(1.0, _BLOCK / len(names)) for names in blocks.values() for name in names}


def _beyond(misses: Sequence[Miss], usual: Spread) -> float:
    """Return the part of the spread between these that goes beyond the usual one."""
    middle = len(_NODES) // 2
    more = posterior(misses).between[middle] ** 2 - usual.between[middle] ** 2
    return rounded(math.sqrt(max(more, 0.0)))


def with_spreads_of(model: EdgeModel, other: EdgeModel) -> EdgeModel:
    """Return the model with another's spreads and lapses, which cost many fits."""
    return replace(
        model,
        lapse=other.lapse,
        sharpness=other.sharpness,
        weights=other.weights,
        kinds=replace(model.kinds, unlike=other.kinds.unlike),
        divergence=replace(
            model.divergence,
            power=other.divergence.power,
            short=other.divergence.short,
            long=other.divergence.long,
        ),
        short=replace(model.short, edge=other.short.edge, best=other.short.best),
        long=replace(model.long, edge=other.long.edge, best=other.long.best),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Where the truth lies above a prediction for an unseen source, in decades.

    The truth lies between `low` and `high`, one of which may be infinite. `weight` is how much the
    ladder counts, and `share` how much its source does.
    """

    source: str
    low: float
    high: float
    weight: float
    share: float = 1.0


def posterior(misses: Iterable[Miss]) -> Spread:
    """Return the spread within sources, and that between them with its uncertainty.

    The error of a ladder is normal around that of its source, and the error of a source is normal
    around 0. Both standard deviations are on a grid; the errors of the sources are integrated out.
    The one within is the root of its mean square, of the one between the posterior's quantiles
    remain, at the nodes of a Gauss-Legendre rule. So the predictive distribution is a scale mixture
    of normal ones, as Student's t is.

    Args:
        misses: Of all sources that were left out.
    """
    by_source: dict[str, list[Miss]] = {}
    for miss in misses:
        by_source.setdefault(miss.source, []).append(miss)
    prior = -np.log1p((_BETWEEN / _PRIOR_SCALE) ** 2) + np.log(_BETWEEN)  # the grid is geometric
    found = np.tile(prior[:, None], (1, len(_WITHIN)))
    around = -0.5 * (_OFFSETS / _BETWEEN[:, None]) ** 2 - np.log(_BETWEEN)[:, None]
    for _, mine in sorted(by_source.items()):
        low, high = (np.array([getattr(m, end) for m in mine])[:, None] for end in ("low", "high"))
        weight = np.array([m.weight for m in mine])[:, None]
        for n, within in enumerate(_WITHIN):
            likely = log_chance((low - _OFFSETS) / within, (high - _OFFSETS) / within)
            found[:, n] += mine[0].share * _log_sum(around + (weight * likely).sum(axis=0))
    chance = np.exp(found - found.max())
    chance /= chance.sum()
    inside = math.sqrt(float(chance.sum(axis=0) @ _WITHIN**2))
    reached = np.cumsum(chance.sum(axis=1)) - 0.5 * chance.sum(axis=1)
    between = np.exp(np.interp((_NODES + 1) / 2, reached, np.log(_BETWEEN)))
    return Spread(within=rounded(inside), between=[rounded(b) for b in between])


def node_weights() -> list[float]:
    """Return the weights of the values of `Spread.between`."""
    weights = [rounded(w) for w in _NODE_WEIGHTS / 2]
    return [*weights[:-1], rounded(1 - math.fsum(weights[:-1]))]


def even_spread(deviation: float) -> Spread:
    """Return a spread that is one number, of which nothing is known between sources."""
    value = rounded(deviation / math.sqrt(2))
    return Spread(within=value, between=[value] * len(_NODES))


def _log_sum(values: np.ndarray) -> np.ndarray:
    """Return the logarithm of the sum of exponentials over the last axis."""
    top = values.max(axis=-1)
    return top + np.log(np.exp(values - top[..., None]).sum(axis=-1))


def _lapse(model: EdgeModel, held_out: Sequence[HeldOut]) -> Lapse:
    """Return the share of the surest predictions that came out wrong.

    A run far below its edge can fail, and one far above it can pass, for what is not its rate.
    """
    wrong = sure = 0
    for part in held_out:
        seen = with_spreads_of(part.seen, model)
        for x in part.ladders:
            if x.source == PUBLISHED or x.changed in BOUNDS or not _is_ordinary(x):
                continue
            said = np.array(_below(seen, x))
            is_sure = np.minimum(said, 1 - said) < _SURE
            sure += int(is_sure.sum())
            wrong += int((is_sure & ((said < 0.5) == x.failed)).sum())
    return lapse_of(wrong, sure) if sure else model.lapse


def _sharpness(model: EdgeModel, held_out: Sequence[HeldOut]) -> float:
    """Return how sharp the low end of P(failed) is: usual ladders, their source left out.

    P(failed) of what is unlike the data comes true as it is. A source counts as in the spread.
    """
    runs, shares = list[Said](), _shares(held_out)
    for part in held_out:
        seen = with_spreads_of(part.seen, model)
        mine = [x for x in part.ladders if x.best is not None and x.inputs.is_usual]
        if part.left == "source":
            weight = min(1.0, _COUNTED / max(1, len(mine))) * shares.get(part.name, 1.0)
            for x in mine:
                runs += said_of(_below(seen, x), x.failed, weight)
    return sharpness_of(runs, model.lapse)


def _power(model: EdgeModel, held_out: Sequence[HeldOut]) -> float:
    """Return the power of the odds that a run which fails diverges; sources count as above."""
    runs, shares = list[Said](), _shares(held_out)
    for part in held_out:
        seen = with_spreads_of(part.seen, model)
        mine = [x for x in part.ladders if x.best is not None and x.diverged is not None]
        count = sum(int(x.failed.sum()) for x in mine)
        if part.left == "source" and count:
            weight = min(1.0, _COUNTED / count) * shares.get(part.name, 1.0)
            for x in mine:
                runs += said_of(_diverging(seen, x), definite(x.diverged)[x.failed], weight)
    return power_of(runs) if runs else 1.0


def _diverging(seen: EdgeModel, ladder: EdgeLadder) -> list[float]:
    """Return the share of P(failed) that is P(diverged), at every rate that failed."""
    said, reached = seen.predict(ladder.inputs, ladder.measured), ladder.inputs.peak_share
    rates = [10 ** (rate - math.log10(reached)) for rate in ladder.rates[ladder.failed]]
    return [said.diverged(rate) / said.failed(rate) for rate in rates]


def _below(seen: EdgeModel, ladder: EdgeLadder) -> list[float]:
    """Return the share of edges below every rate of a ladder."""
    edge, reached = seen.predict(ladder.inputs, ladder.measured).edge, ladder.inputs.peak_share
    return [edge.below(10 ** (rate - math.log10(reached))) for rate in ladder.rates]


def _is_ordinary(ladder: EdgeLadder) -> bool:
    """Say whether a source left out could be known: what it is of stands elsewhere too.

    One public source each has no norms, a rate that rises to the end, or a batch of few tokens.
    """
    if ladder.source == LAB:
        return True
    inputs = ladder.inputs
    return inputs.is_usual and inputs.climbing < 1 and inputs.lack_of_tokens == 0


def rounded(value: float | np.ndarray) -> float:
    """Return a number of the artifact, to five decimals."""
    return round(float(value), _DECIMALS) + 0.0
