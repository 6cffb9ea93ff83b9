"""What moves the edge of preference learning and of rewards: DPO and GRPO on toys, closed.

A policy of width 64 first learned to answer with mistakes: to sort digits, or to close brackets. It
was then trained at eight rates on pairs of a right and a wrong answer (DPO; Rafailov et al. 2023,
eq. 7) or on rewards of its own answers (GRPO; Shao et al. 2024, eq. 3 with one update a sample),
with all weights or with LoRA. Every run was judged by the mean reward of sampled answers to prompts
that it had not seen. The toys show what moves an edge; their rates are not those of real models.
The loop that trained them stands in commit f6ee1dcf.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from lab.ladders.markdown import table
from rksp.ground.model import Strict

Objective = Literal["dpo", "grpo"]
Toy = Literal["digits", "brackets"]
RATES = 8
STORED = Path(__file__).parent / "experiments" / "results" / "post-training.json"
GAIN = 0.05  # of the mean reward


class Spec(Strict):
    """What the runs of one ladder share.

    Attributes:
        objective: `dpo` or `grpo`.
        toy: What is to be answered.
        family: A model type of transformers, as the policy.
        beta: DPO's β, or GRPO's coefficient of the KL divergence.
        group: Answers to one prompt in GRPO; 0 for DPO.
        rank: Of LoRA; 0 trains all weights.
        alpha: Of LoRA.
        seed: Of the policy, the prompts and the answers.
    """

    objective: Objective
    toy: Toy
    family: str
    beta: float
    group: int = 0
    rank: int = 0
    alpha: float = 0.0
    seed: int

    @property
    def method(self) -> str:
        """What is trained."""
        return "lora" if self.rank else "all"


class Trained(Strict):
    """One run: the mean reward and the mean divergence from the first policy at its end.

    A run whose weights are not finite has neither.
    """

    rate: float
    reward: float | None
    divergence: float | None
    seconds: float


class PolicyLadder(Strict):
    """A trained ladder; `before` is the first policy's mean reward."""

    spec: Spec
    before: float
    runs: tuple[Trained, ...]

    @property
    def best(self) -> Trained:
        """The run of the highest reward."""
        return max(self.runs, key=lambda run: -1.0 if run.reward is None else run.reward)

    @property
    def gain(self) -> float:
        """What the best run adds to the mean reward."""
        return (self.best.reward or 0.0) - self.before

    @property
    def edge(self) -> float | None:
        """The first rate above the best that loses half of the gain; None if none does."""
        least = self.before + self.gain / 2
        for run in self.runs:
            if run.rate > self.best.rate and (run.reward is None or run.reward < least):
                return run.rate
        return None


def stored_ladders() -> list[PolicyLadder]:
    """Return the ladders that the repository holds."""
    lines = json.loads(STORED.read_text(encoding="utf-8"))
    return [PolicyLadder.model_validate(line) for line in lines]


def tables(ladders: Sequence[PolicyLadder]) -> str:
    """Return what the toys show, as Markdown: edges by objective, and what moves them."""
    learned = [ladder for ladder in ladders if ladder.gain >= GAIN]
    pages = [
        f"{len(ladders)} ladders of {RATES} rates, {len(learned)} of which gain at least {GAIN:g} "
        "of the reward. *Edge*: the first rate above the best that loses half of the gain.",
        _edges(learned),
        "What moves an edge, all else equal: the median over pairs of ladders, in decades, of the "
        "edge and of the best rate at the second value minus those at the first.",
        _moves(learned),
    ]
    return "\n\n".join(pages) + "\n"


def _edges(ladders: Sequence[PolicyLadder]) -> str:
    groups: dict[str, list[PolicyLadder]] = {}
    for ladder in ladders:
        spec = ladder.spec
        groups.setdefault(f"{spec.objective}, {spec.method}, {spec.toy}", []).append(ladder)
    lines = []
    for name, group in sorted(groups.items()):
        edges = [ladder.edge for ladder in group if ladder.edge is not None]
        gaps = [math.log10(x.edge / x.best.rate) for x in group if x.edge is not None]
        away = [x.best.divergence or 0.0 for x in group]
        lines.append(
            [
                name,
                str(len(group)),
                f"{median(x.before for x in group):.2f}",
                f"{median(x.best.reward or 0.0 for x in group):.2f}",
                f"{median(x.best.rate for x in group):.1e}",
                f"{median(edges):.1e}" if edges else "—",
                f"{median(gaps):.2f}" if gaps else "—",
                f"{median(away):.1f}",
            ]
        )
    header = ["", "ladders", "before", "best", "best rate", "edge", "decades apart", "nats away"]
    return table(header, lines)


_FACTORS: Sequence[tuple[str, str, Sequence[float]]] = (
    ("dpo", "beta", (0.1, 0.5)),
    ("grpo", "beta", (0.0, 0.04)),
    ("grpo", "group", (4, 16)),
    ("dpo", "rank", (1, 8, 64, 256)),
    ("grpo", "rank", (1, 8, 64, 256)),
    ("dpo", "alpha", (16.0, 64.0)),
    ("grpo", "alpha", (16.0, 64.0)),
)


def _moves(ladders: Sequence[PolicyLadder]) -> str:
    lines = []
    for objective, field, values in _FACTORS:
        for low, high in itertools.pairwise(values):
            pairs = list(_pairs(ladders, objective, field, (low, high)))
            edges = [
                math.log10(b.edge / a.edge)
                for a, b in pairs
                if a.edge is not None and b.edge is not None
            ]
            best = [math.log10(b.best.rate / a.best.rate) for a, b in pairs]
            name = f"{objective}: {field} {low:g} → {high:g}"
            lines.append([name, str(len(pairs)), *map(_middle, (edges, best))])
    return table(["", "pairs", "edge", "best rate"], lines)


def _pairs(
    ladders: Sequence[PolicyLadder], objective: str, field: str, values: tuple[float, float]
) -> Iterator[tuple[PolicyLadder, PolicyLadder]]:
    """Yield pairs of ladders that differ in one field alone."""
    known = {ladder.spec: ladder for ladder in ladders}
    for ladder in ladders:
        spec = ladder.spec
        if spec.objective == objective and getattr(spec, field) == values[0]:
            other = known.get(spec.model_copy(update={field: values[1]}))
            if other is not None:
                yield ladder, other


def _middle(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{median(values):+.2f} ({min(values):+.2f} to {max(values):+.2f})"
