"""The names of columns: what a tracker's export, an axis of a sweep or a parameter sets."""

from __future__ import annotations

import re
from functools import lru_cache

from rksp.ground.flags import field_of
from rksp.recipe import Recipe
from rksp.recipe_files.table.names import optimizer_of, precision_of, schedule_of

_WEIGHTS = "model_name_or_path"  # Hugging Face's scripts load the weights that it names
_TARGETS = ("target", "model", _WEIGHTS)
_PREFIXES = ("config.", "config/", "params.", "params_", "hparams.", "recipe.")
_UNIT = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*$")
# Sections of nested settings that hold a recipe: a name below them means what it means alone.
_SECTIONS = re.compile(r"optim|sched|train|hyper_?param|^args$|^data")
_KINDS = ("name", "type", "class_path", "_target_")  # below them, what the section itself names


def without_unit(name: str) -> str:
    """Return a column's name without the unit behind it: `loss (nats)`, `lr [1/step]`."""
    return _UNIT.sub("", name.strip())


@lru_cache(maxsize=4096)
def canonical(name: str) -> tuple[str, str]:
    """Return what an axis varies, as a pair of kind and name.

    The pair is `("recipe", field)`, `("target", "")`, `("seed", "")` or `("set", setting)`.
    The names of `Recipe`'s fields, their usual short forms and the prefixes of exports
    (`config.lr`, `params_lr`) are known. `set.X` and every other name is a setting of the model.
    """
    plain = without_unit(name).lstrip("+")
    if plain.startswith("set."):
        return "set", plain.removeprefix("set.")
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    plain = plain.replace("-", "_")
    if plain in _TARGETS:
        return "target", ""
    if plain == "seed":
        return "seed", ""
    *sections, last = plain.lower().replace(" ", "_").split(".")
    if sections and last in _KINDS:
        *sections, last = sections
    field = field_of(Recipe, last)
    if field in Recipe.model_fields and all(_SECTIONS.search(part) for part in sections):
        return "recipe", field
    return "set", plain


def names_weights(name: str) -> bool:
    """Tell whether an axis names the weights that a run starts from, and not only its model."""
    plain = name.strip().lstrip("+").replace("-", "_")
    return canonical(name)[0] == "target" and plain.rsplit(".", 1)[-1].endswith(_WEIGHTS)


def in_our_words(field: str, value: object) -> object:
    """Translate names of optimizers, schedules and precisions; leave unknown ones alone."""
    if field == "optimizer":
        return optimizer_of(str(value))[0] or value
    if field == "schedule":
        return schedule_of(str(value))[0] or value
    if field == "precision":
        return precision_of(str(value)) or value
    return value
