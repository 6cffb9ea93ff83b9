"""Tables of past runs, and ladders of a team whose edges lie off by a known amount."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.edge_cases import inputs

from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.own_runs.observed import Observed

# Losses as a real ladder has them: too low a rate, the best, the edge, beyond it.
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
LOSSES = (4.1, 3.7, 3.6, 3.75, 5.2)
COLUMNS = "Name,State,learning_rate,n_layer,n_embd,n_head,max_steps,train/loss,_runtime"


def write_table(
    path: Path, rates: Sequence[float] = RATES, losses: Sequence[float] = LOSSES, layers: int = 4
) -> Path:
    """Write an export of W&B: one row a run of a small GPT-2."""
    rows = [
        f"run-{n},finished,{rate},{layers},256,4,2000,{loss},12"
        for n, (rate, loss) in enumerate(zip(rates, losses, strict=True))
    ]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def team_ladder(
    offset: float,
    *,
    name: str = "ladder",
    family: str = "gpt2",
    model: EdgeModel | None = None,
    step: float = 0.25,
    rungs: Sequence[int] = range(-6, 4),
    **changed: object,
) -> Observed:
    """Return a ladder whose edge and best rate lie `offset` decades above what the model says."""
    of = inputs(**{"width": 512, "steps": 20_000, "warmup_steps": 500} | changed)
    said = (model or load_edge_model()).predict(of)
    edge, best = said.log_edge + offset, said.log_best + offset
    rates = np.array([edge + step * (rung + 0.5) for rung in rungs])
    losses = 3 + 0.1 * (rates - best) ** 2 + np.where(rates > edge, 1.0, 0.0)
    return Observed(
        name=name,
        family=family,
        inputs=of,
        log_rates=rates,
        failed=(rates > edge).astype(float),
        losses=losses,
    )


def nearest(value: float, values: Sequence[float]) -> float:
    """Return the value of a list that lies nearest, on a logarithmic scale."""
    return min(values, key=lambda other: abs(math.log(other / value)))
