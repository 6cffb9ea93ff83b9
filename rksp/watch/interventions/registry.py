"""Every intervention by name; a new intervention needs a file and a line here."""

from __future__ import annotations

from rksp.ground.option_lines import build
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.clipping import AdaGC, Clip, ZClip
from rksp.watch.interventions.kss import KSS
from rksp.watch.interventions.msign import MSign
from rksp.watch.interventions.qk_clip import QKClip
from rksp.watch.interventions.qk_norm import QKNorm
from rksp.watch.interventions.rate_backoff import RateBackoff
from rksp.watch.interventions.repeat_step import RepeatStep
from rksp.watch.interventions.spectral_smoothing import SpectralSmoothing
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.z_loss import ZLoss

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
