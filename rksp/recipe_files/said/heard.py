"""Fill what nobody decided about a recipe with what a model and its batch show."""

from __future__ import annotations

from collections.abc import Mapping

from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import Origin, OriginKind

_UNUSED = Origin(kind=OriginKind.UNASKED, text="no effect: the model reads images")
_COMPARED = ("precision", "peft")  # a batch of another size is no contradiction


def heard(
    recipe: Recipe, origins: Mapping[str, Origin], shown: Mapping[str, object], shown_by: str
) -> tuple[Recipe, dict[str, Origin], list[str]]:
    """Complete a recipe with what a model source shows of it.

    Args:
        recipe: The recipe as far as it was said.
        origins: Field → its origin, for every field.
        shown: Field → value, as `rksp.models.source.ModelSource.shown`.
        shown_by: What shows it, as `ModelSource.shown_by`.

    Returns:
        The recipe, its origins, and a sentence for each contradiction; there the recipe counts.
    """
    found = {name: value for name, value in shown.items() if _is_undecided(name, origins[name])}
    notes = [
        f"The module shows {name} {shown[name]}, but the recipe says {getattr(recipe, name)}; "
        "the recipe was judged."
        for name in _COMPARED
        if name in shown and name not in found and getattr(recipe, name) != shown[name]
    ]
    if not found:
        return recipe, dict(origins), notes
    told = {
        name: Origin(kind=OriginKind.FLAG, text=shown_by) if value is not None else _UNUSED
        for name, value in found.items()
    }
    known = {name: value for name, value in found.items() if value is not None}
    complete = Recipe.parse(recipe.model_dump(exclude_unset=True) | known)
    return complete, {**origins, **told}, notes


def _is_undecided(name: str, origin: Origin) -> bool:
    """Tell whether a field has a default of its own; a batch per device is half decided."""
    return origin.kind is OriginKind.UNASKED or origin.assumes == (name,)
