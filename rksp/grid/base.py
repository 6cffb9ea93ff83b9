"""The base of a grid (a target, a recipe or a run file) and the cells made from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rksp.grid.cell import Cell
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe import Recipe, in_steps
from rksp.recipe_files.columns import canonical, in_our_words, names_weights
from rksp.recipe_files.parse.document import Document, Unresolved
from rksp.recipe_files.said.assumptions import assumptions
from rksp.run import origins_of_flags

Point = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The values that every cell starts from: a target, its settings, a recipe or a run file."""

    target: str | None = None
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict)
    recipe: Mapping[str, object] = dataclasses.field(default_factory=dict)
    document: Document | None = None
    devices: int | None = None
    trainer: str | None = None
    seed: int = 0

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the run file that a reader should see."""
        if self.document is None:
            return ()
        from rksp.recipe_files.registry import read_document

        read = read_document(self.document, devices=self.devices, trainer=self.trainer)
        spoken = read.target.notes if read.target is not None and self.target is None else ()
        return (*read.notes, *spoken)


def make_cell(base: Base, point: Point, source: str) -> Cell:
    """Make one cell from the base and the values of a point.

    Args:
        base: The values that do not vary.
        point: Values by the names that the user gave.
        source: The name of the grid, for messages.

    Raises:
        InputError: There is no model, or a value cannot be used.
    """
    target, seed, starts_trained = base.target, base.seed, False
    overrides = dict(base.overrides)
    fields = {canonical(name)[1] or name: value for name, value in base.recipe.items()}
    data = base.document.data if base.document is not None else None
    for name, value in point.items():
        kind, key = canonical(name)
        if data is not None and definite(base.document).has(name):
            data = _placed(data, name, value)
        elif kind == "target":
            target, starts_trained = str(value), starts_trained or names_weights(name)
        elif kind == "seed":
            seed = seed_of(value)
        elif kind == "recipe":
            fields[key] = in_our_words(key, value)
        else:
            overrides[key] = value
    if fields.get("max_grad_norm") == 0:
        fields["max_grad_norm"] = None
    if data is not None:
        from rksp.recipe_files.registry import read_document  # every trainer's files

        document = dataclasses.replace(definite(base.document), data=data)
        plain = read_document(document, devices=base.devices, trainer=base.trainer)
        fields = in_steps(fields, plain.field("max_steps").value)
        read = read_document(
            definite(document), devices=base.devices, trainer=base.trainer, given=fields
        )
        if target is None and read.target is not None:
            target, overrides = read.target.name, dict(read.target.overrides) | overrides
        if target is None:
            raise InputError(f"{source}: {read.target_missing}")
        recipe, origins = read.recipe(), read.origins()
        starts_trained = starts_trained or read.starts_trained
    else:
        recipe = Recipe.parse(fields)
        origins = None
    if target is None:
        raise InputError(f"{source} names no model; give --target or an axis called target.")
    return Cell(
        target=target,
        overrides=overrides,
        seed=seed,
        recipe=recipe,
        starts_trained=starts_trained,
        labels=dict(point),
        assumed=assumptions(dict(recipe), origins)
        if origins
        else _assumed(recipe, frozenset(fields)),
    )


def _assumed(recipe: Recipe, typed: frozenset[str]) -> Mapping[str, str]:
    """Return what the fields that were not typed assume; cells share most of it."""
    follow = recipe.model_fields_set - typed  # such as steps that a share of the run gives
    rest = tuple((name, getattr(recipe, name)) for name in sorted(follow))
    return _assumptions(typed, rest, recipe.optimizer, recipe.schedule)


@lru_cache(maxsize=1024)
def _assumptions(
    typed: frozenset[str], rest: tuple[tuple[str, Any], ...], optimizer: str, schedule: str
) -> Mapping[str, str]:
    known = {**dict(rest), "optimizer": optimizer, "schedule": schedule}
    recipe = Recipe.model_construct(**known)
    origins = origins_of_flags(recipe, dict.fromkeys(typed, "the grid"))
    return assumptions(dict(recipe), origins)


def seed_of(value: object) -> int:
    """Return a grid's value as a seed.

    Raises:
        InputError: The value is not a whole number of at least 0.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InputError(f"A seed is {value!r}; give a whole number of at least 0.")


def _placed(data: Mapping[str, object], name: str, value: object) -> Mapping[str, object]:
    """Return the settings with the value at one dotted name replaced."""
    first, _, rest = name.partition(".")
    actual = next(k for k in data if str(k).replace("-", "_") == first.replace("-", "_"))
    if not rest:
        return {**data, actual: value}
    inner = data[actual]
    assert isinstance(inner, Mapping) and not isinstance(inner, Unresolved)
    return {**data, actual: _placed(inner, rest, value)}
