"""Fit the table of levers to pairs of ladders, each judged by families left out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast, get_args

import numpy as np
from scipy.stats import t as student

from lab.ladders.edge_ladders import lab_inputs
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import LadderRun
from lab.ladders.levers import LeverEffect, lever_effects
from lab.ladders.pairs import LadderPair, LadderPairs
from lab.ladders.plan import LadderSpec
from lab.places import DATA
from rksp.classifiers.levers.catalogue import LEVERS, Kind, Lever
from rksp.classifiers.levers.effects import DEAR, FEWEST_FAMILIES, LeverSize, LeverTable
from rksp.ground.errors import InputError

_TAIL = 0.9  # of Student's distribution, so that the interval holds four in five families
_DIGITS = 4
_SAME = 0.06  # decades: what two bisected ladders resolve, the least spread of families
_STILL = 0.01  # decades; an edge that moves by less has not moved to any side
_TASKS: tuple[tuple[str, Kind], ...] = (
    ("digits", "vision"),
    ("masked", "encoder"),
    ("denoised", "encoder-decoder"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One pair of a lever: what it did, and to which family and kind of model."""

    effect: LeverEffect
    family: str
    kind: Kind


def shipped_plans() -> list[LadderPairs]:
    """Return the plans of pairs that the catalogue names."""
    names = sorted({plan for lever in LEVERS for plan in lever.measured})
    folder = DATA / "plans"
    return [cast(LadderPairs, read_ladder_plan(folder / f"{name}.yaml")) for name in names]


def shipped_runs() -> list[Path]:
    """Return the packed collections of these plans."""
    folder = DATA / "runs"
    return [folder / f"{plan.name}.parquet" for plan in shipped_plans()]


def kind_of_ladder(spec: LadderSpec) -> Kind:
    """Return the kind of a ladder's model, which its task tells."""
    return next((kind for start, kind in _TASKS if spec.task.startswith(start)), "decoder")


def pairs_of(
    lever: Lever, plans: Iterable[LadderPairs], ladders: Mapping[str, LadderRun]
) -> list[Pair]:
    """Return what a lever did in every pair of which both ladders are there."""
    return [
        Pair(effect=effect, family=pair.plain.family, kind=kind_of_ladder(pair.plain))
        for plan in plans
        for pair in ordered_pairs(lever, plan)
        if not (lever.is_sequential and lab_inputs(pair.plain).is_parallel)
        if not (lever.of_decoders and kind_of_ladder(pair.plain) != "decoder")
        for effect in lever_effects([pair], ladders)
        if not math.isnan(effect.reach)
    ]


def ordered_pairs(lever: Lever, plan: LadderPairs) -> Iterator[LadderPair]:
    """Yield the pairs of a plan that measure a lever, the ladder with the lever as the changed."""
    for pair in plan.pairs():
        if pair.lever == lever.measured.get(plan.name):
            yield _inverted(pair) if lever.is_inverted else pair


def _inverted(pair: LadderPair) -> LadderPair:
    return LadderPair(model=pair.model, lever=pair.lever, plain=pair.changed, changed=pair.plain)


def fit_lever_table(runs: Iterable[LadderRun]) -> LeverTable:
    """Fit the sizes of all levers; the same ladders give the same table.

    Args:
        runs: Trained ladders.

    Raises:
        InputError: No pair of the catalogue's plans is among the ladders.
    """
    plans = shipped_plans()
    ladders = {run.spec.id: run for run in runs}
    found = {lever.name: pairs_of(lever, plans, ladders) for lever in LEVERS}
    if not any(found.values()):
        raise InputError(
            "The ladders hold no pair of the plans; train them with python -m lab run."
        )
    sizes: dict[Kind, dict[str, LeverSize]] = {
        kind: {
            name: size
            for name, pairs in found.items()
            if (size := lever_size(pairs, kind)) is not None
        }
        for kind in get_args(Kind)
    }
    used = {
        spec.id: ladders[spec.id]
        for plan in plans
        for pair in plan.pairs()
        for spec in (pair.plain, pair.changed)
        if spec.id in ladders
    }
    return LeverTable(ladders=len(used), digest=_digest(used), sizes=sizes)


def lever_size(pairs: Sequence[Pair], kind: Kind) -> LeverSize | None:
    """Return what a lever does to a kind of model; None where no pair of it was measured.

    With fewer than three families of the kind, all kinds count.
    """
    own = [pair for pair in pairs if pair.kind == kind]
    if not own:
        return None
    pooled = len({pair.family for pair in own}) < FEWEST_FAMILIES
    used = list(pairs) if pooled else own
    shifts = family_shifts(used)
    effects = [pair.effect for pair in used]
    ends = interval(shifts) if len(shifts) >= FEWEST_FAMILIES else (None, None)
    judged = _judgements(used, used)
    losses, restored, best = (
        [value for effect in effects if not math.isnan(value := getattr(effect, name))]
        for name in ("loss_at_equal_rate", "restored", "best")
    )
    loss = median(losses) if losses else math.inf
    return LeverSize(
        shift=_rounded(median(shifts.values())),
        low=_rounded(ends[0]),
        high=_rounded(ends[1]),
        holds=_rounded(min(_held(judged), _held(_judgements(own, used)))) if judged else None,
        misses=_rounded(median(seen[1] for seen in judged)) if judged else None,
        covered=_rounded(float(np.mean([seen[2] for seen in judged]))) if judged else None,
        best=_rounded(median(best)) if best else None,
        loss=_rounded(loss) if math.isfinite(loss) else None,
        cost=_rounded(median(effect.cost for effect in effects)),
        failing=sum(effect.failing for effect in effects),
        saved=sum(effect.saved for effect in effects),
        failed=len(restored),
        restored=sum(nats <= DEAR for nats in restored),
        pairs=len(used),
        models=len({(pair.family, pair.effect.model) for pair in used}),
        families={name: _rounded(shift) for name, shift in sorted(shifts.items())},
        bounds=sum(effect.is_bound for effect in effects),
        stopped=sum(not effect.learned for effect in effects),
        pooled=pooled,
    )


def family_shifts(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the median shift of the edge by family, in decades."""
    families = {pair.family for pair in pairs}
    return {
        name: float(median(p.effect.reach for p in pairs if p.family == name)) for name in families
    }


def interval(shifts: Mapping[str, float]) -> tuple[float, float]:
    """Return the 80 % interval of the shift in a family that is not among these.

    It is Student's, around the median, and no narrower than a ladder resolves.
    """
    values, count = list(shifts.values()), len(shifts)
    spread = max(float(np.std(values, ddof=1)), _SAME)
    reach = float(student.ppf(_TAIL, count - 1)) * spread * math.sqrt(1 + 1 / count)
    return median(values) - reach, median(values) + reach


def _judgements(judged: Sequence[Pair], pairs: Sequence[Pair]) -> list[tuple[bool, float, bool]]:
    return [seen for pair in judged if (seen := _judged(pair, pairs)) is not None]


def _held(judged: Sequence[tuple[bool, float, bool]]) -> float:
    return float(np.mean([holds for holds, _, _ in judged]))


def _judged(pair: Pair, pairs: Sequence[Pair]) -> tuple[bool, float, bool] | None:
    """Return whether the other families tell the sign, by how much they miss, and if they cover."""
    others = family_shifts([other for other in pairs if other.family != pair.family])
    if len(others) < FEWEST_FAMILIES - 1:
        return None
    predicted, shift = median(others.values()), pair.effect.reach
    low, high = interval(others)
    is_held = abs(shift) >= _STILL and shift * predicted > 0
    return is_held, abs(shift - predicted), low <= shift <= high


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), _DIGITS)


def _digest(ladders: Mapping[str, LadderRun]) -> str:
    """Return a hash of the rates and the last losses of the ladders."""
    lines = [
        f"{name} {' '.join(f'{rate:.6g}' for rate in run.rates)} "
        f"{' '.join(f'{curves.loss[-1]:.4g}' for curves in run.curves)}"
        for name, run in sorted(ladders.items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
