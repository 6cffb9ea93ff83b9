"""The recipe of a command line: flags, or a trainer's file with flags in place of its values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rksp.errors import InputError
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.recipe_files.origin import Origin

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
_RUN_FILES = (".yaml", ".yml", ".toml", ".py", ".sh", ".bash", ".slurm", ".sbatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be scored: the target, settings of it that the file changes, the recipe.

    `origins` says for every field of the recipe where it comes from.
    """

    target: str
    overrides: Mapping[str, object]
    recipe: Recipe
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Field → file and line, for those that a file says outright or that follow from it."""
        return {
            name: (origin.file, origin.line)
            for name, origin in self.origins.items()
            if origin.file is not None and origin.line is not None and not origin.assumes
        }


def asked_for(
    context: typer.Context,
    target: str,
    file: Path | None,
    devices: int | None,
    as_format: str | None = None,
) -> Asked:
    """Reads the flags, and a file if there is one: `--recipe`, or the target itself.

    What is typed wins over the file, and the file over `.rksp.toml` and the options' defaults.
    What was assumed is said in one line on stderr.

    Args:
        context: Of the command, for what was typed.
        target: As typed.
        file: Of `--recipe`.
        devices: Of `--devices`.
        as_format: Of `--as`: the trainer whose format the file has; default recognized.

    Raises:
        InputError: The file cannot be read, describes no model where one is needed, or a value
            cannot be used.
    """
    from rksp.recipe_files.assumptions import assumed_line

    is_target = file is None and (_is_run_file(target) or (as_format and Path(target).is_file()))
    asked = (
        _from_file(context, target, file, devices, as_format, is_target=bool(is_target))
        if file is not None or is_target
        else _from_flags(context, target, devices, as_format)
    )
    line = assumed_line(asked.recipe, asked.origins)
    if line:
        print(f"rksp: {line}", file=sys.stderr)
    return asked


def _from_flags(
    context: typer.Context, target: str, devices: int | None, as_format: str | None
) -> Asked:
    from rksp.recipe_files.assumptions import flag_of, origins_of_flags

    for value, name in ((devices, "--devices"), (as_format, "--as")):
        if value is not None:
            raise InputError(f"{name} is for a recipe file; give --recipe FILE.")
    recipe = Recipe.parse(_flags(context, _FLAGS))
    typed = {
        name: flag_of(name) if source in ("COMMANDLINE", "ENVIRONMENT") else ".rksp.toml"
        for name in _FLAGS
        if (source := _source(context, name)) in ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")
    }
    return Asked(
        target=target, overrides={}, recipe=recipe, origins=origins_of_flags(recipe, typed)
    )


def _from_file(
    context: typer.Context,
    target: str,
    file: Path | None,
    devices: int | None,
    as_format: str | None,
    *,
    is_target: bool,
) -> Asked:
    from rksp.recipe_files.registry import read_recipe_file

    typed = [name for name in _FLAGS if _source(context, name) in ("COMMANDLINE", "ENVIRONMENT")]
    read = read_recipe_file(
        Path(target) if is_target else file,
        trainer=as_format,
        devices=devices,
        given=_flags(context, typed),
    )
    recipe = read.recipe()
    for note in read.notes:
        print(f"rksp: {note}", file=sys.stderr)
    if not is_target:
        return Asked(target=target, overrides={}, recipe=recipe, origins=read.origins())
    if read.target is None:
        raise InputError(f"{target}: {read.target_missing}")
    for note in read.target.notes:
        print(f"rksp: {note}", file=sys.stderr)
    return Asked(
        target=read.target.name,
        overrides=read.target.overrides,
        recipe=recipe,
        origins=read.origins(),
    )


def _is_run_file(target: str) -> bool:
    """Whether a target is a trainer's file; JSON may also be a model's configuration.

    A pickle of training arguments counts, so that it is refused with the way out.
    """
    path = Path(target.partition("::")[0])
    if not path.is_file():
        return False
    if path.name == "training_args.bin":
        return True
    if path.suffix != ".json":
        return path.suffix in _RUN_FILES
    from rksp.recipe_files.document import load_document
    from rksp.recipe_files.registry import matches_any

    document = load_document(path)
    return not document.has("model_type") and matches_any(document)


def _source(context: typer.Context, name: str) -> str:
    return getattr(context.get_parameter_source(_FLAGS[name]), "name", "")


def _flags(context: typer.Context, fields) -> dict[str, object]:
    found = {field: context.params[_FLAGS[field]] for field in fields}
    if "max_grad_norm" in found:
        found["max_grad_norm"] = found["max_grad_norm"] or None  # 0 is off
    return found
