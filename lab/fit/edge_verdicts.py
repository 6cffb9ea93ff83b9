"""Which rule should call a run doubtful: healthy runs warned and failures caught, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import PUBLISHED, EdgeLadder
from lab.fit.edge_left_out import keys
from lab.fit.edge_spreads import with_spreads_of
from rksp.assessment.risk import beyond
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.rates import says_nothing
from rksp.documents.terms import DEFAULT_BAR
from rksp.documents.verdict import Verdict, word_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a model that did not see a run says of it at its rate."""

    kind: str
    failed: bool
    is_told: bool
    chance: float
    most: float
    is_above: bool
    word: Verdict


Rule = Callable[[Told], bool]


def _above_and_likely(least: float) -> Rule:
    return lambda x: x.is_above and x.chance >= least * DEFAULT_BAR


RULES: dict[str, Rule] = {
    "above X and S by a tenth, or an interval up to the bar (before)": lambda x: (
        x.is_above or x.most >= DEFAULT_BAR
    ),
    "above X and S by a tenth": lambda x: x.is_above,
    "an interval up to the bar": lambda x: x.most >= DEFAULT_BAR,
    **{
        f"above X and S, and P(failed) at least {least:g} of the bar": _above_and_likely(least)
        for least in (0.2, 0.3, 0.4, 0.5, 0.6)
    },
    "as shipped": lambda x: x.word is Verdict.CAUTION,
}


def verdict_table(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return what every rule of the verdict says, whole teams and developers left out."""
    told = _told(ladders, model)
    groups = {
        "decoders": [x for x in told if x.kind == "decoder"],
        "recipes": [x for x in told if x.kind in ("decoder", "recipe")],
        "best rates": [x for x in told if x.kind == "best"],
        "failed": [x for x in told if x.failed and x.kind == "run"],
        "failed, of the lab": [x for x in told if x.failed and x.kind == "toy"],
    }
    lines = [
        "### The rule of *caution*, teams and developers left out",
        "",
        "Share that is at least *caution*, in per cent: published recipes that trained, best runs "
        "of public ladders, runs that failed there and on tasks of the lab. *Cannot tell* is left "
        "out of the first three columns, and of the failures counts as caught.",
        "",
        "| rule | " + " | ".join(f"{name} ({len(part)})" for name, part in groups.items()) + " |",
        "|---|---|---|---|---|---|",
    ]
    for title, rule in RULES.items():
        shares = [f"{100 * _caught(part, rule):.1f}" for part in groups.values()]
        lines.append(f"| {title} | {' | '.join(shares)} |")
    at_risk = sum(x.chance >= DEFAULT_BAR for x in groups["recipes"])
    return "\n".join([*lines, "", f"Recipes at risk: {at_risk}."])


def _caught(part: Sequence[Told], rule: Rule) -> float:
    told = [x for x in part if x.is_told or x.failed]
    return sum(not x.is_told or x.chance >= DEFAULT_BAR or rule(x) for x in told) / len(told)


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
    most = read.do_not_exceed()
    found = []
    for rate, failed in zip(ladder.rates.tolist(), ladder.failed.tolist(), strict=True):
        nominal = 10**rate / reached
        chance, ends = read.failed(nominal), read.interval(nominal)
        kind = "toy" if title == "tasks of the lab" else "best" if rate == ladder.best else "run"
        if title == "recipes":
            kind = "decoder" if ladder.inputs.predicts_next else "recipe"
        found.append(
            Told(
                kind=kind,
                failed=failed,
                is_told=not says_nothing(*ends) and not beyond(read, ladder.inputs),
                chance=chance,
                most=ends[1],
                is_above=nominal > most,
                word=word_at(nominal, most, is_risk=chance >= DEFAULT_BAR),
            )
        )
    return found
