"""Where each field of a recipe came from: a key of the file, the trainer's default, or rksp's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rksp.errors import InputError
from rksp.recipe import Recipe
from rksp.recipe_files.document import Document, Found, Unresolved


class Origin(StrEnum):
    """Who said so."""

    FILE = "file"
    TRAINER = "trainer"  # the file is silent, and this is what the trainer then does
    ASSUMED = "assumed"  # neither says: rksp's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeField:
    """One field of the recipe.

    Attributes:
        name: Field of `rksp.recipe.Recipe`.
        value: In rksp's units.
        origin: Who said so.
        keys: Dotted keys of the file that were read.
        line: Line of the first of them.
        note: How the value was converted, or what was assumed on the way.
    """

    name: str
    value: object
    origin: Origin
    keys: tuple[str, ...] = ()
    line: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """The model that a file describes, in the words of `rksp.models.resolve.resolve`.

    Attributes:
        name: A model type, or the Hub id or path that the file names.
        overrides: Settings to change.
        notes: What of the file's model this cannot express.
    """

    name: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """What was read from one configuration file.

    Attributes:
        path: The file.
        trainer: Whose format it is.
        fields: Every field of the recipe, in the order of `Recipe`.
        problems: Field → why the file's value has no equivalent; such a field must be given.
        target: The model, if the file describes one that transformers knows.
        target_missing: Why there is none.
        notes: What else the reader should know.
    """

    path: Path
    trainer: str
    fields: tuple[RecipeField, ...]
    problems: Mapping[str, str]
    target: FileTarget | None
    target_missing: str
    notes: tuple[str, ...]

    def field(self, name: str) -> RecipeField:
        """The field of this name."""
        return next(f for f in self.fields if f.name == name)

    def recipe(
        self,
        overrides: Mapping[str, object] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> Recipe:
        """The recipe, with `overrides` in place of what the file says.

        Args:
            overrides: Values by field.
            sources: How the user said an override, for messages: `--clip`.

        Raises:
            InputError: A value of the file is out of range or has no equivalent in rksp.
        """
        overrides = dict(overrides or {})
        for name, why in self.problems.items():
            if name not in overrides:
                raise InputError(f"{self.path}: {why}")
        read = {f.name: f.value for f in self.fields}
        said = dict(sources or {}) | {
            field.name: self._said(field) for field in self.fields if field.name not in overrides
        }
        return Recipe.parse(read | overrides, said)

    def _said(self, field: RecipeField) -> str:
        """Where a field stands: the file, its line, the keys, and the field they mean."""
        place = f"{self.path}:{field.line}" if field.line else str(self.path)
        return f"{place}: {' and '.join(field.keys) or field.name} (recipe field {field.name})"


class Draft:
    """A recipe while it is read from a document: fields, their origins, the target, the notes."""

    def __init__(self, document: Document, trainer: str, *, devices: int | None = None) -> None:
        self.document = document
        self.trainer = trainer
        self.devices = devices
        self._fields: dict[str, RecipeField] = {}
        self._problems: dict[str, str] = {}
        self._notes: list[str] = []
        self._target: FileTarget | None = None
        self._target_missing = "the file describes no model; name one as TARGET."

    def get(self, *keys: str) -> Found | None:
        """The first of these keys with a value; one that stands elsewhere is noted and skipped."""
        found = self.document.find(*keys)
        if found is not None and isinstance(found.value, Unresolved):
            self.note(f"{found.key} is {found.value.text}, which stands outside this file.")
            return None
        return found

    def number(self, *keys: str) -> Found | None:
        """Like `get`, for a number.

        Raises:
            InputError: There is something, and it is no number.
        """
        found = self.get(*keys)
        if found is None:
            return None
        value = found.value
        if isinstance(value, str):
            try:
                value = float(value.replace("_", ""))
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self._where(found)}: {found.key} is {found.value!r}, not a number.")
        return Found(key=found.key, value=value, line=found.line)

    def text(self, *keys: str) -> Found | None:
        """Like `get`, as text; `""` counts as absent."""
        found = self.get(*keys)
        if found is None or isinstance(found.value, Mapping | list) or str(found.value) == "":
            return None
        return Found(key=found.key, value=str(found.value), line=found.line)

    def put(self, name: str, value: object, *found: Found | None, note: str = "") -> None:
        """Sets a field from what was found in the file."""
        seen = [f for f in found if f is not None]
        self._fields[name] = RecipeField(
            name=name,
            value=_whole(name, value),
            origin=Origin.FILE,
            keys=tuple(f.key for f in seen),
            line=next((f.line for f in seen), None),
            note=note,
        )

    def take(self, name: str, *keys: str) -> None:
        """Sets a numeric field from the first of these keys, if one is there."""
        found = self.number(*keys)
        if found is not None:
            self.put(name, found.value, found)

    def take_betas(self, *keys: str) -> None:
        """Sets both of Adam's betas from a pair under the first of these keys, if one is there."""
        found = self.get(*keys)
        if found is None:
            return
        if not isinstance(found.value, list) or len(found.value) < 2:
            raise InputError(f"{self._where(found)}: {found.key} is {found.value!r}, not a pair.")
        self.put("adam_beta1", found.value[0], found)
        self.put("adam_beta2", found.value[1], found)

    def take_clip(self, *keys: str) -> None:
        """Sets the clipping norm; zero switches clipping off."""
        found = self.number(*keys)
        if found is not None:
            self.put("max_grad_norm", found.value or None, found)

    def mapping(self, *keys: str) -> Mapping[str, object]:
        """The settings under the first of these keys; none if there are none."""
        found = self.get(*keys)
        return found.value if found is not None and isinstance(found.value, Mapping) else {}

    def default(self, **values: object) -> None:
        """What the trainer does about fields that the file is silent on."""
        for name, value in values.items():
            if name not in self._fields:
                self._fields[name] = RecipeField(
                    name=name,
                    value=value,
                    origin=Origin.TRAINER,
                    note=f"default of {self.trainer}",
                )

    def assume(self, name: str, value: object, why: str) -> None:
        """Sets a field that neither the file nor the trainer decides."""
        self._fields[name] = RecipeField(name=name, value=value, origin=Origin.ASSUMED, note=why)

    def value(self, name: str) -> object:
        """What a field stands at now; rksp's own default if nothing was read."""
        if name in self._fields:
            return self._fields[name].value
        return Recipe.model_fields[name].default

    def knows(self, name: str) -> bool:
        """Whether a field was read or has a default of the trainer."""
        return name in self._fields

    def problem(self, name: str, sentence: str) -> None:
        """Says that the file's value for a field has no equivalent here."""
        self._problems[name] = sentence

    def note(self, sentence: str) -> None:
        """Adds a sentence for the reader, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def describe(self, name: str, overrides: Mapping[str, object], *notes: str) -> None:
        """Sets the model that the file describes; settings that are None are left out."""
        kept = {key: value for key, value in overrides.items() if value is not None}
        self._target = FileTarget(name=name, overrides=kept, notes=notes)

    def no_target(self, sentence: str) -> None:
        """Says why the file's model cannot become the target."""
        self._target, self._target_missing = None, sentence

    def finish(self) -> RecipeFile:
        """Everything read, with rksp's own defaults where nobody decided."""
        for name, definition in Recipe.model_fields.items():
            if name not in self._fields:
                self.assume(name, definition.default, "")
        return RecipeFile(
            path=self.document.path,
            trainer=self.trainer,
            fields=tuple(self._fields[name] for name in Recipe.model_fields),
            problems=dict(self._problems),
            target=self._target,
            target_missing=self._target_missing,
            notes=tuple(self._notes),
        )

    def _where(self, found: Found) -> str:
        return f"{self.document.path}:{found.line}" if found.line else str(self.document.path)


def _whole(name: str, value: object) -> object:
    """Counts are whole numbers: 1e5 and 100000.0 mean 100000."""
    is_count = Recipe.model_fields[name].annotation is int
    if is_count and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
