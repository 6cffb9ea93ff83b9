"""From which risk on a run should be doubtful: healthy runs warned and failures caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import PUBLISHED, EdgeLadder
from lab.fit.edge_left_out import keys
from lab.fit.edge_spreads import with_spreads_of
from rksp.assessment.risk import beyond
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.rates import says_nothing
from rksp.documents.terms import DEFAULT_BAR

_RISKS = (0.1, 0.15, 0.2, 0.25, 0.3)  # of X, of which the smallest that warns one healthy in 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a model that did not see a run says of it at its rate."""

    kind: str
    failed: bool
    is_told: bool
    chance: float


def verdict_table(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return whom *caution* warns by the risk of X, whole teams and developers left out."""
    told = _told(ladders, model)
    groups = {
        "decoders": [x for x in told if x.kind == "decoder"],
        "recipes": [x for x in told if x.kind in ("decoder", "recipe")],
        "best rates": [x for x in told if x.kind == "best"],
        "failed": [x for x in told if x.failed and x.kind == "run"],
        "failed, of the lab": [x for x in told if x.failed and x.kind == "toy"],
    }
    lines = [
        "### The risk of X, teams and developers left out",
        "",
        "Share that is at least *caution*, in per cent, by the P(failed) at X: published recipes "
        "that trained, best runs of public ladders, runs that failed there and on tasks of the "
        "lab. *Cannot tell* is left out of the first three columns, and of the failures counts as "
        "caught.",
        "",
        "| risk | " + " | ".join(f"{name} ({len(part)})" for name, part in groups.items()) + " |",
        "|---|---|---|---|---|---|",
    ]
    for risk in _RISKS:
        shares = [f"{100 * _caught(part, risk):.1f}" for part in groups.values()]
        lines.append(f"| {risk:.0%} | {' | '.join(shares)} |")
    at_risk = sum(x.chance >= DEFAULT_BAR for x in groups["recipes"])
    return "\n".join([*lines, "", f"Recipes at risk: {at_risk}."])


def _caught(part: Sequence[Told], risk: float) -> float:
    told = [x for x in part if x.is_told or x.failed]
    return sum(not x.is_told or x.chance >= risk for x in told) / len(told)


def _told(ladders: Sequence[EdgeLadder], model: EdgeModel) -> list[Told]:
    left = {name: keys(ladders)[name] for name in ("public sources", "tasks of the lab")}
    left["recipes"] = lambda x: x.group if x.source == PUBLISHED else ""
    found = []
    for title, key in left.items():
        for name in sorted({key(x) for x in ladders} - {""}):
            rest = [x for x in ladders if key(x) != name]
            seen = with_spreads_of(fit_edge_model(rest, spreads=False), model)
            is_asked = lambda x: x.best is not None or x.source == PUBLISHED
            mine = [x for x in ladders if key(x) == name and is_asked(x)]
            found += [run for x in mine for run in _runs(seen, x, title)]
    return found


def _runs(seen: EdgeModel, ladder: EdgeLadder, title: str) -> list[Told]:
    read, reached = seen.predict(ladder.inputs, ladder.measured), ladder.inputs.peak_share
    found = []
    for rate, failed in zip(ladder.rates.tolist(), ladder.failed.tolist(), strict=True):
        nominal = 10**rate / reached
        kind = "toy" if title == "tasks of the lab" else "best" if rate == ladder.best else "run"
        if title == "recipes":
            kind = "decoder" if ladder.inputs.predicts_next else "recipe"
        is_told = not says_nothing(*read.interval(nominal)) and not beyond(read, ladder.inputs)
        chance = read.failed(nominal)
        found.append(Told(kind=kind, failed=failed, is_told=is_told, chance=chance))
    return found
