"""What KSS and MSign save near and above the edge, over their settings, and at which loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import cast

from lab.ladders.collection import read_collection
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import LadderRun
from lab.ladders.levers import LeverEffect, lever_effects
from lab.ladders.pairs import LadderPairs
from lab.places import DATA

CLIPPING = "clip_at_0.1"
DEAR = 0.05  # nats at rates at which the run without the setting trains
_AT_DEFAULT = ("kss", "kss_published", "msign", CLIPPING)
_OVER_MODELS = "At their defaults, over the models of the plan `levers`:"
_HEADER = ("setting", "models", "saved", "loss at equal rate", "edge", "time a step")


def shipped_runs(name: str) -> dict[str, LadderRun]:
    """Return the ladders of a plan that rksp ships, by id."""
    path = DATA / "runs" / f"{name}.parquet"
    if not path.is_file():
        return {}
    return {run.spec.id: run for run in read_collection(path)}


def plan(name: str) -> LadderPairs:
    """Return a plan of pairs that rksp ships."""
    path = DATA / "plans" / f"{name}.yaml"
    return cast(LadderPairs, read_ladder_plan(path))


def table() -> str:
    """Return both tables as Markdown: the frontier with its answer, and the defaults."""
    settings = by_lever(lever_effects(plan("shaping").pairs(), shipped_runs("shaping")))
    pairs = [pair for pair in plan("levers").pairs() if pair.lever in _AT_DEFAULT]
    defaults = by_lever(lever_effects(pairs, shipped_runs("levers")))
    return f"{answer(settings)}\n\n{_rows(settings)}\n{_OVER_MODELS}\n\n{_rows(defaults)}"


def by_lever(effects: Sequence[LeverEffect]) -> dict[str, list[LeverEffect]]:
    """Return the effects by lever."""
    names = dict.fromkeys(effect.lever for effect in effects)
    return {name: [e for e in effects if e.lever == name] for name in names}


def _rows(groups: Mapping[str, Sequence[LeverEffect]]) -> str:
    lines = [_line(name, group) for name, group in sorted(groups.items(), key=_order)]
    rule = ["---"] + ["---:"] * (len(_HEADER) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (_HEADER, rule, *lines))


def answer(groups: Mapping[str, Sequence[LeverEffect]]) -> str:
    """Say how many settings save more runs than clipping does and hardly raise the loss."""
    parts = []
    for noun, starts in (("KSS", ("energy", "published")), ("MSign", ("msign",))):
        names = [name for name in groups if name.startswith(starts)]
        better = [name for name in names if is_better(groups[name], groups.get(CLIPPING, ()))]
        told = f": {', '.join(better)}" if better else ""
        parts.append(
            f"{len(better)} of {len(names)} settings of {noun} save more runs than clipping at 0.1 "
            f"at no more than {DEAR} nats{told}."
        )
    return " ".join(parts)


def is_better(group: Sequence[LeverEffect], clipped: Sequence[LeverEffect]) -> bool:
    """Return whether a setting saves more than clipping on the same models, and costs little."""
    models = {effect.model for effect in group}
    same = [effect for effect in clipped if effect.model in models]
    return _loss(group) <= DEAR and sum(e.saved for e in group) > sum(e.saved for e in same)


def _order(item: tuple[str, Sequence[LeverEffect]]) -> tuple[float, float, str]:
    name, group = item
    saved = sum(e.saved for e in group) / max(1, sum(e.failing for e in group))
    return -saved, _loss(group), name


def _loss(group: Sequence[LeverEffect]) -> float:
    return median(e.loss_at_equal_rate for e in group)


def _line(name: str, group: Sequence[LeverEffect]) -> tuple[str, ...]:
    loss, edges = _loss(group), [e.reach for e in group if not math.isnan(e.reach)]
    stopped = sum(not e.learned for e in group)
    return (
        f"`{name}`" + (f" ({stopped} learn nothing)" if stopped else ""),
        str(len({e.model for e in group})),
        f"{sum(e.saved for e in group)} of {sum(e.failing for e in group)}",
        f"{loss:+.2f}" if math.isfinite(loss) else "diverges",
        f"{median(edges):+.2f}" if edges else "–",
        f"{median(e.cost for e in group):.2f}",
    )
