"""What one forward pass shows beside its statistics; the numbers outlive torch."""

from __future__ import annotations

from dataclasses import dataclass

from rksp.documents.shown import ForwardStats
from rksp.models.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one forward pass of one model showed.

    Attributes:
        forward: Statistics of the pass.
        chains: (path, number of blocks) of the residual stream; empty without such a stream.
        width: Width of the residual stream, 0 without one; of the last chain if there are several.
        states: States per block, before duplicates are removed; likewise.
        forward_passes: Cost in passes over the probe, including the detection on one sequence.
        notes: Facts about how the stream was read, a sentence each.
        placement: Where the blocks normalize; None where that could not be read.
    """

    forward: ForwardStats
    chains: tuple[tuple[str, int], ...]
    width: int
    states: int
    forward_passes: float
    notes: tuple[str, ...] = ()
    placement: Placement | None = None
