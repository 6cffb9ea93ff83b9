"""Define which ladders to train: a plan file, and the ladders it expands to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from lab.tasks.tasks import TASKS
from lab.zoo import FAMILIES
from rksp.ground.errors import InputError, nearest
from rksp.ground.model import Strict
from rksp.recipe import Optimizer, Recipe

# Fields of a recipe when the first ladders were stored. A later field enters a ladder's name only
# if it is not at its default, so that a new field renames no stored ladder.
_FIRST_FIELDS = frozenset(
    (
        *("optimizer", "learning_rate", "schedule", "warmup_steps", "max_steps", "min_lr_ratio"),
        *("adam_beta1", "adam_beta2", "adam_epsilon", "momentum", "weight_decay"),
        *("max_grad_norm", "batch_size", "sequence_length", "gradient_accumulation_steps"),
        "precision",
    )
)


MOST_LADDERS = 100_000  # of one plan
_Count = Annotated[int, Field(ge=1, le=2**20)]
_Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Counts = Annotated[list[_Count], Field(min_length=1)]


class RateLadder(Strict):
    """The rates of a ladder: `count` of them, `step` decades apart from `first_rate` up."""

    first_rate: float = Field(gt=0, allow_inf_nan=False)
    count: int = Field(default=8, ge=2, le=1000)
    step: float = Field(default=0.5, gt=0, le=10)

    @property
    def rates(self) -> list[float]:
        """The starting rates, ascending, rounded to six digits so that they print exactly."""
        return [float(f"{self.first_rate * 10 ** (self.step * k):.6g}") for k in range(self.count)]


class LadderSpec(RateLadder):
    """Everything that the runs of one ladder share, and the rates it starts from.

    A ladder is one model, task, seed and recipe at several rates. `interventions` are lines such as
    `kss:weight=0.1`, in the order in which they act; a ladder without them is named as if the field
    did not exist.
    """

    family: str
    shape: dict[str, bool | int | float | str | None]
    task: str
    task_options: dict[str, int] = {}
    recipe: Recipe
    seed: int
    interventions: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Hash of the content, under which the ladder is stored."""
        content = self.model_dump(mode="json")
        usual = Recipe().model_dump(mode="json")
        content["recipe"] = {
            name: value
            for name, value in content["recipe"].items()
            if name in _FIRST_FIELDS or value != usual[name]
        }
        if not self.interventions:
            del content["interventions"]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_values(base: Mapping[str, Any], values: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Return fields of a `LadderSpec` with values set; `recipe.batch_size` reaches into a field."""
    fields: dict[str, Any] = {
        name: dict(v) if isinstance(v, Mapping) else v for name, v in base.items()
    }
    for name, value in values:
        outer, _, inner = name.partition(".")
        fields[outer] = {**(fields.get(outer) or {}), inner: value} if inner else value
    return fields


class Plan(Strict):
    """A random design, stratified over families: each family gets its share of the ladders.

    `families` maps a family to its weight. The other fields are the values to draw from,
    uniformly. One of the `budgets` bounds parameters-in-blocks × tokens × steps of a run; a draw
    above it is drawn again. `tasks` maps a task to its weight (encoders and vision models have
    their own), and `task_options` maps a task to options that replace the drawn ones. Rates start
    near `first_rates[optimizer]`.
    """

    name: str
    seed: int = 0
    ladders: int = Field(ge=1, le=MOST_LADDERS)
    families: dict[str, _Weight] = Field(min_length=1)
    tasks: dict[str, _Weight] = Field(min_length=1)
    task_options: dict[str, dict[str, _Count]] = {}
    widths: _Counts = [32, 48, 64, 96, 128, 256]
    depths: _Counts = [2, 3, 4, 6, 8, 12, 24]
    batch_sizes: _Counts = [4, 8, 16]
    sequence_lengths: _Counts = [16, 32, 64]
    steps: _Counts = [80, 120, 200]
    optimizers: dict[Optimizer, _Weight] = Field(default={"adamw": 1.0}, min_length=1)
    first_rates: dict[Optimizer, _Weight] = {"adamw": 1e-4}
    budgets: Annotated[list[_Weight], Field(min_length=1)] = [4e9]

    @model_validator(mode="after")
    def _names_are_known(self) -> Plan:
        for given, known in ((self.families, FAMILIES), (self.tasks, TASKS)):
            for name in given:
                if name not in known:
                    raise ValueError(f"unknown name {name!r}{nearest(name, known)}")
        missing = sorted(set(self.optimizers) - set(self.first_rates))
        if missing:
            raise ValueError(f"first_rates has no rate for {missing[0]}")
        return self

    def expand(self) -> list[LadderSpec]:
        """Return the ladders of the plan.

        The same plan gives the same ladders, and a longer plan begins with those of a shorter one.
        """
        share = np.array(list(self.families.values())) / sum(self.families.values())
        given = np.zeros(len(share))
        specs = []
        for index in range(self.ladders):
            # The family furthest behind its share goes next, so every prefix is stratified.
            chosen = int(np.argmax(share * (index + 1) - given))
            given[chosen] += 1
            specs.append(self._draw(list(self.families)[chosen], index))
        return specs

    def _draw(self, family: str, index: int) -> LadderSpec:
        rng = np.random.default_rng((self.seed, index))
        budget = float(_one(rng, self.budgets))
        for _ in range(_DRAWS):
            spec = self._candidate(rng, family, index)
            shape: Mapping[str, Any] = spec.shape
            width, depth = shape["hidden_size"], shape["num_hidden_layers"]
            recipe = spec.recipe
            tokens = recipe.batch_size * recipe.sequence_length * recipe.max_steps
            if _COST.get(family, 1.0) * 12 * depth * width**2 * tokens <= budget:
                return spec
        raise InputError(
            f"The plan {self.name!r} has no run of {family} within the budget {budget:.2g}; raise "
            "budgets, or allow fewer steps or smaller shapes."
        )

    def _candidate(self, rng: np.random.Generator, family: str, index: int) -> LadderSpec:
        task = {"vit": "digits", "bert": "masked_bytes"}.get(family) or _weighted(rng, self.tasks)
        length = 16 if task == "digits" else int(_one(rng, self.sequence_lengths))
        width, steps = int(_one(rng, self.widths)), int(_one(rng, self.steps))
        optimizer = _weighted(rng, self.optimizers)
        vocab = {"synthetic": 512, "bpe": 1024}.get(task, 256)
        options = {} if task == "digits" else {"length": length}
        if task == "synthetic":
            options["vocab"] = vocab
        options |= self.task_options.get(task, {})
        length, vocab = options.get("length", length), options.get("vocab", vocab)
        shape = {
            "hidden_size": width,
            "num_hidden_layers": int(_one(rng, self.depths)),
            "num_attention_heads": max(2, width // int(_one(rng, [8, 16, 32]))),
            "vocab_size": vocab,
            "max_position_embeddings": length,
            "init_std": float(f"{10 ** rng.uniform(-2.3, -1.0):.3g}"),
            "init_scheme": str(_one(rng, ["normal", "normal", "normal", "fan_in", "torch"])),
            "scale_residual_init": bool(rng.random() < 0.3),
            "tie_word_embeddings": bool(rng.random() < 0.3),
            "activation": str(_one(rng, ["gelu", "swiglu"])),
            "bias": bool(rng.random() < 0.5),
            "num_experts": 4,
            "num_experts_per_tok": int(_one(rng, [1, 2])),
            "router_aux_loss_coef": float(_one(rng, [0.0, 0.01])),
        }
        recipe = Recipe(
            optimizer=optimizer,
            schedule=str(_one(rng, ["constant", "cosine", "linear"])),
            warmup_steps=int(_one(rng, [0, 0, 0.05, 0.1, 0.25]) * steps),
            max_steps=steps,
            adam_beta1=float(_one(rng, [0.9, 0.9, 0.95])),
            adam_beta2=float(_one(rng, [0.95, 0.99, 0.999])),
            adam_epsilon=float(_one(rng, [1e-8, 1e-8, 1e-6])),
            weight_decay=float(_one(rng, [0.0, 0.0, 0.1])),
            max_grad_norm=[None, 1.0, 1.0, 0.5][int(rng.integers(4))],
            batch_size=int(_one(rng, self.batch_sizes)),
            sequence_length=length,
        )
        return LadderSpec(
            family=family,
            shape=shape,
            task=task,
            task_options=options,
            recipe=recipe,
            seed=index,
            first_rate=float(f"{self.first_rates[optimizer] * 10 ** rng.uniform(-0.25, 0.25):.4g}"),
        )


_DRAWS = 10_000  # per ladder, before the budget is reported as infeasible
# Measured cost of a training step relative to a dense transformer of the same shape.
_COST = {"zoo_moe": 3.0, "zoo_kan": 5.0, "mamba": 10.0, "mixtral": 2.0, "qwen3_moe": 2.0}


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """Draw what `rng.choice` draws; it makes an array of its options each time."""
    return options[int(rng.integers(len(options)))]


def _weighted(rng: np.random.Generator, weights: dict[str, float]) -> str:
    share = np.array(list(weights.values()))
    return str(rng.choice(list(weights), p=share / share.sum()))
