"""The origin of each field of a recipe, and the result of reading a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

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
class Unread:
    """A setting of the file that rksp does not read, and that may matter.

    Attributes:
        key: Its dotted key.
        line: Its line, if the format has lines.
        nearest: The known key that may have been meant; empty if none is near.
        why: How it changes the run, where rksp knows the key but does not model it.
    """

    key: str
    line: int | None = None
    nearest: str = ""
    why: str = ""

    def __str__(self) -> str:
        place = self.key if self.line is None else f"{self.key}, line {self.line},"
        if self.why:
            return f"{place} is not modelled: {self.why}"
        hint = f": did you mean {self.nearest}?" if self.nearest else ""
        return f"{place} is not read{hint}"


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
        feedback: What preferences and rewards are trained with, by name: beta, kl_coefficient,
            reference_model, generations, clip_range, policy_passes; empty for other objectives.
        unread: Settings that may matter and that rksp does not read.
    """

    path: Path
    trainer: str
    fields: tuple[RecipeField, ...]
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
    feedback: Mapping[str, object] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()

    def field(self, name: str) -> RecipeField:
        """Return the field of this name."""
        return next(f for f in self.fields if f.name == name)

    def origins(self) -> dict[str, Origin]:
        """Return field → origin, for every field of the recipe."""
        return {f.name: f.origin for f in self.fields}

    def recipe(self) -> Recipe:
        """Return the recipe that was read.

        Raises:
            InputError: A value of the file is out of range.
        """
        said = {f.name: self._said(f) for f in self.fields}
        return Recipe.parse({f.name: f.value for f in self.fields}, said)

    def _said(self, field: RecipeField) -> str:
        """Return the origin of a field for messages: the option, or the file, line and keys."""
        if field.origin.kind is OriginKind.FLAG:
            return field.origin.text
        place = f"{self.path}:{field.origin.line}" if field.origin.line else str(self.path)
        keys = " and ".join(field.origin.keys) or field.name
        return f"{place}: {keys} (recipe field {field.name})"
