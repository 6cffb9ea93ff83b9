"""What nobody can do better, whatever own runs show: Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.fit.edge_ladder import EdgeLadder
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.metrics import auroc
from rksp.ground.model import definite

_PLACES = (np.arange(200) + 0.5) / 200  # of a truth between the middle and the end of its cell
_OFFSETS = np.arange(-1.2, 1.2, 0.01)  # decades by which the start is moved
Left = tuple[EdgeModel, Sequence[EdgeLadder]]  # a model that saw nothing of the ladders to judge


def bounds_markdown(public: Sequence[Left], families: Sequence[tuple[Left, EdgeLadder]]) -> str:
    """Return the bounds.

    Args:
        public: Teams left out, with those of their ladders that are not revealed.
        families: Families of the lab left out, with the one ladder of each that is revealed.
    """
    grids = [
        (
            _of_grid([(x.high - x.low) / 2 for x in rest if x.has_edge]),
            _of_grid([_best_half(x) for x in rest]),
        )
        for _, rest in public
    ]
    edge, best = (float(np.nanmean(column)) for column in zip(*grids, strict=True))
    lost = float(np.mean([_least_regret(*left) for left in public]))
    lines = [
        "Bounds, of the ladders that are judged after one was revealed. One who knows where "
        f"between its rates each public ladder has its edge is {edge:.2f} decades off the middle "
        f"that errors are counted from, and {best:.2f} off the best of its rates. The offset of "
        f"each team's start that loses least in hindsight still loses {lost:.3f} nats."
    ]
    if families:
        known, own = _ranked(families)
        lines[0] += (
            f" With each lab family's own mean error known the AUROC is {known:.3f}, and {own:.3f} "
            "with every ladder's own edge."
        )
    return "\n".join(lines) + "\n"


def _of_grid(halves: Sequence[float]) -> float:
    """Return the median distance from the middles of cells, truths lying anywhere in them."""
    return float(np.median(np.outer(halves, _PLACES))) if halves else math.nan


def _best_half(ladder: EdgeLadder) -> float:
    rates = np.unique(ladder.rates)
    at = int(np.argmin(np.abs(rates - definite(ladder.best))))
    return float(np.diff(rates)[max(0, at - 1) : at + 1].mean()) / 2


def _least_regret(model: EdgeModel, ladders: Sequence[EdgeLadder]) -> float:
    starts = [
        math.log10(model.predict(x.inputs, x.measured).start_here * x.inputs.peak_share)
        for x in ladders
    ]
    lost = [
        np.asarray(x.excess_at(start + _OFFSETS)) for x, start in zip(ladders, starts, strict=True)
    ]
    return float(np.mean(lost, axis=0).min())


def _ranked(families: Sequence[tuple[Left, EdgeLadder]]) -> tuple[float, float]:
    """Return the AUROC with the mean error of each family known, and with that of each ladder."""
    failed, by_family, by_ladder = [], [], []
    for (model, rest), shown in families:
        errors = {x.name: _error(model, x) for x in (shown, *rest) if x.has_edge}
        mean = float(np.mean(list(errors.values()))) if errors else 0.0
        for x in rest:
            failed.append(x.failed)
            by_family.append(_chances(model, x, mean))
            by_ladder.append(_chances(model, x, errors.get(x.name, mean)))
    y = np.concatenate(failed)
    return auroc(y, np.concatenate(by_family)), auroc(y, np.concatenate(by_ladder))


def _error(model: EdgeModel, ladder: EdgeLadder) -> float:
    said = model.predict(ladder.inputs, ladder.measured)
    return ladder.edge - said.log_edge - math.log10(ladder.inputs.peak_share)


def _chances(model: EdgeModel, ladder: EdgeLadder, offset: float) -> np.ndarray:
    said = model.predict(ladder.inputs, ladder.measured)
    moved = replace(said, edge=said.edge.moved(offset))
    reached = math.log10(ladder.inputs.peak_share)
    return np.array([moved.failed(10 ** (rate - reached)) for rate in ladder.rates])
