"""Leaves whole sources and whole families out, and says what was predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lab.fine_tuning_fit.fit import fit_fine_tuning
from lab.fine_tuning_fit.ladder import LADDER, FineTuningLadder
from lab.fit.lapses import lapse_of
from rksp.classifiers.fine_tuning.model import FineTuningEstimate
from rksp.classifiers.rates import Lapse

_SURE = 1e-2  # a run that fails, or passes, with a chance below it has lapsed
Key = Callable[[FineTuningLadder], str]


def source_of(ladder: FineTuningLadder) -> str:
    """Return the group whose runs a ladder is of."""
    return ladder.inputs.source


def family_of(ladder: FineTuningLadder) -> str:
    """Return the model family, in every source; a ladder without one stands alone."""
    return ladder.inputs.family or ladder.name


KEYS: dict[str, Key] = {"sources": source_of, "families": family_of}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One ladder, and what a model that saw nothing of its source or family says of it."""

    ladder: FineTuningLadder
    estimate: FineTuningEstimate
    name: str


def left_out(ladders: Sequence[FineTuningLadder], key: Key) -> Iterator[LeftOut]:
    """Yield every ladder, predicted without all that share its key: recipes and cards are fitted.

    Args:
        ladders: All of them.
        key: Source or family.
    """
    for name in sorted({key(x) for x in ladders if x.kind == LADDER}):
        model = fit_fine_tuning([x for x in ladders if key(x) != name])
        for x in ladders:
            if key(x) == name and x.kind == LADDER:
                yield LeftOut(ladder=x, estimate=model.predict(x.inputs), name=name)


def lapses(predicted: Sequence[LeftOut]) -> Lapse:
    """Return the share of the surest predictions that came out wrong, with its 90 % interval.

    A run far below its edge can fail, and one far above it can pass, for what is not its rate.
    """
    wrong = sure = 0
    for x in predicted:
        for rate, failed in zip(x.ladder.rates, x.ladder.failed, strict=True):
            chance = x.estimate.edge.below(10**rate)
            if failed is not None and min(chance, 1 - chance) < _SURE:
                sure += 1
                wrong += failed == (chance < 0.5)
    return lapse_of(wrong, sure)
