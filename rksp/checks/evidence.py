"""The evidence for checks: all measurements in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from rksp.checks.facts import ModelFacts
from rksp.documents.shown import NO_GRADIENT, NO_PASS, ForwardStats, GradientProfile, Placement
from rksp.models.declared import Declared
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.recipe.start import SCRATCH, Start

_REFERENCE_RATE = 6e-4  # Brown et al., 2020, Table 2.1: 125M parameters
_REFERENCE_SIZE = 125e6
_SLOPE = -0.32  # of log rate on log size, from 125M at 6e-4 to 175B at 0.6e-4
# Step Law (arXiv 2503.04715), our fit of the edge to 61 of its ladders: logarithms of the
# intercept, the slope on non-embedding parameters and the slope on tokens a step.
_EDGE, _EDGE_ON_SIZE, _EDGE_ON_TOKENS = 1.52, -0.39, -0.02
_SWEPT_SIZE = 134e6  # non-embedding parameters of the Marin sweep's smallest models


def published_rate(parameters: float) -> float:
    """Return AdamW's peak learning rate in GPT-3's recipe for a model of this size."""
    return float(_REFERENCE_RATE * (parameters / _REFERENCE_SIZE) ** _SLOPE)


def swept_edge(optimizer: str, block_parameters: float) -> float | None:
    """Return an optimizer's edge in the Marin sweep, extrapolated in size as AdamW's edge is.

    It is the geometric mean of the last passing and the first failing rate; None without failures.
    """
    known = optimizer_spec(optimizer).rates
    if known.passing is None or known.failing is None:
        return None
    middle = math.sqrt(known.passing * known.failing)
    return float(middle * (block_parameters / _SWEPT_SIZE) ** _EDGE_ON_SIZE)


_BOUNDLESS_CLIP = 100.0  # a larger bound does not clip any healthy gradient


class Need(StrEnum):
    """What a check needs besides the recipe, in the words of the report."""

    CONFIG = "the model's configuration"
    SIZE = "the model's size"
    MODULES = "the model's modules"
    WEIGHTS = "the model's weights"
    FORWARD = "a forward pass"
    GRADIENT = "a backward pass"
    ANSWER = "the classifier's likely edge"


@dataclass(frozen=True, kw_only=True)
class CheckEvidence:
    """One configuration and what is known about it; checks ignore what is None.

    Attributes:
        recipe: The training recipe.
        config: Hugging Face configuration, the mapping of a `config.json`, or any object with its
            settings.
        task: What the model predicts, as in `rksp.models.source.Task`.
        facts: Facts of the built model.
        placement: Where the blocks normalize, as read off the module.
        forward: Statistics of the forward pass over the probe; all None where there was none.
        gradient: The first gradient; all None where none was measured.
        start_here: The learning rate with the lowest expected loss.
        do_not_exceed: The learning rate below which few edges lie.
        likely_edge: Learning rate above which failure is likelier than success.
        highest_published: The highest rate of published runs, where they alone answer.
        unknown: Fields that the run gives and nobody can tell, and `devices` if a batch needs them.
        start: The weights that the run starts from; of trained ones no check reads the
            initialization.
        reads_tokens: The model reads tokens, so that rates of language models can be compared.
        declared: What the configuration declares, if it was read before.
    """

    recipe: Recipe
    config: object | None = None
    task: str | None = None
    facts: ModelFacts | None = None
    placement: Placement | None = None
    forward: ForwardStats = NO_PASS
    gradient: GradientProfile = NO_GRADIENT
    start_here: float | None = None
    do_not_exceed: float | None = None
    likely_edge: float | None = None
    highest_published: float | None = None
    unknown: frozenset[str] = frozenset()
    start: Start = SCRATCH
    reads_tokens: bool = True
    declared: Declared | None = field(default=None, repr=False, compare=False)

    @cached_property
    def held(self) -> frozenset[Need]:
        """What the evidence holds of what checks need."""
        held = {
            Need.CONFIG: self.config is not None,
            Need.SIZE: self.parameters is not None,
            Need.MODULES: self.facts is not None,
            Need.WEIGHTS: self.facts is not None and self.facts.input_std is not None,
            Need.FORWARD: self.forward != NO_PASS,
            Need.GRADIENT: self.gradient != NO_GRADIENT,
            Need.ANSWER: self.likely_edge is not None,
        }
        return frozenset(need for need, is_held in held.items() if is_held)

    @cached_property
    def but_for_rate(self) -> tuple[object, ...]:
        """All that checks may read but rates, in a form that evidence can be compared by."""
        return self.held, self.recipe.but_for_rate

    @cached_property
    def settings(self) -> Declared:
        """What the configuration declares."""
        return self.declared or Declared(self.config, self.task)

    @cached_property
    def parameters(self) -> float | None:
        """All parameters: counted in the built model, else computed from the configuration."""
        if self.facts is not None:
            return float(self.facts.parameters)
        return None if self.settings.shape is None else self.settings.shape.parameters

    @cached_property
    def active_parameters(self) -> float | None:
        """Parameters that one token uses, without those of unused experts."""
        shape, total = self.settings.shape, self.parameters
        if shape is None or total is None or not self.settings.experts:
            return total
        return total * shape.active_parameters / shape.parameters

    @cached_property
    def block_parameters(self) -> float | None:
        """Active parameters without embedding and output layer, if those are known."""
        shape, active = self.settings.shape, self.active_parameters
        if shape is None or active is None:
            return active
        ends = shape.parameters - shape.block_parameters
        return max(active - ends, active / 10)

    @property
    def depth(self) -> int | None:
        """Number of blocks."""
        if self.facts is not None:
            return self.facts.depth
        return None if self.settings.shape is None else self.settings.shape.depth

    @property
    def bounds_attention(self) -> bool:
        """True if queries and keys are normalized, or attention logits are capped."""
        measured = self.facts is not None and self.facts.qk_norms > 0
        measured |= self.placement is not None and self.placement.kind.get("normalizes_qk", False)
        settings = self.settings
        return measured or settings.normalizes_qk or settings.soft_cap is not None

    @property
    def in_fp16(self) -> bool:
        """True if the arithmetic is fp16, in whatever precision the parameters are kept."""
        return self.recipe.precision.startswith("fp16")

    @cached_property
    def has_adam(self) -> bool:
        """True if the update is normalized by a second moment, with an epsilon."""
        return optimizer_spec(self.recipe.optimizer).follow_adam == "all"

    @property
    def is_clipped(self) -> bool:
        """True if the gradient's norm has a bound that has an effect."""
        bound = self.recipe.max_grad_norm
        return bound is not None and bound <= _BOUNDLESS_CLIP

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.recipe.batch_size * self.recipe.sequence_length

    @cached_property
    def rate_over_published(self) -> float | None:
        """The learning rate divided by GPT-3's at this size.

        The reference is 6e-4 · (active parameters / 125M)^-0.32, a straight line in logarithms
        through the ends of Brown et al., 2020, Table 2.1. It is a convention, not a limit. None
        without a rate or a size, for fine-tuning, under μP, without tokens, and for optimizers
        unlike Adam.
        """
        rate, size = self.recipe.learning_rate, self.active_parameters
        is_comparable = optimizer_spec(self.recipe.optimizer).rates.over_adamw == 1.0
        is_comparable &= self.reads_tokens
        if rate is None or not size or not self.start.is_scratch or not is_comparable:
            return None
        return None if self.settings.scales_rates_by_width else rate / published_rate(size)

    @cached_property
    def public_edge(self) -> float | None:
        """AdamW's edge in public ladders for pre-norm models; None where it does not apply."""
        size = self.block_parameters
        if self.rate_over_published is None or not size:
            return None
        return 10 ** (
            _EDGE + _EDGE_ON_SIZE * math.log10(size) + _EDGE_ON_TOKENS * math.log10(self.tokens)
        )
