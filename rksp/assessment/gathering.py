"""Gather the evidence about one target: what no recipe changes, and what its first update does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rksp.assessment.evidence import Evidence
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.spectra.features import Tier

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from rksp.assessment.store import MeasurementStore
    from rksp.ground.model import Progress
    from rksp.measure.shown import ResponseProfile
    from rksp.models.source import ModelSource


def gather(
    source: ModelSource,
    options: MeasureOptions | None = None,
    *,
    store: MeasurementStore | None = None,
    progress: Progress = lambda done, total, label: None,
) -> Evidence:
    """Gather everything that does not depend on the recipe: build and measure one initialization.

    With `evidence="config"` only the configuration is read.

    Args:
        source: The target.
        options: How to measure it.
        store: Where an earlier measurement may be, and where this one is kept.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evidence.

    Raises:
        InputError: An option, the probe or the model cannot be used, or a target without a
            configuration is not to be measured.
    """
    options = options or MeasureOptions()
    if options.evidence != "config":
        found = None if store is None else stored(source, options, store)
        if found is not None:
            return found
        from rksp.assessment.measuring import measured

        evidence = measured(source, options, store, progress)
        evidence.keep()
        return evidence
    if source.config is None:
        raise InputError(
            f"{source.target} has no configuration; leave out --evidence config to measure it."
        )
    seedless = options.model_copy(update={"seed": 0})  # a configuration has no seed
    return Evidence(source=source, options=seedless, tier=Tier.CONFIG)


def known(
    source: ModelSource, options: MeasureOptions, recipe: Recipe, store: MeasurementStore | None
) -> Evidence | None:
    """Return evidence that judges a recipe without a measurement; None if there is none."""
    if options.evidence == "config":
        return gather(source, options)
    found = None if store is None else stored(source, options, store)
    return found if found is not None and found.has_response(recipe) else None


def stored(
    source: ModelSource, options: MeasureOptions, store: MeasurementStore
) -> Evidence | None:
    """Return the evidence of an earlier measurement, without torch; None if there is none."""
    start = time.perf_counter()
    found = store.find(source, options)
    if found is None:
        return None
    return Evidence(
        source=replace(source, **found.source),
        options=options,
        tier=found.tier,
        measurement=found,
        store=store,
        seconds={"read what was stored": time.perf_counter() - start},
    )


def response_of(evidence: Evidence, recipe: Recipe, progress: Progress) -> ResponseProfile | None:
    """Return the gradient or the response; recipes that agree on the first step share it."""
    if not evidence.responds_to(recipe):
        return None
    step = evidence.step_of(recipe)
    if step not in evidence.responses:
        from rksp.assessment.measuring import measured_response

        evidence.responses[step] = measured_response(evidence, step, progress)
        evidence.keep()
    return evidence.responses[step]
