"""Ladders of fine-tuning that the lab trained once, and what each began from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from lab.ladders.ladder import POLICY
from lab.ladders.plan import RateLadder
from rksp.ground.files import digest
from rksp.ground.model import Strict
from rksp.own_runs.outcome import Curves, Ladder
from rksp.recipe import Recipe

Method = Literal["all", "lora"]
_MARGIN = 0.5  # nats below the label frequencies, from which a base model has learned


class BaseSpec(Strict):
    """What decided the weights of a base model."""

    family: str
    shape: dict[str, bool | int | float | str | None]
    task: str
    task_options: dict[str, int | str | None] = {}
    recipe: Recipe
    seed: int = 0

    @property
    def id(self) -> str:
        """Hash of the content: two ladders with the same one began from the same weights."""
        content = self.model_dump(mode="json", exclude={"recipe"})
        content["recipe"] = self.recipe.model_dump(mode="json", exclude_defaults=True)
        return digest(json.dumps(content, sort_keys=True))


class FineTuningSpec(RateLadder):
    """Everything that the runs of one ladder of fine-tuning share.

    `task` and `task_options` are the new task's. With `fresh_head` the model predicted the new
    task's classes with a head that was not trained before. The recipe says whether all weights or
    adapters were trained.
    """

    base: BaseSpec
    task: str
    task_options: dict[str, int | str | None] = {}
    fresh_head: bool = False
    recipe: Recipe
    seed: int

    @property
    def family(self) -> str:
        """Family of the base model."""
        return self.base.family

    @property
    def method(self) -> Method:
        """What was trained: all weights, or adapters."""
        return "all" if self.recipe.peft == "none" else "lora"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReport:
    """What a base model learned, in nats on held-out data of its own domain."""

    held_out: float
    trivial: float
    parameters: int

    @property
    def has_learned(self) -> bool:
        """Whether it beats the label frequencies by half a nat."""
        return self.held_out < self.trivial - _MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Mean loss, in nats, on held-out data of the new task and of the base model's own."""

    new: float
    old: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTunedLadder:
    """A trained ladder of fine-tuning.

    Attributes:
        id: Under which it is packed.
        spec: What was trained.
        base: What the base model had learned.
        trained_parameters: Number of parameters with a gradient.
        before: Held-out losses before the first step.
        measured: What was measured before the first step, by name; None where nothing was.
        rates: Ascending.
        curves: Training curves by rate.
        after: Held-out losses by rate.
    """

    id: str
    spec: FineTuningSpec
    base: BaseReport
    trained_parameters: int
    before: HeldOut
    measured: dict[str, float | None]
    rates: tuple[float, ...]
    curves: tuple[Curves, ...]
    after: tuple[HeldOut, ...]

    def judge(self) -> Ladder:
        """Label the runs by their training curves."""
        return POLICY.judge(self.rates, self.curves)
