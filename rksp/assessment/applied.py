"""Apply levers: to the recipe where it has a field for them, else to the model of the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rksp.assessment.model_choice import choose_model
from rksp.assessment.risk import edge_inputs
from rksp.classifiers.edge_model import EdgePredictor, load_edge_model
from rksp.classifiers.levers.catalogue import find_lever
from rksp.classifiers.levers.effects import LeverSize, LeverTable, load_lever_table
from rksp.classifiers.levers.lever import Lever, kind_of
from rksp.classifiers.levers.shifted import Shift, ShiftedEdgeModel
from rksp.ground.errors import InputError
from rksp.ground.flags import flags_of
from rksp.ground.option_lines import split_line
from rksp.models.declared import Declared
from rksp.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Levers that were asked for, in a recipe and in a model of the edge.

    Attributes:
        recipe: The recipe with them.
        model: The model of the edge with the shifts of those that it has no column for.
        said: By changed field of the recipe, the lever as it was typed.
    """

    recipe: Recipe
    model: EdgePredictor
    said: dict[str, str]


def apply_levers(
    asked: Sequence[str],
    declared: Declared,
    recipe: Recipe,
    *,
    is_pretrained: bool,
    model: EdgePredictor | None = None,
    table: LeverTable | None = None,
) -> Applied:
    """Apply levers in the order in which they were asked for.

    Args:
        asked: Names, or names with a value: `qk_norm`, `warmup=500`.
        declared: The model.
        recipe: The recipe.
        is_pretrained: The weights were trained before.
        model: The model of the edge; default the shipped one.
        table: Sizes of the levers; default the shipped ones.

    Raises:
        InputError: A lever is unknown, is on already, or has no measured size for this kind of
            model; a value cannot be used; or the run starts from trained weights.
    """
    if choose_model(recipe, is_pretrained=is_pretrained).model == "fine-tuning":
        raise InputError(
            "--apply needs a run from random weights: levers were not measured on trained ones; "
            "leave it out."
        )
    table, model = table or load_lever_table(), model or load_edge_model()
    sizes: list[LeverSize] = []
    said: dict[str, str] = {}
    names: list[str] = []
    inputs: dict[str, object] = {}
    for text in asked:
        name, options = split_line(text, noun="lever")
        lever, typed = find_lever(name), options.get("")
        if lever.name in names:
            raise InputError(f"--apply names {lever.name} twice; give it once.")
        names.append(lever.name)
        changed = _with_lever(lever, typed, declared, recipe)
        part = lever.changed(declared, recipe)
        if not part and _log_edge(model, changed) == _log_edge(model, recipe):
            sizes += _unmodelled(lever, typed, table, declared)
        inputs |= part
        if lever.field:
            said[lever.field] = f"--apply {text}"
        recipe = changed
    shifted = ShiftedEdgeModel(plain=model, shift=Shift.of(names, sizes, inputs))
    return Applied(recipe=recipe, model=shifted, said=said)


def _log_edge(model: EdgePredictor, recipe: Recipe) -> float:
    """Return the edge of some model: whether a change counts is the same for every one."""
    inputs = edge_inputs(recipe, width=512, depth=8, vocabulary=1024, norm="pre")
    return model.predict(inputs).log_edge


def _with_lever(lever: Lever, typed: str | None, declared: Declared, recipe: Recipe) -> Recipe:
    """Return the recipe with a lever, at the typed value or at the one that was measured."""
    if typed is not None and not lever.field:
        raise InputError(f"The lever {lever.name} takes no value; write {lever.name}.")
    if typed is not None:
        fields = recipe.model_dump(exclude_unset=True) | {lever.field: typed}
        return Recipe.parse(fields, {lever.field: f"--apply {lever.name}"})
    if (reason := lever.blocked(declared, recipe)) is not None:
        raise InputError(f"The lever {lever.name} does not apply: {reason}.")
    return lever.applied(declared, recipe)


def _unmodelled(
    lever: Lever, typed: str | None, table: LeverTable, declared: Declared
) -> list[LeverSize]:
    """Return the measured size of a lever that the model of the edge does not see.

    A lever that is held back changes the recipe alone, since its size is not to be relied on.
    """
    if lever.field and lever.held_back:
        return []
    if typed is not None:
        option = flags_of(Recipe)[lever.field].name
        raise InputError(
            f"The lever {lever.name} was measured at one value only; write --apply {lever.name}, "
            f"or change the recipe with {option} {typed}."
        )
    kind = kind_of(declared)
    size = table.size(kind, lever.name)
    if size is None or size.low is None:
        raise InputError(
            f"The lever {lever.name} was not measured in enough families of this kind of model "
            f"({kind or declared.task or 'no known kind'})."
        )
    return [size]
