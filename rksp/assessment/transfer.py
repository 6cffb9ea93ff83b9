"""Measure what the first steps of two models say of the shift between their edges."""

from __future__ import annotations

from collections.abc import Mapping

from rksp.assessment.evidence import Evidence
from rksp.assessment.gathering import gather, response_of
from rksp.ground.model import Progress, definite
from rksp.models.source import ModelSource
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.features import extract


def measured_pair(
    small: tuple[ModelSource, Recipe],
    large: tuple[ModelSource, Recipe],
    options: MeasureOptions | None = None,
    progress: Progress = lambda done, total, label: None,
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the features of two models at a learning rate of 1, by name.

    One model under two recipes is measured once.

    Args:
        small: The model and the recipe that a rate is tuned for.
        large: Those to carry it to.
        options: How both are measured.
        progress: See `Progress`.
    """
    gathered: dict[tuple[str, str | None], Evidence] = {}  # two recipes may share one model

    def features(source: ModelSource, recipe: Recipe) -> Mapping[str, float]:
        named = lambda done, total, label: progress(done, total, f"{source.target}: {label}")
        model = (source.target, source.config_hash)
        if model not in gathered:
            gathered[model] = gather(source, options, progress=named)
        evidence = gathered[model]
        response = response_of(evidence, recipe, named)
        return extract(
            definite(evidence.profile).forward, definite(evidence.profile).spectra, response
        ).values

    return features(*small), features(*large)
