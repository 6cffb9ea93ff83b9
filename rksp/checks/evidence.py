"""What the checks look at: everything that was measured, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksp.checks.facts import ModelFacts
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import Recipe

if TYPE_CHECKING:  # a list of checks must not load torch
    from rksp.measure.forward import ForwardStats
    from rksp.measure.response import ResponseProfile

_REFERENCE_RATE = 6e-4  # Brown et al., 2020, Table 2.1: 125M parameters
_REFERENCE_SIZE = 125e6
_SLOPE = -0.32  # of log rate on log size, from 125M at 6e-4 to 175B at 0.6e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEvidence:
    """One configuration and what is known about it; a check is silent about what is None.

    Attributes:
        recipe: How it is to be trained.
        config: Hugging Face configuration, or any object with its settings.
        facts: Of the built model.
        forward: Of the pass over the probe.
        response: To the first update.
        safe_learning_rate: Largest rate whose upper bound of the risk is acceptable.
        likely_edge: Rate at which failure becomes likelier than not.
        is_pretrained: The weights were trained before; checks of the initialization are silent.
    """

    recipe: Recipe
    config: object | None = None
    facts: ModelFacts | None = None
    forward: ForwardStats | None = None
    response: ResponseProfile | None = None
    safe_learning_rate: float | None = None
    likely_edge: float | None = None
    is_pretrained: bool = False

    def setting(self, *names: str) -> object | None:
        """The first of these settings that the configuration or its text part has."""
        for part in (self.config, getattr(self.config, "text_config", None)):
            for name in names:
                try:
                    value = getattr(part, name, None)
                except RuntimeError:  # transformers: it differs by layer
                    continue
                if value is not None:
                    return value
        return None

    def number(self, *names: str) -> float | None:
        """The first of these settings if it is one number; lists by layer are left out."""
        value = self.setting(*names)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def declared_width(self) -> float | None:
        """Of the residual stream, as the configuration says."""
        return self.number("hidden_size", "n_embd", "d_model")

    @property
    def experts(self) -> float | None:
        """Experts that a router chooses from; None in a dense model."""
        return self.number(
            "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
        )

    @property
    def in_fp16(self) -> bool:
        """Whether the arithmetic is that of fp16, whatever the parameters are kept in."""
        return self.recipe.precision.startswith("fp16")

    @property
    def has_adam(self) -> bool:
        """Whether the update is normalized by a second moment, with an epsilon."""
        return optimizer_spec(self.recipe.optimizer).follow_adam == "all"

    @property
    def rate_over_published(self) -> float | None:
        """The learning rate over what GPT-3 used at this size.

        The rate is 6e-4 · (parameters / 125M)^-0.32, a straight line in logarithms through the ends
        of Brown et al., 2020, Table 2.1. It is a habit, not a limit: Marin's 8B ran well at six
        times it, and OLMo 2 with QK-norm at seven. Of a mixture all experts count, which makes
        the line low. None without a rate, for weights that were
        trained before, and for optimizers other than AdamW.
        """
        rate = self.recipe.learning_rate
        if rate is None or self.facts is None or self.is_pretrained or not self.has_adam:
            return None
        return rate / published_rate(self.facts.parameters)


def published_rate(parameters: int) -> float:
    """AdamW's peak learning rate in GPT-3's recipe for a model of this size."""
    return _REFERENCE_RATE * (parameters / _REFERENCE_SIZE) ** _SLOPE
