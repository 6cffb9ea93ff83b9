"""The origin of each field of a recipe, and the result of reading a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe_files.parse.document import Document


class OriginKind(StrEnum):
    """The kinds of origin of a field."""

    FILE = "file"
    FLAG = "flag"
    COMPUTED = "computed"  # from several things that were all said
    TRAINER = "trainer"  # the file is silent, and this is what the trainer then does
    UNASKED = "unasked"  # something that a run has only if somebody asks for it, and nobody did
    ASSUMED = "assumed"  # nobody said, or it was computed from something that nobody said


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of one field.

    Attributes:
        kind: The kind of origin.
        text: One phrase: the keys, the option, the trainer's default, or the computation.
        file: The file, if it states the field.
        line: Line of the first key, counted from one.
        keys: Dotted keys of the file that were read.
        assumes: Assumptions behind the value: fields of the recipe, or `devices`.
    """

    kind: OriginKind
    text: str
    file: str | None = None
    line: int | None = None
    keys: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeField:
    """One field of the recipe, its value in rksp's units, and its origin."""

    name: str
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """The model that a file describes, in the words of `rksp.models.resolve.resolve`.

    Attributes:
        name: A model type, or the Hub id or path that the file names.
        overrides: Settings to change.
        notes: Differences from the file's model.
    """

    name: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """What was read from one configuration file.

    Attributes:
        path: The file.
        trainer: The trainer, with the version whose defaults were read.
        fields: Every field of the recipe, in the order of `Recipe`.
        problems: Field → why the file's value has no equivalent; such a field must be given.
        target: The model, if the file describes one that transformers knows.
        target_missing: Why there is no target.
        notes: Other notes for the user.
        understood: Number of the file's settings that were read.
        settings: Number of settings in the file.
        keys: Field -> the trainer's key that takes its value in rksp's units, where there is one.
        starts_trained: The run starts from weights that the file names, not only from an
            architecture.
        devices: Number of devices, where the file, its launcher or the user says it.
        reader: Name of the reader; empty for a draft that no reader finished.
        document: What was read; `deepspeed` the DeepSpeed file that it names, or holds.
    """

    path: Path
    trainer: str
    fields: tuple[RecipeField, ...]
    problems: Mapping[str, str]
    target: FileTarget | None
    target_missing: str
    notes: tuple[str, ...]
    understood: int
    settings: int
    keys: Mapping[str, str] = field(default_factory=dict)
    starts_trained: bool = False
    devices: int | None = None
    reader: str = ""
    document: Document | None = field(default=None, repr=False, compare=False)
    deepspeed: Document | None = field(default=None, repr=False, compare=False)

    def field(self, name: str) -> RecipeField:
        """Return the field of this name."""
        return next(f for f in self.fields if f.name == name)

    def origins(self) -> dict[str, Origin]:
        """Return field → origin, for every field of the recipe."""
        return {f.name: f.origin for f in self.fields}

    def recipe(self) -> Recipe:
        """Return the recipe that was read.

        Raises:
            InputError: A value of the file is out of range or has no equivalent in rksp.
        """
        for why in self.problems.values():
            raise InputError(f"{self.path}: {why}")
        said = {f.name: self._said(f) for f in self.fields}
        return Recipe.parse({f.name: f.value for f in self.fields}, said)

    def _said(self, field: RecipeField) -> str:
        """Return the origin of a field for messages: the option, or the file, line and keys."""
        if field.origin.kind is OriginKind.FLAG:
            return field.origin.text
        place = f"{self.path}:{field.origin.line}" if field.origin.line else str(self.path)
        keys = " and ".join(field.origin.keys) or field.name
        return f"{place}: {keys} (recipe field {field.name})"
