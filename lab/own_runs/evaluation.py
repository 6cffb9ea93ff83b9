"""How much own runs help, on sources that were left out of the fit: Markdown for the model card."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lab.fit.edge_fit import held_out
from lab.fit.edge_ladder import BRIDGE, LAB, MARGIN, PUBLISHED, EdgeLadder
from lab.fit.edge_spreads import HeldOut, with_spreads, with_spreads_of
from lab.own_runs.bounds import bounds_markdown
from lab.own_runs.thinned import thinned_markdown
from rksp.classifiers.edge_inputs import ADAM_FAMILY, EdgeInputs
from rksp.classifiers.edge_model import EdgeEstimate, EdgeModel
from rksp.classifiers.metrics import auroc
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.model import definite
from rksp.own_runs.informed import InformedModel
from rksp.own_runs.observed import Observed

REVEALED = (1, 2, 4)  # ladders
_LONE_RUNS = 5
_TURNS = 12  # ladders of a source that are shown in turn
_WORSE = 0.02  # decades, or nats, by which no source may become worse
_FEWEST = 2  # ladders of a team: one to show, one to judge by
_BITS = 1.4427
_ROWS = {0: "none", 1: "1 ladder", 2: "2 ladders", 4: "4 ladders"}
# A team or family left out, a model that saw nothing of it, its ladders from the smallest shape.
_Case = tuple[str, EdgeModel, list[EdgeLadder]]


class _Predictor(Protocol):
    """What is compared."""

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate."""


_Learner = Callable[[_Case, Sequence[EdgeLadder]], _Predictor]
_Spoil = Callable[[Observed, np.random.Generator], Observed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What is missed on ladders that were not revealed.

    Attributes:
        edge, best, start: Median decades, the last from *start here* to the best rate; NaN where
            no ladder shows it.
        regret: Mean nats lost by starting at *start here*.
        covered: Share of the edges above *do not exceed*.
        moved: Median decades by which the likely edge moved from what the shipped model says, over
            half of its 90 % range.
    """

    edge: float
    best: float
    start: float
    regret: float
    covered: float
    moved: float


def reveal_markdown(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return the tables of what own runs change.

    Args:
        ladders: Of the lab and of public sources.
        model: Fitted on all ladders; families of the lab that are left out keep its spreads.
    """
    cases = list(_cases(ladders, model))
    public = [case for case in cases if case[2][0].source != LAB]
    lab = [case for case in cases if case[2][0].source == LAB]
    parts = ["### Own runs: sources left out, some of their ladders revealed", ""]
    parts += [
        "The ladders of the smallest shapes are shown first; errors are those of the other ladders "
        "of AdamW and its relatives, teams counting alike. A public source is left out whole, of "
        "the spreads too; a repository of it is a team.",
        "",
    ]
    for title, chosen in (("public sources", public), ("lab families", lab)):
        if chosen:
            parts += [*_table(title, chosen), ""]
    parts += _by_source(public)
    parts += _auroc_lines(lab)
    parts += ["", *_controls([*public, *lab]), "", thinned_markdown(ladders)]
    left = [(case[1], case[2][1:]) for case in public]
    families = [((case[1], case[2][1:]), case[2][0]) for case in lab]
    if left:
        parts.append(bounds_markdown(left, families).rstrip("\n"))
    return "\n".join(parts) + "\n"


def _cases(ladders: Sequence[EdgeLadder], model: EdgeModel) -> Iterator[_Case]:
    """Yield teams and families with a model that saw nothing of them; of a source no spread did.

    A source of several repositories is several teams: what one shows is not revealed to another.
    """
    parts = list(held_out(ladders))
    for held in parts:
        if held.left == "task":
            continue
        mine = [
            x
            for x in held.ladders
            if x.best is not None
            and x.source != PUBLISHED
            and x.group != BRIDGE
            and x.inputs.optimizer in ADAM_FAMILY
            and x.inputs.norm != "none"
        ]
        teams: dict[str, list[EdgeLadder]] = {}
        for x in mine:
            teams.setdefault(x.team, []).append(x)
        if max(map(len, teams.values()), default=0) < _FEWEST:
            continue
        if held.left == "source":
            known = with_spreads(held.seen, [_without(part, held) for part in parts])
        else:
            known = with_spreads_of(held.seen, model)
        for team, found in sorted(teams.items()):
            if len(found) >= _FEWEST:
                name = held.name if len(teams) == 1 else f"{held.name} ({team.split('/')[-1]})"
                size = lambda x: (x.inputs.width**2 * x.inputs.depth, x.name)
                yield name, known, sorted(found, key=size)


def _without(part: HeldOut, held: HeldOut) -> HeldOut:
    """Return what was left out without the ladders of this one."""
    names = {(x.source, x.name) for x in held.ladders}
    return replace(part, ladders=[x for x in part.ladders if (x.source, x.name) not in names])


def _shrunk(case: _Case, shown: Sequence[EdgeLadder]) -> _Predictor:
    """Return the plain rival: the mean error of what was shown, shrunk by half for one ladder."""
    edges, bests = [], []
    for ladder in shown:
        said = case[1].predict(ladder.inputs, ladder.measured)
        reached = math.log10(ladder.inputs.peak_share)
        if ladder.has_edge:
            edges.append(ladder.edge - said.log_edge - reached)
        bests.append(definite(ladder.best) - said.log_best - reached)
    return _Moved(case[1], sum(edges) / (1 + len(edges)), sum(bests) / (1 + len(bests)))


def _hindsight(case: _Case, shown: Sequence[EdgeLadder]) -> _Predictor:
    """Return the offset that is best for the ladders that were not shown: no offset does better."""
    errors: tuple[list[float], list[float]] = [], []
    for ladder in case[2][len(shown) :]:
        said = case[1].predict(ladder.inputs, ladder.measured)
        reached = math.log10(ladder.inputs.peak_share)
        if ladder.has_edge:
            errors[0].append(ladder.edge - said.log_edge - reached)
        errors[1].append(definite(ladder.best) - said.log_best - reached)
    grid = np.arange(-2, 2.001, 0.01)
    least = [
        float(grid[np.argmin(np.median(np.abs(np.array(e)[:, None] - grid), axis=0))]) if e else 0.0
        for e in errors
    ]
    return _Moved(case[1], *least)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A model whose every edge and best rate is moved by constants, in decades."""

    prior: EdgeModel
    edge: float
    best: float

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the moved distributions."""
        said = self.prior.predict(inputs, measured)
        return replace(said, edge=said.edge.moved(self.edge), best=said.best.moved(self.best))


def _table(title: str, cases: Sequence[_Case]) -> list[str]:
    lines = [
        f"| {title}: revealed | left out | edge error | best rate error | regret, nats | above X |",
        "|---|---|---|---|---|---|",
    ]
    for count in (0, *REVEALED):
        chosen = [case for case in cases if len(case[2]) > count]
        if not chosen:
            continue
        before = [_errors(case[1], case, count) for case in chosen]
        for suffix, learner in _LEARNERS.items() if count else [("", _informed)]:
            rest = [_errors(learner(case, case[2][:count]), case, count) for case in chosen]
            lines.append(_row(f"{_ROWS[count]}{suffix}", rest, before))
    chosen = [case for case in cases if len(case[2]) > _LONE_RUNS]
    if chosen:
        lone = [_errors(_with_lone_runs(case), case, _LONE_RUNS) for case in chosen]
        before = [_errors(case[1], case, _LONE_RUNS) for case in chosen]
        lines.append(_row(f"{_LONE_RUNS} single runs", lone, before))
    lines += ["", "In brackets: the same ladders with none revealed."]
    return lines


def _row(name: str, found: Sequence[Errors], before: Sequence[Errors]) -> str:
    def cell(of: str, form: str) -> str:
        new, old = (float(np.nanmean([getattr(e, of) for e in part])) for part in (found, before))
        return f"{new:{form}}" if name == "none" else f"{new:{form}} ({old:{form}})"

    forms = {"edge": ".2f", "best": ".2f", "regret": ".3f", "covered": ".0%"}
    cells = " | ".join(cell(of, form) for of, form in forms.items())
    return f"| {name} | {len(found)} | {cells} |"


def _by_source(cases: Sequence[_Case]) -> list[str]:
    """Return how each public source fares, since none should be made worse.

    One ladder by chance may mislead, so the ladders of a source are shown in turn too.
    """
    parts = ("edge", "start", "best", "regret")
    lines = [
        "Of single sources: medians in decades, and the mean regret in nats. *In turn*: the mean "
        f"over up to {_TURNS} ladders, each of which is the one that is shown.",
        "",
        f"| source | the smallest: {', '.join(parts)} | in turn: {', '.join(parts)} |",
        "|---|---|---|",
    ]
    turns = [list(_turns(case)) for case in cases]
    means = []
    for case, pairs in zip(cases, turns, strict=True):
        values = np.array([[[getattr(e, of) for of in parts] for e in pair] for pair in pairs])
        means.append((values[0], np.nanmean(values, axis=0)))
        lines.append(f"| {case[0]} | {' | '.join(map(_moved_cells, means[-1]))} |")
    changes = np.array([[after - before for before, after in pair] for pair in means])
    falls, rises = (changes < 0).sum(axis=0), (changes > _WORSE).sum(axis=0)
    for name, counts in (("falls in", falls), (f"rises by more than {_WORSE} in", rises)):
        cells = [", ".join(f"{n} of {len(cases)}" for n in row) for row in counts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _turns(case: _Case) -> Iterator[tuple[Errors, Errors]]:
    """Yield the errors without and with one ladder, each in turn, the smallest first."""
    ladders = case[2]
    for index in np.unique(np.linspace(0, len(ladders) - 1, min(len(ladders), _TURNS)).round()):
        shown = ladders[int(index)]
        turned = case[0], case[1], [shown, *(x for x in ladders if x is not shown)]
        yield _errors(case[1], turned, 1), _errors(_informed(turned, [shown]), turned, 1)


def _moved_cells(pair: np.ndarray) -> str:
    cells = zip(*pair, strict=True)
    return ", ".join(f"{after:.3f} ({before:.3f})" for before, after in cells)


def _auroc_lines(cases: Sequence[_Case]) -> list[str]:
    """Return how failed runs of lab families rank, the family left out, one ladder revealed."""
    if not cases:
        return []
    failed: list[np.ndarray] = []
    said: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for case in cases:
        for count, parts in said.items():
            model = _informed(case, case[2][:count])
            parts += [_said(model, ladder) for ladder in case[2][1:]]
        failed += [ladder.failed for ladder in case[2][1:]]
    y = np.concatenate(failed)
    before, after = (auroc(y, np.concatenate(parts)) for parts in said.values())
    return [
        f"AUROC of P(failed) over the runs of lab families left out: {before:.3f}, and {after:.3f} "
        "with one ladder of the family revealed."
    ]


def _controls(cases: Sequence[_Case]) -> list[str]:
    """Return what made-up histories do to the answer; four ladders of each case are revealed."""
    lines = [
        "Histories made up of four ladders, of sources and families left out. *Moved* is the "
        "median move of the likely edge over half of its 90 % range.",
        "",
        "| history | ladders not used | moved, median | moved, most | edge error |",
        "|---|---|---|---|---|",
    ]
    for title, spoil in _SPOILED.items():
        rng = np.random.default_rng(0)
        found, unused, total = [], 0, 0
        for case in cases:
            if len(case[2]) <= max(REVEALED):
                continue
            seen = [spoil(_observed(x, case[0]), rng) for x in case[2][: max(REVEALED)]]
            kept = [one for one in seen if one.is_orderly and not one.is_still]
            unused, total = unused + len(seen) - len(kept), total + len(seen)
            if len(kept) * 2 <= len(seen):  # as `History.doubt` has it
                kept = []
            model = InformedModel(prior=case[1], family=case[0], seen=kept)
            found.append(_errors(model, case, max(REVEALED)))
        moved = [e.moved for e in found]
        lines.append(
            f"| {title} | {unused / total:.0%} | {np.median(moved):.2f} | {max(moved):.2f} | "
            f"{np.nanmean([e.edge for e in found]):.2f} |"
        )
    return lines


def _informed(case: _Case, shown: Sequence[EdgeLadder]) -> InformedModel:
    seen = [_observed(ladder, case[0]) for ladder in shown]
    return InformedModel(prior=case[1], family=case[0], seen=[x for x in seen if x.is_orderly])


def _with_lone_runs(case: _Case) -> InformedModel:
    """Return the model that knows one run of each of the smallest ladders, at various rates."""
    seen = []
    for number, ladder in enumerate(case[2][:_LONE_RUNS]):
        whole = _observed(ladder, case[0])
        at = round((number + 0.5) / _LONE_RUNS * (len(whole.log_rates) - 1))
        has_diverged = not math.isfinite(whole.losses[at])
        failed = 1.0 if has_diverged else 0.0 if not whole.failed[at] else math.nan
        rates, losses = whole.log_rates[at : at + 1], whole.losses[at : at + 1]
        seen.append(replace(whole, failed=np.array([failed]), log_rates=rates, losses=losses))
    return InformedModel(prior=case[1], family=case[0], seen=seen)


def _observed(ladder: EdgeLadder, family: str) -> Observed:
    """Return a ladder as a team's own; its excess stands for its losses."""
    order = np.argsort(ladder.rates)
    excess = ladder.excess[order].astype(float)
    return Observed(
        name=ladder.name,
        family=family,
        inputs=ladder.inputs,
        log_rates=ladder.rates[order] - math.log10(ladder.inputs.peak_share),
        failed=ladder.failed[order].astype(float),
        losses=np.where(np.isfinite(excess), excess, math.nan),
    )


def _errors(model: _Predictor, case: _Case, count: int) -> Errors:
    edges, bests, starts, lost, covered, moved = [], [], [], [], [], []
    for ladder in case[2][count:]:
        said = model.predict(ladder.inputs, ladder.measured)
        bare = case[1].predict(ladder.inputs, ladder.measured)
        reached = math.log10(ladder.inputs.peak_share)
        half = math.log10(bare.edge.quantile(0.95) / bare.edge.quantile(0.05)) / 2
        moved.append(abs(said.log_edge - bare.log_edge) / half)
        if ladder.has_edge:
            edges.append(abs(said.log_edge + reached - ladder.edge))
            ceiling = math.log10(said.rate_at(DEFAULT_RISK)) + reached
            width = ladder.high - ladder.low
            covered.append(float(np.clip((ladder.high - ceiling) / width, 0, 1)))
        bests.append(abs(said.log_best + reached - definite(ladder.best)))
        start = math.log10(said.start_here) + reached
        starts.append(abs(start - definite(ladder.best)))
        lost.append(float(ladder.excess_at(start)))
    return Errors(
        edge=float(np.median(edges)) if edges else math.nan,
        best=float(np.median(bests)),
        start=float(np.median(starts)),
        regret=float(np.mean(lost)),
        covered=float(np.mean(covered)) if covered else math.nan,
        moved=float(np.median(moved)),
    )


def _said(model: _Predictor, ladder: EdgeLadder) -> np.ndarray:
    said = model.predict(ladder.inputs, ladder.measured)
    reached = math.log10(ladder.inputs.peak_share)
    return np.array([said.failed(10 ** (rate - reached)) for rate in ladder.rates])


def _relabelled(seen: Observed, losses: np.ndarray) -> Observed:
    """Return a ladder with other losses, labelled by the same rule."""
    excess = np.where(np.isfinite(losses), losses, math.inf)
    excess = excess - excess.min()
    above = np.arange(len(losses)) > int(np.argmin(excess))
    failed = (~np.isfinite(losses) | (above & (excess > MARGIN))).astype(float)
    return replace(seen, losses=losses, failed=failed)


_LEARNERS: dict[str, _Learner] = {
    "": _informed,
    ", a plain shrunk offset": _shrunk,
    ", the best offset in hindsight": _hindsight,
}
_SPOILED: dict[str, _Spoil] = {
    "as they are": lambda seen, rng: seen,
    "losses shuffled": lambda seen, rng: _relabelled(seen, rng.permutation(seen.losses)),
    "a perplexity called loss": lambda seen, rng: _relabelled(seen, np.exp(3 + seen.losses)),
    "loss in bits": lambda seen, rng: _relabelled(seen, seen.losses * _BITS),
    "a logger that repeats one loss": lambda seen, rng: _relabelled(
        seen, np.full(len(seen.losses), 3.0)
    ),
}
