"""How well the model of the edge does on what it has not seen, against rules that need none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fit.edge_fit import Columns, fit_edge_model
from lab.fit.edge_ladder import BOUNDS, LAB, OPENLM, PUBLISHED, EdgeLadder
from lab.fit.edge_spreads import with_spreads_of
from rksp.classifiers.edge_inputs import ADAM_FAMILY, EdgeInputs
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.metrics import auroc
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.model import definite
from rksp.models.families import family_of

CONFIG_ONLY: Columns = ()
Guess = Callable[[EdgeLadder], tuple[float, float]]  # log10 of the edge and of the best rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model that did not see a ladder says of it; log10 of the highest rates reached.

    `ends` are those of the 90 % interval of the edge.
    """

    ladder: EdgeLadder
    edge: float
    ends: tuple[float, float]
    best: float
    start: float
    ceiling: float
    failed: np.ndarray
    failed_low: np.ndarray
    failed_high: np.ndarray
    diverged: np.ndarray

    @classmethod
    def of(cls, model: EdgeModel, ladder: EdgeLadder) -> Prediction:
        """Return what the model says of a ladder."""
        read = model.predict(ladder.inputs, ladder.measured)
        reached = math.log10(ladder.inputs.peak_share)
        rates = [10 ** (rate - reached) for rate in ladder.rates]
        ends = np.array([read.interval(rate) for rate in rates])
        return cls(
            ladder=ladder,
            edge=read.log_edge + reached,
            ends=(
                math.log10(read.edge.quantile(0.05)) + reached,
                math.log10(read.edge.quantile(0.95)) + reached,
            ),
            best=read.log_best + reached,
            start=math.log10(read.start_here) + reached,
            ceiling=math.log10(read.rate_at(DEFAULT_RISK)) + reached,
            failed=np.array([read.failed(rate) for rate in rates]),
            failed_low=ends[:, 0],
            failed_high=ends[:, 1],
            diverged=np.array([read.diverged(rate) for rate in rates]),
        )

    @property
    def holds_edge(self) -> bool:
        """Whether the edge may lie within its 90 % interval."""
        return self.ends[0] <= self.ladder.high and self.ladder.low <= self.ends[1]

    @property
    def is_covered(self) -> float:
        """The share of the edge's interval that lies above `ceiling`."""
        low, high = self.ladder.low, self.ladder.high
        return float(np.clip((high - self.ceiling) / (high - low), 0, 1))


def single_runs(
    ladders: Sequence[EdgeLadder], key: Callable[[EdgeLadder], str]
) -> list[tuple[EdgeLadder, float]]:
    """Return each run that changes one setting other than the rate, and how far above E it ran.

    Args:
        ladders: Of the lab and of public sources, single runs among them.
        key: What is left out together with a run, "" for nothing.
    """
    bounds = (*BOUNDS, PUBLISHED)
    chosen = [x for x in ladders if x.changed and x.changed not in bounds and x.source != OPENLM]
    found = []
    for name in sorted({key(x) for x in chosen}):
        rest = [x for x in ladders if x.source == LAB or key(x) != name or not name]
        seen = fit_edge_model(rest, spreads=False)
        mine = [x for x in chosen if key(x) == name]
        found += [(x, float(x.rates[0]) - Prediction.of(seen, x).edge) for x in mine]
    return found


def auroc_of(runs: Sequence[tuple[EdgeLadder, float]]) -> float:
    """Return the AUROC of failing of `single_runs`; NaN where all ended alike."""
    failed = np.array([x.failed[0] for x, _ in runs])
    return auroc(failed, np.array([margin for _, margin in runs])) if runs else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """What a model that saw nothing of a recipe's developer says of the published rate.

    Attributes:
        kind: Of the model, as in `rksp.models.families.KINDS`; or the optimizer where that is no
            kin of Adam.
        start, ceiling: *Start here* and *do not exceed*, over the published rate.
        failed, failed_high: P(failed) at the published rate, and the upper end of its interval.
    """

    name: str
    kind: str
    start: float
    ceiling: float
    failed: float
    failed_high: float


def _kind(inputs: EdgeInputs) -> str:
    if inputs.optimizer not in ADAM_FAMILY:
        return inputs.optimizer
    return "decoder" if inputs.predicts_next else family_of((inputs.family,)).kind or "other"


def published(ladders: Sequence[EdgeLadder], model: EdgeModel) -> list[PublishedRecipe]:
    """Judge every published recipe by a model that saw none of its developer."""
    found = []
    for group in sorted({x.group for x in ladders if x.source == PUBLISHED}):
        rest = [x for x in ladders if x.group != group]
        seen = with_spreads_of(fit_edge_model(rest, spreads=False), model)
        for x in ladders:
            if x.group == group:
                read, rate = seen.predict(x.inputs), 10**x.low / x.inputs.peak_share
                found.append(
                    PublishedRecipe(
                        name=x.name,
                        kind=_kind(x.inputs),
                        start=read.start_here / rate,
                        ceiling=read.rate_at(DEFAULT_RISK) / rate,
                        failed=read.failed(rate),
                        failed_high=read.interval(rate)[1],
                    )
                )
    return found


def rule_guesses(rest: Sequence[EdgeLadder]) -> dict[str, Guess]:
    """Return rules that need no model, fitted on the ladders that are not left out."""
    ladders = [
        x for x in rest if x.source not in (LAB, PUBLISHED) and _is_adam(x) and not x.changed
    ]
    sources = sorted({x.source for x in ladders})

    def middle(value: Callable[[EdgeLadder], float], chosen: Sequence[EdgeLadder]) -> float:
        by_source = [[value(x) for x in chosen if x.source == s] for s in sources]
        return float(np.mean([np.median(v) for v in by_source if v]))

    edged = [x for x in ladders if x.has_edge]
    one = (middle(lambda x: x.edge, edged), middle(lambda x: definite(x.best), ladders))
    edge_law = _power_law(edged, lambda x: x.edge)
    best_law = _power_law(ladders, lambda x: definite(x.best))
    return {
        "one rate for all": lambda x: one,
        "size × batch power law": lambda x: (edge_law(x.inputs), best_law(x.inputs)),
        "Step Law's optimum, edge 4.8 times it": lambda x: (
            step_law(x.inputs) + math.log10(4.8),
            step_law(x.inputs),
        ),
    }


def step_law(inputs: EdgeInputs) -> float:
    """Return log10 of 1.79 N^-0.713 D^0.307, N = 12 L width² (Li et al., 2025, 2503.04715)."""
    size = 12 * inputs.depth * inputs.width**2
    tokens = inputs.batch_tokens * inputs.steps
    return math.log10(1.79) - 0.713 * math.log10(size) + 0.307 * math.log10(tokens)


def _power_law(
    ladders: Sequence[EdgeLadder], value: Callable[[EdgeLadder], float]
) -> Callable[[EdgeInputs], float]:
    """Fit a line in the logarithms of size and batch; every source counts alike."""
    counts = {x.source: sum(y.source == x.source for y in ladders) for x in ladders}
    weights = np.sqrt([1 / counts[x.source] for x in ladders])
    design = np.array([_size_and_batch(x.inputs) for x in ladders])
    target = np.array([value(x) for x in ladders])
    found = np.linalg.lstsq(design * weights[:, None], target * weights, rcond=None)[0]
    return lambda inputs: float(np.array(_size_and_batch(inputs)) @ found)


def _size_and_batch(inputs: EdgeInputs) -> list[float]:
    return [1.0, math.log10(inputs.depth * inputs.width**2), math.log10(inputs.batch_tokens)]


def _is_adam(ladder: EdgeLadder) -> bool:
    return ladder.inputs.optimizer in ADAM_FAMILY
