"""Every fault by name; a new fault needs a class and a line here."""

from __future__ import annotations

from rksp.ground.option_lines import build
from rksp.watch.faults.base import Fault
from rksp.watch.faults.computation import (
    BitFlip,
    LowPrecisionAttention,
    MatmulCorruption,
    ReplicaCorruption,
)
from rksp.watch.faults.run_faults import AuxOff, BadBatches, LargeRate

FAULTS: dict[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        LowPrecisionAttention,
        LargeRate,
        AuxOff,
        BitFlip,
        MatmulCorruption,
        ReplicaCorruption,
        BadBatches,
    )
}


def make_fault(text: str) -> Fault:
    """Make the fault that a line such as `bitflip:step=50,where=weights` describes.

    Raises:
        InputError: There is no such fault or option, or a value cannot be used.
    """
    return build(FAULTS, text, noun="fault")
