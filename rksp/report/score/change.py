"""What was measured, in one line, and what it changed about the configuration's answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.score import SeedReport
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.report import words

_SAME = 1.05  # a smaller factor is none to a reader
_GRADIENT = "grad_norm"  # the column that the first gradient moves


def change(seed: SeedReport) -> str:
    """Say what measuring changed about the edge that the configuration gives; empty for nothing.

    Where the forward pass alone was measured, it says that the rates are the configuration's.
    """
    before, after = seed.configured, seed.risk
    if before is None or after is None:
        return ""
    if after.evidence == "forward" or after.answered_by == "fine-tuning":
        return "the rates are the configuration's: what was measured feeds the checks alone"
    if before.likely_edge is None or after.likely_edge is None:
        if before.likely_edge is after.likely_edge:
            return ""
        had = words.rate(before.likely_edge)
        told = "measuring told what the configuration could not"
        return told if before.likely_edge is None else f"the configuration had said E {had}"
    factor = after.likely_edge / before.likely_edge
    cause = _cause(seed, factor)
    if max(factor, 1 / factor) < _SAME:
        return f"{cause} left the edge where the configuration puts it"
    verb, by = ("raised", factor) if factor > 1 else ("lowered", 1 / factor)
    turned = f", from {before.verdict} to {after.verdict}" * (before.verdict != after.verdict)
    return f"{cause} {verb} the edge by a factor of {by:.2g}{turned}"


def _cause(seed: SeedReport, factor: float) -> str:
    """Name the first gradient where nothing else moved: a built model may differ in more."""
    found = definite(seed.risk).contributions
    moved = [part.decades for part in found if part.feature == _GRADIENT]
    is_all = moved and abs(moved[0] - math.log10(factor)) < math.log10(_SAME)
    return "the first gradient" if is_all else "measuring"


def measured_line(seed: SeedReport) -> tuple[str, ...]:
    """Return what was measured, each beside its usual range, in two lengths; empty for nothing.

    The range holds 98 of 100 labelled models.
    """
    known = load_edge_model().measured_ranges
    parts = []
    for long, brief, name, value, of in _quantities(seed):
        if value is None or name not in known:
            continue
        low, high = sorted(of(end) for end in known[name])
        usual = f"{short(low, 2)} – {short(high, 2)}"
        parts.append([f"{word} {short(value, 2)} ({usual})" for word in (long, brief)])
    return tuple("measured: " + ", ".join(forms) for forms in zip(*parts, strict=True))


def _quantities(seed: SeedReport) -> Iterator[tuple]:
    """Yield name, short name, feature, value, and what turns the feature into the value."""
    radius = seed.spectra.aggregates.get("spectral_radius", {}).get("mean")
    power = lambda feature: 10.0**feature
    yield "near-unit mass", "M≈1", "near_unit_mass", seed.spectra.published_score, float
    yield "spectral radius", "ρ", "spectral_radius", radius, power
    if (seen := seed.response) is not None:
        yield "gradient norm", "gradient", "grad_norm", seen.grad_norm, power
        inverse = lambda feature: 10.0**-feature
        yield "critical rate", "critical", "critical_rate", seen.critical_rate, inverse
