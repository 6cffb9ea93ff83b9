"""What every lever did in pairs of ladders, and a model of the edge moved by it."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from rksp.classifiers.artifacts import Artifact
from rksp.classifiers.levers.catalogue import BY_NAME, Kind
from rksp.ground.model import Finite

SCHEMA: Literal["rksp-levers-1"] = "rksp-levers-1"
FEWEST_FAMILIES = 3  # below it nothing can be said of a family left out
_FEWEST_NAMED = 4  # families; with three, two would have to tell the third
_HOLDS = 0.9  # of the pairs of families left out must have the sign
_SIZE = math.log10(1.6)  # decades by which the median pair of such a family may miss the size
_FEWEST_FAILED = 10  # pairs whose run fails without a lever, before it is known what it restores
DEAR = 0.05  # nats at equal rate; a lever that costs more is no way to save a run


class LeverSize(Finite):
    """What one lever did to one kind of model.

    Attributes:
        shift: Median over families of the shift of the edge, in decades; both ladders of a pair
            are judged beside the best run without the lever.
        low, high: Ends of the 80 % interval for a family that is not in the data; None with fewer
            than three families.
        holds: Share of pairs, each predicted without its family, in which the edge moved to the
            predicted side; a pair in which it did not move does not count as held. If all kinds
            count, it is the lower of the shares over all pairs and over those of the kind.
        misses: Median distance, in decades, between a pair's shift and what the other families
            predict.
        covered: Share of pairs inside the interval that the other families give.
        best: Median shift of the best rate, in decades.
        loss: Median change of the final loss, in nats, at rates at which the run without the lever
            does not fail; None where most of those runs diverge with it.
        cost: Median processor time of a step, over that without the lever.
        failing, saved: Rates at which the run without the lever fails, and those of them at which
            the run with it ends within the margin of the best without it.
        failed, restored: Pairs whose run without the lever fails at some rate above the best, and
            those of them in which the run with it, at the lowest such rate, ends no more than 0.05
            nats above the run without it at a third of that rate.
        pairs, models, families: What was compared; by family the median shift.
        bounds: Pairs in which a ladder never failed, so that the shift is a bound.
        stopped: Pairs in which the model learned nothing with the lever.
        pooled: Whether too few families of this kind were measured, so that all kinds count.
    """

    shift: float
    low: float | None
    high: float | None
    holds: float | None
    misses: float | None
    covered: float | None
    best: float | None
    loss: float | None
    cost: float
    failing: int
    saved: int
    failed: int
    restored: int
    pairs: int
    models: int
    families: dict[str, float]
    bounds: int
    stopped: int
    pooled: bool

    @property
    def restores(self) -> bool:
        """Whether nine in ten runs at the first rate that fails are as good with it as lower."""
        return self.failed >= _FEWEST_FAILED and self.restored >= _HOLDS * self.failed

    @property
    def is_sound(self) -> bool:
        """Whether a page may name it: it raises the edge in families left out, and costs little.

        Other families tell its size; or it restores runs, so that its size matters less.
        """
        return (
            self.holds is not None
            and self.misses is not None
            and self.loss is not None
            and len(self.families) >= _FEWEST_NAMED
            and self.shift > 0
            and self.holds >= _HOLDS
            and (self.misses <= _SIZE or self.restores)
            and self.loss <= DEAR
        )


class LeverTable(Finite):
    """The sizes of all levers.

    Attributes:
        ladders, digest: How many ladders were compared, and a hash of them.
        sizes: By kind of model and name of the lever.
    """

    schema_: Literal["rksp-levers-1"] = Field(default=SCHEMA, alias="schema")
    ladders: int
    digest: str
    sizes: dict[Kind, dict[str, LeverSize]]

    def size(self, kind: Kind | None, lever: str) -> LeverSize | None:
        """Return the size of a lever in a kind of model; None where nothing was measured."""
        return None if kind is None else self.sizes.get(kind, {}).get(lever)

    @classmethod
    def built(cls, stored: object) -> LeverTable:
        """Return the table of stored fields; a ValueError names what is no lever."""
        table = cls.model_validate(stored)
        unknown = {name for sizes in table.sizes.values() for name in sizes} - BY_NAME.keys()
        if unknown:
            raise ValueError(f"{min(unknown)!r} is no lever")
        return table


ARTIFACT = Artifact(
    noun="table of levers",
    schema=SCHEMA,
    file="levers.json",
    command="python -m lab fit-levers",
    build=LeverTable.built,
)
load_lever_table = ARTIFACT.load
