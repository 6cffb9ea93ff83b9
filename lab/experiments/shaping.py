"""What saves a run that fails, and what it costs one that learns: the ladders of `step_clip`.

A run fails if it ends more than the ladders' margin above the best run of the same model and seed
without the arm, at a rate above that best one. It is saved if the arm ends within the margin. A run
that learns (within the margin) is harmed if the arm ends more than `HARM` above it. Settings were
chosen on `CHOSEN_ON` at seed 1; the tables are of all other ladders. That norms' gains, biases and
normed embeddings follow the matrices was chosen on BERT at seeds 1, 11 and 12 and at seed 11 on T5,
ViT, GPT-2, OLMo 2 and `rmsnorm`. Step clip's ladders from before that are gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

from scipy.stats import binomtest

from lab.experiments.tables import markdown
from lab.ladders.collection import read_collection
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import LadderRun
from lab.ladders.levers import edge_of, final_losses
from lab.ladders.pairs import LadderPairs
from lab.places import DATA
from rksp.own_runs.outcome import OutcomePolicy

CHOSEN_ON = ("rmsnorm", "no_norm", "gpt2", "llama", "t5", "vit", "bert", "gpt_neox", "olmo2")
CHOSEN_SEED = 1
OTHERS = ("bert", "t5", "vit")  # that are no decoders
HARM, NEAR = 0.02, 0.05  # nats
HALF = "half_rate"
BANDS = ((1.0, 5.0), (5.0, 10.0), (10.0, math.inf))  # rates over the edge
_HEADER = (
    *("arm", "ladders", "saved, 1–5× the edge", "5–10×", "above", "harmed"),
    *("worst harm", "best loss", "rates within 0.05 of it, decades", "time a step"),
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One ladder with an arm beside the same ladder without it.

    Attributes:
        failing: Rates over the edge → whether the arm saved the run.
        harm: Nats by which the arm ends above each run that learns.
        best: Change of the best loss, in nats.
        width: Decades of rates within `NEAR` of the ladder's own best loss, with the arm.
        cost: Processor seconds of a step over those without the arm.
    """

    failing: tuple[tuple[float, bool], ...]
    harm: tuple[float, ...]
    best: float
    width: float
    cost: float


def compared(
    before: Mapping[float, float], after: Mapping[float, float], *, lost: float, cost: float
) -> Compared:
    """Compare a ladder's final losses by rate with those of an arm.

    Args:
        before: Of all of the ladder's rates.
        after: Of the arm.
        lost: What a run that diverged has lost: the loss of the first step.
        cost: Processor seconds of a step over those without the arm.
    """
    margin, best = OutcomePolicy().margin, min(before.values())
    top = min(before, key=before.__getitem__)
    edge = 10 ** edge_of(before, best, margin, lost).at
    failing, harm = [], []
    for rate, loss in before.items():
        own = _at(after, rate)
        if own is None:
            continue
        if loss <= best + margin:
            harm.append(own - loss)
        elif rate > top:
            failing.append((rate / edge, own <= best + margin))
    return Compared(
        failing=tuple(failing),
        harm=tuple(harm),
        best=min(after.values()) - best,
        width=_width(after),
        cost=cost,
    )


def halved(before: Mapping[float, float], *, lost: float) -> Compared:
    """Compare a ladder with half of its rates, where it has them; its best loss is the same."""
    half = {rate: _at(before, rate / 2) for rate in before}
    after = {rate: loss for rate, loss in half.items() if loss is not None}
    found = compared(before, after, lost=lost, cost=1.0)
    return replace(found, best=0.0, width=_width(before))


def _beside(plain: LadderRun, changed: LadderRun | None) -> Compared:
    """Compare two ladders; None stands for half the rate, which the plain ladder holds itself."""
    policy, lost = OutcomePolicy(), float(plain.curves[0].loss[0])
    before = final_losses(plain, policy)
    if changed is None:
        return halved(before, lost=lost)
    cost = _seconds(changed) / _seconds(plain)
    return compared(before, final_losses(changed, policy), lost=lost, cost=cost)


def _at(losses: Mapping[float, float], rate: float) -> float | None:
    return next((loss for at, loss in losses.items() if math.isclose(at, rate, rel_tol=1e-3)), None)


def _width(losses: Mapping[float, float]) -> float:
    near = [rate for rate, loss in losses.items() if loss <= min(losses.values()) + NEAR]
    return math.log10(max(near) / min(near))


def _seconds(run: LadderRun) -> float:
    return sum(run.seconds) / sum(len(curves.loss) for curves in run.curves)


def by_arm(
    pairs: LadderPairs, ladders: Mapping[str, LadderRun], keep: Callable[[str, int], bool]
) -> dict[str, list[Compared]]:
    """Return the comparisons of every arm over the models and seeds to keep."""
    found: dict[str, list[Compared]] = {}
    for pair in pairs.pairs():
        plain, changed = ladders.get(pair.plain.id), ladders.get(pair.changed.id)
        if plain is None or not keep(pair.model, pair.plain.seed):
            continue
        if pair.lever == next(iter(pairs.levers)):
            found.setdefault(HALF, []).append(_beside(plain, None))
        if changed is not None:
            found.setdefault(pair.lever, []).append(_beside(plain, changed))
    return found


def table_of(groups: Mapping[str, Sequence[Compared]]) -> str:
    """Return the table of the arms as Markdown, those that save most first."""
    lines = [(_share(group), _line(name, group)) for name, group in groups.items()]
    return markdown(_HEADER, [cells for _, cells in sorted(lines, key=lambda line: -line[0])])


def _share(group: Iterable[Compared]) -> float:
    saved = [is_saved for one in group for _, is_saved in one.failing]
    return sum(saved) / max(1, len(saved))


def _line(name: str, group: Sequence[Compared]) -> tuple[str, ...]:
    bands = []
    for low, high in BANDS:
        saved = [ok for one in group for over, ok in one.failing if low <= over < high]
        bands.append(_counted(sum(saved), len(saved)))
    harm = [value for one in group for value in one.harm]
    return (
        f"`{name}`",
        str(len(group)),
        *bands,
        _counted(sum(value > HARM for value in harm), len(harm)),
        f"{max(harm):+.2f}" if harm else "–",
        f"{median(one.best for one in group):+.3f}",
        f"{median(one.width for one in group):.2f}",
        f"{median(one.cost for one in group):.2f}",
    )


def _counted(count: int, total: int) -> str:
    if not total:
        return "–"
    low, high = binomtest(count, total).proportion_ci(method="wilson")
    return f"{count}/{total} [{low:.0%}, {high:.0%}]"


def tables(short: Mapping[str, LadderRun], long: Mapping[str, LadderRun]) -> str:
    """Return all tables: the reported ladders, those of the choice, and long runs."""
    pairs = plan("step_clip")
    chosen = lambda model, seed: model in CHOSEN_ON and seed == CHOSEN_SEED
    parts = [
        "Ladders that no setting was chosen on:\n",
        table_of(by_arm(pairs, short, lambda model, seed: not chosen(model, seed))),
        "Of these, the decoders:\n",
        table_of(by_arm(pairs, short, lambda m, seed: not chosen(m, seed) and m not in OTHERS)),
        "And the others (BERT, T5, ViT):\n",
        table_of(by_arm(pairs, short, lambda m, seed: not chosen(m, seed) and m in OTHERS)),
    ]
    longer = plan("step_clip_long")
    for tail, said in _LONG.items():
        group = by_arm(longer, long, lambda model, seed, tail=tail: _tail(model) == tail)
        if group:
            parts += [f"{said}:\n", table_of(group)]
    return "\n".join(parts)


_LONG = {
    "": "1,200 steps",
    "2400": "2,400 steps",
    "muon": "1,200 steps with Muon",
    "batch_4": "1,200 steps at a batch of 4",
    "batch_64": "1,200 steps at a batch of 64",
}


def _tail(model: str) -> str:
    return next((tail for tail in _LONG if tail and model.endswith(f"_{tail}")), "")


def shipped() -> str:
    """Return the tables of the ladders that rksp ships."""
    return tables(shipped_runs("step_clip"), shipped_runs("step_clip_long"))
