"""Every fault by name; a new fault needs a file and a line here."""

from __future__ import annotations

from rksp.faults.aux_off import AuxOff
from rksp.faults.bad_batches import BadBatches
from rksp.faults.base import Fault
from rksp.faults.bit_flip import BitFlip
from rksp.faults.large_rate import LargeRate
from rksp.faults.low_precision_attention import LowPrecisionAttention
from rksp.faults.matmul_corruption import MatmulCorruption
from rksp.faults.replica_corruption import ReplicaCorruption
from rksp.option_lines import build

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
