"""Gather the evidence about one target: what no recipe changes, and what its first update does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rksp.assessment.evidence import Evidence, first_step
from rksp.features import Tier
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.optimizers.table import optimizer_spec
from rksp.options import MeasureOptions
from rksp.recipe import Recipe

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from rksp.measure.response import ResponseProfile
    from rksp.models.source import ModelSource
    from rksp.models.streaming.meter import Progress


def gather(
    source: ModelSource,
    options: MeasureOptions | None = None,
    *,
    progress: Progress = lambda done, total, label: None,
) -> Evidence:
    """Gather everything that does not depend on the recipe: build and measure one initialization.

    With `evidence="config"` only the configuration is read.

    Args:
        source: The target.
        options: How to measure it.
        progress: Called at the start of each step and as it proceeds; see `Progress`.

    Returns:
        The evidence.

    Raises:
        InputError: An option, the probe or the model cannot be used, or a target without a
            configuration is not to be measured.
    """
    options = options or MeasureOptions()
    if options.evidence != "config":
        from rksp.assessment.measuring import measured

        return measured(source, options, progress)
    if source.config is None:
        raise InputError(
            f"{source.target} has no configuration; leave out --evidence config to measure it."
        )
    seedless = options.model_copy(update={"seed": 0})  # a configuration has no seed
    return Evidence(source=source, options=seedless, tier=Tier.CONFIG)


def response_of(evidence: Evidence, recipe: Recipe, progress: Progress) -> ResponseProfile | None:
    """Return the response to the recipe's first update; recipes that agree on it share it."""
    if evidence.tier < Tier.RESPONSE or not definite(evidence.probe).batch.is_judged:
        return None
    if optimizer_spec(recipe.optimizer).make is None:
        return None  # rksp can check this recipe, but not take its steps
    step = first_step(recipe)
    if step not in evidence.responses:
        from rksp.assessment.measuring import measured_response

        evidence.responses[step] = measured_response(evidence, step, progress)
    return evidence.responses[step]
