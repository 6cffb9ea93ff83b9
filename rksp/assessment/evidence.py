"""The evidence about one target, which several recipes can share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rksp.documents.options import MeasureOptions
from rksp.ground.model import definite
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.start import Start, decide_start
from rksp.spectra.features import Tier

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from torch import nn

    from rksp.assessment.measurement import Measurement
    from rksp.assessment.store import MeasurementStore
    from rksp.checks.facts import ModelFacts
    from rksp.checks.registry import Sight
    from rksp.datasets.probe import Probe
    from rksp.documents.shown import GradientProfile
    from rksp.models.source import ModelSource
    from rksp.models.streaming.stream import Stream
    from rksp.spectra.model_profile import Profile


NOTHING_RAN = "the evidence is the configuration; nothing was run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model as initialized, which every measurement leaves unchanged.

    Attributes:
        source: The target with what only a built model shows.
        model: The model.
        probe: Its inputs.
        stream: The stream that fed the model, closed after the forward pass, if it was streamed.
    """

    source: ModelSource
    model: nn.Module
    probe: Probe
    stream: Stream | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one initialization; it can judge any number of recipes.

    With the tier `config` nothing was built or run, and there is no measurement.

    Attributes:
        source: The target.
        options: How it was measured; `seed` is that of the initialization.
        tier: The most evidence that a recipe may use, at most what the options allow.
        measurement: What was measured of it; its gradients grow with the recipes.
        built: The model and its inputs; None until something is to be measured.
        store: Where measurements are kept; None keeps none.
        seconds: Wall time of each step.
        gradients: What is trained (from `trained_part`) → its first gradient, as measured so far.
        declared: What the configuration declares.
        seen: What checks that read no rate saw of this model and its recipes; see `run_checks`.
    """

    source: ModelSource
    options: MeasureOptions
    tier: Tier
    measurement: Measurement | None = None
    built: Built | None = None
    store: MeasurementStore | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    declared: Declared = field(init=False, repr=False, compare=False)
    gradients: dict[Recipe, GradientProfile] = field(default_factory=dict)
    seen: dict[Hashable, tuple[Sight, ...]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Read the configuration once for all recipes."""
        object.__setattr__(self, "declared", Declared(self.source.config, self.source.task))
        if self.measurement is not None:
            self.gradients.update(self.measurement.gradients)

    @property
    def profile(self) -> Profile | None:
        """Spectra and forward statistics."""
        return None if self.measurement is None else self.measurement.profile

    @property
    def facts(self) -> ModelFacts | None:
        """What the checks read off the model."""
        return None if self.measurement is None else self.measurement.facts

    def start_of(self, recipe: Recipe) -> Start:
        """Return how a run with this recipe starts; a module that predicts well was trained."""
        start = self.source.start
        if self.profile is None or self.source.kind != "module":
            return decide_start(start, recipe=recipe)
        seen = self.profile.forward
        return decide_start(start, recipe=recipe, loss=seen.loss, guess=seen.uniform_loss)

    @property
    def reads_tokens(self) -> bool:
        """Whether the model reads tokens, as far as its batch or configuration shows."""
        if self.source.batch is None:
            return self.source.shown.get("sequence_length", 0) is not None
        from rksp.models.given import tokens_of

        return tokens_of(self.source.batch.inputs) is not None

    def has_gradient(self, recipe: Recipe) -> bool:
        """Return whether there is a gradient: the model has a loss, and rksp can take the step."""
        if self.tier < Tier.GRADIENT or not definite(self.measurement).is_judged:
            return False
        return recipe.can_be_stepped

    def is_whole(self, recipe: Recipe) -> bool:
        """Return whether nothing is left to measure for a recipe."""
        return not self.has_gradient(recipe) or trained_part(recipe) in self.gradients

    def kept(self) -> Measurement:
        """Return the measurement with all gradients so far."""
        return replace(definite(self.measurement), gradients=dict(self.gradients))

    def keep(self) -> None:
        """Store the measurement, if there is a store."""
        if self.store is not None:
            self.store.keep(self.source, self.options, self.kept())


def trained_part(recipe: Recipe) -> Recipe:
    """Reduce a recipe to what its first gradient depends on: the adapters, if it has them."""
    names = ["peft", "lora_rank", "lora_alpha", "lora_targets"] if recipe.peft != "none" else []
    return Recipe(**{name: getattr(recipe, name) for name in names})
