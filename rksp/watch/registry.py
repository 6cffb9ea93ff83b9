"""Every intervention and every fault by name; a new one needs a class and a line here."""

from __future__ import annotations

from rksp.ground.option_lines import build
from rksp.watch.faults import computation, run_faults
from rksp.watch.faults.base import Fault
from rksp.watch.interventions import clipping, penalties, recovery, weights
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.step_clip import StepClip

INTERVENTIONS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (
        penalties.KSS,
        StepClip,
        weights.MSign,
        weights.QKClip,
        weights.QKNorm,
        clipping.Clip,
        clipping.ZClip,
        clipping.AdaGC,
        recovery.RateBackoff,
        penalties.ZLoss,
        weights.SpectralSmoothing,
        recovery.RepeatStep,
    )
}
FAULTS: dict[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        computation.LowPrecisionAttention,
        run_faults.LargeRate,
        run_faults.AuxOff,
        computation.BitFlip,
        computation.MatmulCorruption,
        computation.ReplicaCorruption,
        run_faults.BadBatches,
    )
}


def make_intervention(text: str) -> Intervention:
    """Make the intervention that a line such as `kss:weight=0.1,every=4` describes.

    Raises:
        InputError: There is no such intervention or option, or a value cannot be used.
    """
    return build(INTERVENTIONS, text, noun="intervention")


def make_fault(text: str) -> Fault:
    """Make the fault that a line such as `bitflip:step=50,where=weights` describes.

    Raises:
        InputError: There is no such fault or option, or a value cannot be used.
    """
    return build(FAULTS, text, noun="fault")
