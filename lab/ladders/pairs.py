"""Define paired designs: every lever against the unchanged model, with equal seed and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lab.ladders.plan import LadderSpec, with_values
from rksp.ground.errors import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderPair:
    """Two ladders that differ in one lever.

    Attributes:
        model: Name of the model in the plan.
        lever: Name of the lever in the plan.
        plain: The ladder without the lever.
        changed: The ladder with it.
    """

    model: str
    lever: str
    plain: LadderSpec
    changed: LadderSpec


class LadderPairs(BaseModel):
    """Levers × models × seeds.

    Attributes:
        name: Name of the plan.
        base: Fields of `LadderSpec` that all ladders share.
        models: By name, the values that make a model; `recipe.batch_size` reaches into a field.
        levers: By name, the values that a lever sets in a model's ladder.
        seeds: Seeds of the initialization and the batches; both ladders of a pair have the same.
        skip: By lever, the models that it does not fit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    base: dict[str, object]
    models: Annotated[dict[str, dict[str, object]], Field(min_length=1)]
    levers: dict[str, dict[str, object]]
    seeds: Annotated[list[int], Field(min_length=1)] = [1]
    skip: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _names_are_known(self) -> LadderPairs:
        for lever, models in self.skip.items():
            if lever not in self.levers:
                raise ValueError(f"unknown lever {lever!r}{nearest(lever, self.levers)}")
            for model in models:
                if model not in self.models:
                    raise ValueError(f"unknown model {model!r}{nearest(model, self.models)}")
        return self

    def expand(self) -> list[LadderSpec]:
        """Return the ladders, each once: with the first seed, every model with all its levers."""
        found: dict[str, LadderSpec] = {}
        for seed in self.seeds:
            for model in self.models:
                changed = [self.changed(model, lever, seed) for lever in self._levers_of(model)]
                for spec in (self.plain(model, seed), *changed):
                    found.setdefault(spec.id, spec)
        return list(found.values())

    def pairs(self) -> Iterator[LadderPair]:
        """Yield every pair; a lever that a model has already makes none."""
        for seed in self.seeds:
            for model in self.models:
                plain = self.plain(model, seed)
                for lever in self._levers_of(model):
                    changed = self.changed(model, lever, seed)
                    if changed.id != plain.id:
                        yield LadderPair(model=model, lever=lever, plain=plain, changed=changed)

    def plain(self, model: str, seed: int) -> LadderSpec:
        """Return the ladder of a model without a lever."""
        values = {**self.models[model], "seed": seed}
        return LadderSpec.model_validate(with_values(self.base, values.items()))

    def changed(self, model: str, lever: str, seed: int) -> LadderSpec:
        """Return the ladder of a model with a lever."""
        fields = self.plain(model, seed).model_dump(exclude_unset=True)
        return LadderSpec.model_validate(with_values(fields, self.levers[lever].items()))

    def _levers_of(self, model: str) -> list[str]:
        return [lever for lever in self.levers if model not in self.skip.get(lever, ())]
