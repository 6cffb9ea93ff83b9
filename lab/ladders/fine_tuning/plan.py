"""Define a plan of fine-tuning, and draw its ladders so that every prefix is stratified."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from lab.ladders.fine_tuning.base_model import BaseSpec
from lab.ladders.fine_tuning.spec import FineTuningSpec, Method
from lab.ladders.plan import MOST_LADDERS
from lab.tasks.domain_tasks import DOMAIN_TASKS, VOCABULARY
from lab.zoo import FAMILIES
from rksp.ground.errors import InputError, nearest
from rksp.ground.model import Strict
from rksp.recipe import Objective, Recipe

_DRAWS = 1000  # of one ladder, to find one within the budget
_PATCHES = 16  # of an image of the digits
# What one token costs beside its parameters, and one step beside its tokens, in the same unit.
_PER_TOKEN, _PER_STEP = 3e4, 4e7

_Count = Annotated[int, Field(ge=1, le=2**20)]
_Counts = Annotated[list[_Count], Field(min_length=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Options = dict[str, int | str | None]


class PlannedTask(Strict):
    """A task by name and options.

    With `fresh_head` the model gets a new head for it. `batch_sizes` replace those of the plan.
    """

    task: Literal[tuple(DOMAIN_TASKS)]  # type: ignore[valid-type]  # read from the table
    options: _Options = {}
    fresh_head: bool = False
    objective: Objective = "lm"
    batch_sizes: _Counts | None = None


class BaseTraining(Strict):
    """How the base models of one width are trained."""

    steps: _Count
    learning_rate: _Positive


class Kind(Strict):
    """A kind of model: what its members learn first, and what they are tuned on then.

    `training` replaces the plan's training of base models.
    """

    old: PlannedTask
    training: BaseTraining | None = None
    new: Annotated[list[PlannedTask], Field(min_length=1)]


class Pretrained(Strict):
    """The members of a family: their widths, and the modules that carry adapters.

    `attention` are the modules of the usual few adapters, and `linear` those of adapters on every
    linear layer. `depth` replaces the plan's; an encoder and its decoder have half of it each, and
    at least one layer.
    """

    kind: str
    widths: _Counts
    attention: Annotated[list[str], Field(min_length=1)]
    linear: Annotated[list[str], Field(min_length=1)]
    tie_word_embeddings: bool = False
    depth: _Count | None = None


class FineTuningPlan(Strict):
    """A random design of ladders of fine-tuning, balanced over families, methods and tasks.

    Families take turns. Within a family methods alternate, widths follow, and tasks, ranks, alphas
    and targets are shuffled cycles. The rest is drawn uniformly. `budget` bounds
    steps × (tokens × (parameters in blocks + 3e4) + 4e7) of a run, which is about its processor
    time; a draw above it is drawn again.
    """

    name: str
    seed: int = 0
    ladders: int = Field(ge=1, le=MOST_LADDERS)
    pretrained: dict[str, Pretrained] = Field(min_length=1)
    kinds: dict[str, Kind] = Field(min_length=1)
    bases: dict[int, BaseTraining] = Field(min_length=1)
    base_recipe: dict[str, object] = {}
    depth: _Count = 3
    head_width: _Count = 16
    methods: Annotated[list[Method], Field(min_length=1)] = ["all", "lora"]
    first_rates: dict[Method, _Positive] = {"all": 3e-5, "lora": 1e-4}
    step: _Positive = 0.43
    count: int = Field(default=8, ge=2, le=100)
    ranks: _Counts = [2, 8, 32]
    alphas: Annotated[list[_Positive], Field(min_length=1)] = [8.0, 32.0]
    batch_sizes: _Counts = [4, 16]
    sequence_lengths: _Counts = [32, 64]
    steps: _Counts = [50, 100, 200]
    epochs: _Counts = [1, 4]
    budget: _Positive = 5e10

    @model_validator(mode="after")
    def _names_are_known(self) -> FineTuningPlan:
        for family, member in self.pretrained.items():
            if family not in FAMILIES:
                raise ValueError(f"unknown family {family!r}{nearest(family, FAMILIES)}")
            if member.kind not in self.kinds:
                raise ValueError(f"unknown kind {member.kind!r}{nearest(member.kind, self.kinds)}")
            for width in member.widths:
                if width not in self.bases:
                    raise ValueError(f"bases says nothing of width {width}")
        return self

    def expand(self) -> list[FineTuningSpec]:
        """Return the ladders; a longer plan begins with those of a shorter one."""
        return [self._ladder(index) for index in range(self.ladders)]

    def base(self, family: str, width: int) -> BaseSpec:
        """Return the base model of a family and width."""
        member = self.pretrained[family]
        kind = self.kinds[member.kind]
        old, training = kind.old, kind.training or self.bases[width]
        longest = max(self.sequence_lengths)
        return BaseSpec(
            family=family,
            shape={
                "hidden_size": width,
                "num_hidden_layers": member.depth or self.depth,
                "num_attention_heads": width // self.head_width,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": longest,
                "tie_word_embeddings": member.tie_word_embeddings,
            },
            task=old.task,
            task_options=old.options | self._length(old, longest),
            recipe=Recipe(
                objective=old.objective,
                max_steps=training.steps,
                learning_rate=training.learning_rate,
                warmup_steps=training.steps // 10,
                sequence_length=self._tokens(old, longest),
                **self.base_recipe,
            ),
            seed=self.seed,
        )

    def _ladder(self, index: int) -> FineTuningSpec:
        families = list(self.pretrained)
        turn, place = divmod(index, len(families))
        family = families[place]
        member = self.pretrained[family]
        visit, choice = divmod(turn, len(self.methods))
        # Shifted by the family, so that one turn has every method.
        method = self.methods[(choice + place) % len(self.methods)]
        width = member.widths[visit % len(member.widths)]
        tasks = self.kinds[member.kind].new
        cycle = (self.seed, place, self.methods.index(method))
        task = tasks[_turn_of(len(tasks), visit, (*cycle, 0))]
        adapters = list(itertools.product(self.ranks, self.alphas, ("attention", "linear")))
        rank, alpha, where = adapters[_turn_of(len(adapters), visit, (*cycle, 1))]
        lora = {
            "peft": "lora",
            "lora_rank": rank,
            "lora_alpha": alpha,
            "lora_targets": tuple(getattr(member, where)),
        }
        rng = np.random.default_rng((self.seed, index))
        recipe, length, epochs = self._recipe(rng, width, task)
        examples = max(8, recipe.max_steps * recipe.batch_size // epochs)
        return FineTuningSpec(
            base=self.base(family, width),
            task=task.task,
            task_options=task.options | self._length(task, length) | {"examples": examples},
            fresh_head=task.fresh_head,
            recipe=recipe.model_copy(update=lora if method == "lora" else {}),
            seed=index,
            first_rate=self.first_rates[method],
            count=self.count,
            step=self.step,
        )

    def _recipe(
        self, rng: np.random.Generator, width: int, task: PlannedTask
    ) -> tuple[Recipe, int, int]:
        for _ in range(_DRAWS):
            steps = int(rng.choice(self.steps))
            length = int(rng.choice(self.sequence_lengths))
            recipe = Recipe(
                objective=task.objective,
                schedule=str(rng.choice(["linear", "linear", "cosine", "constant"])),
                min_lr_ratio=0.0,
                warmup_steps=int(rng.choice([0, 0.1]) * steps),
                max_steps=steps,
                adam_beta2=float(rng.choice([0.999, 0.999, 0.99])),
                weight_decay=float(rng.choice([0.0, 0.01, 0.1])),
                max_grad_norm=[1.0, 1.0, None][int(rng.integers(3))],
                batch_size=int(rng.choice(task.batch_sizes or self.batch_sizes)),
                sequence_length=self._tokens(task, length),
            )
            epochs = int(rng.choice(self.epochs))
            tokens = recipe.batch_size * recipe.sequence_length
            cost = steps * (tokens * (12 * self.depth * width**2 + _PER_TOKEN) + _PER_STEP)
            if cost <= self.budget:
                return recipe, length, epochs
        raise InputError(
            f"The plan {self.name!r} has no run of width {width} within the budget "
            f"{self.budget:.2g}; raise it, or allow fewer steps."
        )

    @staticmethod
    def _length(task: PlannedTask, length: int) -> _Options:
        return {} if task.task == "digit_views" else {"length": length}

    @staticmethod
    def _tokens(task: PlannedTask, length: int) -> int:
        return _PATCHES if task.task == "digit_views" else length


def _turn_of(count: int, turn: int, seed: tuple[int, ...]) -> int:
    """Return which of `count` things has its turn; each cycle is shuffled anew."""
    cycle, place = divmod(turn, count)
    return int(np.random.default_rng((*seed, cycle)).permutation(count)[place])
