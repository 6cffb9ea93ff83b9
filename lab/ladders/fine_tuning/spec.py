"""Define a ladder of fine-tuning: a base model, a new task, and how it is trained."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field

from lab.ladders.fine_tuning.base_model import BaseSpec
from lab.ladders.plan import RateLadder
from lab.tasks.domain_tasks import make_domain_task
from lab.tasks.domains import Part
from lab.tasks.tasks import Task
from rksp.ground.files import digest
from rksp.recipe import Recipe

Method = Literal["all", "lora"]
Options = dict[str, int | str | None]  # of a task


class FineTuningSpec(RateLadder):
    """Everything that the runs of one ladder of fine-tuning share.

    `task` and `task_options` are the new task's. With `fresh_head` the model predicts the new
    task's classes with a head that was not trained before. The recipe says whether all weights or
    adapters are trained.
    """

    base: BaseSpec
    task: str
    task_options: Options = Field(default_factory=dict)
    fresh_head: bool = False
    recipe: Recipe
    seed: int

    @property
    def id(self) -> str:
        """Hash of the content, under which the ladder is stored."""
        content = self.model_dump(mode="json", exclude={"recipe", "base"})
        content["recipe"] = self.recipe.model_dump(mode="json", exclude_defaults=True)
        content["base"] = self.base.id
        return digest(json.dumps(content, sort_keys=True))

    @property
    def family(self) -> str:
        """Family of the base model."""
        return self.base.family

    @property
    def method(self) -> Method:
        """What is trained: all weights, or adapters."""
        return "all" if self.recipe.peft == "none" else "lora"

    def new_task(self, part: Part) -> Task:
        """Return one part of the new task; only its training part is limited to examples."""
        return make_domain_task(self.task, part=part, **self.task_options)
