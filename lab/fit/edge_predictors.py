"""What the published predictors of instability add beside the family, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.fit.edge_fit import FULL, Design
from lab.fit.edge_ladder import EdgeLadder
from lab.fit.edge_left_out import keys, predicted
from lab.fit.edge_scores import Prediction
from lab.fit.metrics import difference
from rksp.classifiers.edge_inputs import Column
from rksp.classifiers.edge_model import EdgeModel

# Of the residual stream's linear map from block to block, as the method was published.
PREDICTORS = (
    Column("near_unit_mass", "near-unit mass"),
    Column("spectral_radius", "spectral radius"),
    Column("eigenvector_condition", "kappa, the condition of the eigenvectors"),
)


def predictors_table(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return what each predictor adds to the ranking of runs, ladders of the lab left out."""
    lines = [
        "### The published predictors beside the family, ladders of the lab left out",
        "",
        "| added to the columns and the gradient's norm | gain of AUROC | edge error |",
        "|---|---|---|",
    ]
    base = _left_out(ladders, model, FULL)
    if not base:
        return ""
    failed = np.concatenate([p.ladder.failed for p in base])
    names = np.concatenate([[p.ladder.name] * len(p.ladder.rates) for p in base])
    lines.append(f"| nothing | – | {_error(base):.3f} |")
    for column in PREDICTORS:
        found = _left_out(ladders, model, replace(FULL, measured=(*FULL.measured, column)))
        gain = difference(failed, _margins(found), _margins(base), names)
        lines.append(
            f"| {column.meaning} | {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] | "
            f"{_error(found):.3f} |"
        )
    return "\n".join(lines)


def _left_out(ladders: Sequence[EdgeLadder], model: EdgeModel, design: Design) -> list[Prediction]:
    key = keys(ladders)["ladders of the lab"]
    return [p for part in predicted(ladders, model, key, design).values() for p in part]


def _margins(found: Sequence[Prediction]) -> np.ndarray:
    return np.concatenate([p.ladder.rates - p.edge for p in found])


def _error(found: Sequence[Prediction]) -> float:
    return float(np.median([abs(p.edge - p.ladder.edge) for p in found if p.ladder.has_edge]))
