"""The recipe of a command line: options, or a trainer's file that options override."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.cli.options import Given, flag_names
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.factory import refuse_factory
from rksp.ground.text import one_line
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.models.source import ModelSource
    from rksp.recipe_files.said.origin import Origin

_RUN_FILES = (".yaml", ".yml", ".toml", ".py", ".ipynb", ".sh", ".bash", ".slurm", ".sbatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """The run to score: the target, the settings that the file changes, and the recipe.

    `origins` holds the origin of every field of the recipe, `assumed` all assumptions in one line,
    `alternatives` the other recipes that the same input could mean, `file` the run file, and `keys`
    the key of its trainer for each field. `starts_trained` says that the file names weights to
    start from, `is_typed` that a person typed the target.
    """

    target: str
    overrides: Mapping[str, object]
    recipe: Recipe
    origins: Mapping[str, Origin] = field(default_factory=dict)
    assumed: str = ""
    alternatives: Sequence[tuple[str, Recipe]] = ()
    file: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    starts_trained: bool = False
    is_typed: bool = True

    def started(self, source: ModelSource) -> ModelSource:
        """Return the source of the target, which starts trained if the file says so."""
        return replace(source, starts_trained=source.starts_trained or self.starts_trained)

    def met(self, source: ModelSource) -> tuple[RequestedRun, ModelSource]:
        """Return the run with what its model shows of the recipe, and the source as `started`."""
        from rksp.recipe_files.said.assumptions import alternatives, assumed_line
        from rksp.recipe_files.said.heard import heard

        recipe, origins, notes = heard(self.recipe, self.origins, source.shown, source.shown_by)
        run = replace(
            self,
            recipe=recipe,
            origins=origins,
            assumed=assumed_line(recipe, origins),
            alternatives=alternatives(recipe, origins),
        )
        return run, replace(self.started(source), notes=(*source.notes, *notes))

    def changed(self, recipe: Recipe, said: Mapping[str, str]) -> RequestedRun:
        """Return the run with another recipe; `said` has the words behind each changed field."""
        from rksp.recipe_files.said.origin import Origin, OriginKind

        origins = {name: Origin(kind=OriginKind.FLAG, text=text) for name, text in said.items()}
        values = {name: getattr(recipe, name) for name in said}
        others = [(text, other.model_copy(update=values)) for text, other in self.alternatives]
        return replace(
            self, recipe=recipe, origins={**self.origins, **origins}, alternatives=others
        )


def requested_run(
    target: str,
    given: Given[Recipe],
    file: Path | None,
    devices: int | None,
    as_format: str | None = None,
) -> RequestedRun:
    """Read the flags, and a file if there is one: `--recipe`, or the target itself.

    Typed options override the file, and the file overrides rksp's defaults.

    Args:
        target: The typed target.
        given: The recipe's options.
        file: The value of `--recipe`.
        devices: The value of `--devices`.
        as_format: The value of `--as`; by default the trainer is recognized.

    Raises:
        InputError: The file cannot be read, describes no model where one is needed, or a value
            cannot be used.
    """
    from rksp.recipe_files.said.assumptions import alternatives, assumed_line

    with reading(f"the run file {one_line(str(file or target), 200)}"):
        is_target = file is None and (
            _is_run_file(target) or (as_format is not None and Path(target).is_file())
        )
        if file is None and not is_target:
            run = _from_flags(target, given, devices, as_format)
        else:
            run = _from_file(target, given, file, devices, as_format)
        return replace(
            run,
            assumed=assumed_line(run.recipe, run.origins),
            alternatives=alternatives(run.recipe, run.origins),
        )


def _from_flags(
    target: str, given: Given[Recipe], devices: int | None, as_format: str | None
) -> RequestedRun:
    from rksp.recipe_files.said.assumptions import origins_of_flags

    if devices is not None:
        raise InputError("--devices needs a run file; give --recipe FILE.")
    if as_format is not None:
        raise InputError("--as needs a run file; give --recipe FILE.")
    if "rows" in given.typed:
        raise InputError("--rows makes steps of a run file's epochs; give --recipe FILE.")
    flags = flag_names(Recipe)
    recipe = Recipe.parse(given.values, flags)
    origins = origins_of_flags(recipe, {name: flags.get(name, name) for name in given.typed})
    return RequestedRun(target=target, overrides={}, recipe=recipe, origins=origins)


def _from_file(
    target: str,
    given: Given[Recipe],
    file: Path | None,
    devices: int | None,
    as_format: str | None,
) -> RequestedRun:
    from rksp.recipe_files.registry import read_recipe_file

    read = read_recipe_file(
        file or Path(target),
        trainer=as_format,
        devices=devices,
        given={name: given.values[name] for name in given.typed},
    )
    run = RequestedRun(
        target=target,
        overrides={},
        recipe=read.recipe(),
        origins=read.origins(),
        file=read.path,
        keys=read.keys,
        starts_trained=read.starts_trained,
    )
    _say(read.notes)
    if file is not None:
        return run
    if read.target is None:
        raise InputError(f"{target}: {read.target_missing}")
    _say(read.target.notes)
    refuse_factory(read.target.name, target)
    return replace(run, target=read.target.name, overrides=read.target.overrides, is_typed=False)


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)


def _is_run_file(target: str) -> bool:
    """Return True if a target is a trainer's file; JSON may also be a model's configuration.

    A pickle of training arguments counts too, so that the error can say what to do.
    """
    path = Path(target.partition("::")[0])
    try:
        if not path.is_file():
            return False
    except (OSError, ValueError):  # a name that no file system takes: said when it is resolved
        return False
    if path.name == "training_args.bin":
        return True
    if path.suffix != ".json":
        return path.suffix in _RUN_FILES
    from rksp.recipe_files.parse.document import load_document
    from rksp.recipe_files.registry import matches_any

    document = load_document(path)
    return not document.has("model_type") and matches_any(document)
