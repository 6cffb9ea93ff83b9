"""How much own runs of fine-tuning help, on sources that were left out of the fit: Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lab.fine_tuning_fit.fit import fit_fine_tuning
from lab.fine_tuning_fit.ladder import LADDER, FineTuningLadder
from lab.fine_tuning_fit.left_out import source_of
from rksp.classifiers.fine_tuning.model import FineTuningModel
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.model import definite
from rksp.own_runs.informed import own_inputs
from rksp.own_runs.observed import MISTAKEN

_REVEALED = (1, 2, 4)  # ladders
_Errors = tuple[float, float, float]  # median of the edge and of the best rate; X below failures


def reveal_tuned_markdown(ladders: Sequence[FineTuningLadder]) -> str:
    """Return the table of what own ladders change where their source is left out.

    Args:
        ladders: Public ladders, recipes and runs; a source needs two ladders to count.
    """
    found: dict[int, list[tuple[_Errors, _Errors]]] = {count: [] for count in _REVEALED}
    for name in sorted({source_of(x) for x in ladders if x.kind == LADDER}):
        mine = [x for x in ladders if source_of(x) == name and x.kind == LADDER]
        if len(mine) < 2:
            continue
        mine.sort(key=lambda x: (x.inputs.parameters or math.inf, x.name))
        model = fit_fine_tuning([x for x in ladders if source_of(x) != name])
        for count in _REVEALED:
            if len(mine) > count:
                informed = _informed(model, mine[:count])
                rest = mine[count:]
                found[count].append((_errors(informed, rest), _errors(model, rest)))
    lines = [
        "### Own runs of fine-tuning: sources left out, some of their ladders revealed",
        "",
        "Ladders of the smallest models are shown first; errors are those of the others, in "
        "decades, sources counting alike. In brackets: the same ladders with none revealed.",
        "",
        "| revealed | sources | edge error | best rate error | X below the first failure |",
        "|---|---|---|---|---|",
    ]
    for count, pairs in found.items():
        if pairs:
            after, before = (np.nanmean([pair[n] for pair in pairs], axis=0) for n in (0, 1))
            cells = [
                f"{new:{form}} ({old:{form}})"
                for new, old, form in zip(after, before, (".2f", ".2f", ".0%"), strict=True)
            ]
            lines.append(f"| {count} | {len(pairs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _informed(model: FineTuningModel, shown: Sequence[FineTuningLadder]) -> FineTuningModel:
    for x in shown:
        model = model.reveal(own_inputs(x.inputs), best=x.best, edge=x.edge, mistaken=MISTAKEN)
    return model


def _errors(model: FineTuningModel, ladders: Sequence[FineTuningLadder]) -> _Errors:
    """Return what is missed; a model that saw nothing of the team has no offset for it."""
    edges, bests, below = [], [], []
    for x in ladders:
        said = model.predict(own_inputs(x.inputs))
        if x.has_edge:
            edges.append(abs(said.log_edge - sum(x.edge) / 2))
            below.append(math.log10(said.rate_at(DEFAULT_RISK)) < x.edge[1])
        bests.append(abs(said.log_best - definite(x.chosen)))
    return (
        float(np.median(edges)) if edges else math.nan,
        float(np.median(bests)),
        float(np.mean(below)) if below else math.nan,
    )
