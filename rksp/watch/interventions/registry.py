"""Every intervention by name; a new intervention needs a class and a line here."""

from __future__ import annotations

from rksp.ground.option_lines import build
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.clipping import AdaGC, Clip, ZClip
from rksp.watch.interventions.penalties import KSS, ZLoss
from rksp.watch.interventions.recovery import RateBackoff, RepeatStep
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.weights import MSign, QKClip, QKNorm, SpectralSmoothing

INTERVENTIONS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (
        KSS,
        StepClip,
        MSign,
        QKClip,
        QKNorm,
        Clip,
        ZClip,
        AdaGC,
        RateBackoff,
        ZLoss,
        SpectralSmoothing,
        RepeatStep,
    )
}


def make_intervention(text: str) -> Intervention:
    """Make the intervention that a line such as `kss:weight=0.1,every=4` describes.

    Raises:
        InputError: There is no such intervention or option, or a value cannot be used.
    """
    return build(INTERVENTIONS, text, noun="intervention")
