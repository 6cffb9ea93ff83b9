"""Every intervention by name; a new intervention needs a file and a line here."""

from __future__ import annotations

from rksp.interventions.base import Intervention
from rksp.interventions.clipping import AdaGC, Clip, ZClip
from rksp.interventions.kss import KSS
from rksp.interventions.msign import MSign
from rksp.interventions.qk_clip import QKClip
from rksp.interventions.qk_norm import QKNorm
from rksp.interventions.rate_backoff import RateBackoff
from rksp.interventions.repeat_step import RepeatStep
from rksp.interventions.spectral_smoothing import SpectralSmoothing
from rksp.interventions.z_loss import ZLoss
from rksp.option_lines import build

INTERVENTIONS: dict[str, type[Intervention]] = {
    kind.name: kind
    for kind in (
        KSS,
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
