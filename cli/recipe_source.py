"""The recipe of a command line: flags, or a trainer's file with flags in place of its values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import typer

from rksp.errors import InputError
from rksp.factory import refuse_factory
from rksp.recipe import Recipe
from rksp.text import one_line

# Field of the recipe → parameter of the command.
_FLAGS = {
    "learning_rate": "lr",
    "optimizer": "optimizer",
    "warmup_steps": "warmup_steps",
    "max_steps": "max_steps",
    "schedule": "schedule",
    "batch_size": "batch_size",
    "sequence_length": "sequence_length",
    "max_grad_norm": "clip",
    "weight_decay": "weight_decay",
    "adam_beta2": "beta2",
    "adam_epsilon": "epsilon",
    "precision": "precision",
}
_RUN_FILES = (".yaml", ".yml", ".toml", ".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be scored: the target, settings of it that the file changes, the recipe.

    `places` says in which file, at which line, a field of the recipe stands.
    """

    target: str
    overrides: Mapping[str, object]
    recipe: Recipe
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def asked_for(context: typer.Context, target: str, file: Path | None, devices: int | None) -> Asked:
    """Reads the flags, and a file if there is one: `--recipe`, or the target itself.

    What is typed wins over the file, and the file over `.rksp.toml` and the options' defaults.

    Raises:
        InputError: The file cannot be read, describes no model where one is needed, or a value
            cannot be used.
    """
    is_target = file is None and _is_run_file(Path(target))
    if file is None and not is_target:
        if devices is not None:
            raise InputError("--devices is for batches of a recipe file; give --recipe FILE.")
        return Asked(target=target, overrides={}, recipe=Recipe.parse(_flags(context, _FLAGS)))
    from rksp.recipe_files.registry import read_recipe_file

    read = read_recipe_file(Path(target) if is_target else file, devices=devices)
    typed = [
        field
        for field, name in _FLAGS.items()
        if getattr(context.get_parameter_source(name), "name", "") in ("COMMANDLINE", "ENVIRONMENT")
    ]
    recipe = read.recipe(_flags(context, typed))
    for note in read.notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)
    places = {
        found.name: (read.path.as_posix(), found.line)
        for found in read.fields
        if found.line is not None and found.name not in typed
    }
    if not is_target:
        return Asked(target=target, overrides={}, recipe=recipe, places=places)
    if read.target is None:
        raise InputError(f"{target}: {read.target_missing}")
    for note in read.target.notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)
    model = read.target
    refuse_factory(model.name, target)
    return Asked(target=model.name, overrides=model.overrides, recipe=recipe, places=places)


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


def _flags(context: typer.Context, fields) -> dict[str, object]:
    found = {field: context.params[_FLAGS[field]] for field in fields}
    if "max_grad_norm" in found:
        found["max_grad_norm"] = found["max_grad_norm"] or None  # 0 is off
    return found
