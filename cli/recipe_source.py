"""The recipe of a command line: flags, or a trainer's file with flags in place of its values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rksp.cli.options import Given, flag_names
from rksp.errors import InputError
from rksp.factory import refuse_factory
from rksp.recipe import Recipe
from rksp.text import one_line

_RUN_FILES = (".yaml", ".yml", ".toml", ".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """What is to be scored: the target, settings of it that the file changes, the recipe.

    `places` says in which file, at which line, a field of the recipe stands.
    """

    target: str
    overrides: Mapping[str, object]
    recipe: Recipe
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def requested_run(
    target: str, given: Given[Recipe], file: Path | None, devices: int | None
) -> RequestedRun:
    """Read the flags, and a file if there is one: `--recipe`, or the target itself.

    What is typed wins over the file, and the file over `.rksp.toml` and the options' defaults.

    Raises:
        InputError: The file cannot be read, describes no model where one is needed, or a value
            cannot be used.
    """
    flags = flag_names(Recipe)
    is_target = file is None and _is_run_file(Path(target))
    if file is None and not is_target:
        if devices is not None:
            raise InputError("--devices is for batches of a recipe file; give --recipe FILE.")
        return RequestedRun(target=target, overrides={}, recipe=Recipe.parse(given.values, flags))
    from rksp.recipe_files.registry import read_recipe_file

    read = read_recipe_file(Path(target) if is_target else file, devices=devices)
    typed = {name: given.values[name] for name in given.typed}
    recipe = read.recipe(typed, flags)
    for note in read.notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)
    places = {
        found.name: (read.path.as_posix(), found.line)
        for found in read.fields
        if found.line is not None and found.name not in typed
    }
    if not is_target:
        return RequestedRun(target=target, overrides={}, recipe=recipe, places=places)
    if read.target is None:
        raise InputError(f"{target}: {read.target_missing}")
    for note in read.target.notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)
    model = read.target
    refuse_factory(model.name, target)
    return RequestedRun(target=model.name, overrides=model.overrides, recipe=recipe, places=places)


def _is_run_file(path: Path) -> bool:
    """Whether a target is a trainer's file; JSON may also be a model's configuration."""
    try:
        if not path.is_file():
            return False
    except OSError:  # a name that no file system takes: said when the target is resolved
        return False
    if path.suffix != ".json":
        return path.suffix in _RUN_FILES
    from rksp.recipe_files.document import load_document
    from rksp.recipe_files.registry import READERS

    document = load_document(path)
    return not document.has("model_type") and any(r.matches(document) for r in READERS)
