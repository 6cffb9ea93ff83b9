"""The evidence about one target, which several recipes can share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rksp.features import Tier
from rksp.models.declared import Declared
from rksp.optimizers.table import optimizer_spec
from rksp.options import MeasureOptions
from rksp.recipe import Recipe

if TYPE_CHECKING:  # a configuration is judged without what measures a model
    from torch import nn

    from rksp.checks.facts import ModelFacts
    from rksp.datasets.probe import Probe
    from rksp.measure.response import ResponseProfile
    from rksp.models.source import ModelSource
    from rksp.models.streaming.stream import Stream
    from rksp.spectra.model_profile import Profile

_LEARNED = 0.5  # nats below a uniform guess; random weights lie at it or above
NOTHING_RAN = "the evidence is the configuration; nothing was run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one initialization; it can judge any number of recipes.

    With the tier `config` nothing was built or run, and all measurements are None.

    Attributes:
        source: The target.
        options: How it was measured; `seed` is that of the initialization.
        tier: The most evidence that a recipe may use, at most what the options allow.
        model: The model as initialized; every measurement leaves it unchanged.
        probe: The model's inputs.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        weights: How the weights were held, as a sentence.
        seconds: Wall time of each step.
        stream: The stream that fed the model, now closed, if it was streamed.
        responses: First step (from `first_step`) → what was measured along it so far.
        declared: What the configuration declares.
    """

    source: ModelSource
    options: MeasureOptions
    tier: Tier
    model: nn.Module | None = None
    probe: Probe | None = None
    profile: Profile | None = None
    facts: ModelFacts | None = None
    weights: str = "not built"
    seconds: dict[str, float] = field(default_factory=dict)
    stream: Stream | None = None
    declared: Declared = field(init=False, repr=False, compare=False)
    responses: dict[Recipe, ResponseProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the configuration once for all recipes."""
        object.__setattr__(self, "declared", Declared(self.source.config, self.source.task))

    @property
    def is_trained(self) -> bool:
        """Whether the weights were trained before: they are stored, or a module predicts well."""
        if self.source.holds_trained:
            return True
        if self.profile is None or self.source.kind != "module":
            return False
        loss, guess = self.profile.forward.loss, self.profile.forward.uniform_loss
        return loss is not None and guess is not None and loss < guess - _LEARNED

    @property
    def reads_tokens(self) -> bool:
        """Whether the model reads tokens, as far as its own batch shows."""
        if self.source.batch is None:
            return True
        from rksp.models.given_loss import tokens_of

        return tokens_of(self.source.batch.inputs) is not None


def first_step(recipe: Recipe) -> Recipe:
    """Reduce a recipe to what its first update depends on; everything else is the default.

    Recipes that agree here share one `ResponseProfile`. Its algebra is linear in the rate, and the
    schedule, the batch and the length of the run matter only later.
    """
    names = ["optimizer", *optimizer_spec(recipe.optimizer).first_step]
    if recipe.peft != "none":  # the update is one of the adapters
        names += ["peft", "lora_rank", "lora_alpha", "lora_targets"]
    return Recipe(**{name: getattr(recipe, name) for name in names})
