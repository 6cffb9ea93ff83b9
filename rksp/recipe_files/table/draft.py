"""A recipe while it is read from a document."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rksp.ground.errors import InputError
from rksp.ground.files import with_home
from rksp.recipe import Recipe
from rksp.recipe_files.parse.document import Document, Found, FoundNumber, FoundText
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved, read_number
from rksp.recipe_files.said.origin import (
    DECISIVE,
    FileTarget,
    Origin,
    OriginKind,
    RecipeField,
    RecipeFile,
    assumed,
    flag_of,
    left_out,
    used_in,
)

# Words of YAML 1.1, which most trainers read files by, and of command lines.
_ON, _OFF = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_VOCABULARY = "The vocabulary is the tokenizer's; transformers' default is used."
_DEPTHS = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"}
_MAY_BE_NONE = ("q_lora_rank",)  # settings of a model for which None is a value of its own


_LARGEST = 10**15  # of a whole number: no run has as many steps, rows or tokens a batch
_NO_TARGET = "the file does not describe a model; name one as TARGET."


class _Watched(dict[str, Parsed]):
    """A section of a file; what is looked up in it counts as read in the draft."""

    def __init__(self, section: Section, home: str, draft: Draft) -> None:
        super().__init__(
            (
                name,
                _Watched(value, f"{home}.{name}", draft) if isinstance(value, Mapping) else value,
            )
            for name, value in section.items()
        )
        self._home, self._draft = home, draft

    def __getitem__(self, name: str) -> Parsed:
        self._draft.look(f"{self._home}.{name}")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._draft.look(f"{self._home}.{name}")
        return super().get(name, default)

    def items(self) -> Any:
        self._draft.look(*(f"{self._home}.{name}" for name in self))
        return super().items()

    def take(self) -> None:
        for _, value in self.items():
            if isinstance(value, _Watched):
                value.take()


class Draft:
    """The fields with their origins, the target and the notes that a reader fills in.

    A field in `given` was typed by the user: the file cannot change it, and what the file states
    in terms of it (a warm-up as a share of the run) is computed from what was typed.
    """

    def __init__(
        self,
        document: Document,
        trainer: str,
        *,
        devices: int | None = None,
        given: Mapping[str, object] | None = None,
    ) -> None:
        self.document = document
        self.trainer = trainer
        self.keys: Mapping[str, str] = {}  # of the reader: field -> its key
        self.devices = devices
        self.devices_text = "" if devices is None else "--devices"
        self._given = frozenset(given or ())
        self._fields: dict[str, RecipeField] = {}
        for name, value in (given or {}).items():
            origin = Origin(kind=OriginKind.FLAG, text=flag_of(name))
            self._fields[name] = RecipeField(name=name, value=value, origin=origin)
        self._notes: list[str] = []
        self.seen: set[str] = set()  # every key of the file that was read
        self.asked: set[str] = set()  # every key that was looked for
        self.by_name = False  # what is set now was found by its name, and by no trainer's reader
        self._target: FileTarget | None = None
        self.names_weights = False  # from trained weights, not from a random initialization
        self.deepspeed: Document | None = None
        self._target_missing = _NO_TARGET

    def get(self, *keys: str) -> Found | None:
        """Return the first of these keys with a value; note and skip a reference elsewhere."""
        self.asked.update(keys)
        found = self.document.find(*keys)
        if found is None:
            return None
        self.seen.add(found.key)
        return None if isinstance(found.value, Unresolved) else found

    def number(self, *keys: str) -> FoundNumber | None:
        """Return a number as `get` does; `auto` counts as absent.

        Raises:
            InputError: The value is not a number.
        """
        found = self.get(*keys)
        if found is None or str(found.value) in ("auto", "None", ""):
            return None
        value = found.value
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return found.as_number(self._counted(found, value))

    def numbers(self, found: Found) -> list[float]:
        """Return the numbers of a list.

        Raises:
            InputError: A part is none.
        """
        listed = found.value if isinstance(found.value, list) else [found.value]
        return [self._counted(found, part) for part in listed]

    def _counted(self, found: Found, value: Parsed) -> float:
        if isinstance(value, str):
            value = read_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.where(found)}: {found.key} is {found.value!r}, not a number.")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InputError(
                f"{self.where(found)}: {found.key} is larger than any run's, {_LARGEST:g}."
            )
        return value

    def number_or(self, default: float, *keys: str) -> FoundNumber:
        """Return a number as `number` does, else the trainer's default, which has no key.

        A default that only stands in for what is decided elsewhere is open.
        """
        one = self.document.find(*keys)
        if one is not None and isinstance(one.value, Unresolved):
            return FoundNumber(key=one.key, value=default, line=one.line, open=one.value.text)
        return self.number(*keys) or FoundNumber(key="", value=default)

    def amount(self, *keys: str, default: float) -> float:
        """Return a number's value as `number` finds it; `default` if there is none."""
        found = self.number(*keys)
        return default if found is None else found.value

    def count(self, *keys: str) -> int | None:
        """Return a number's value as `number` finds it, whole."""
        found = self.number(*keys)
        return None if found is None else int(found.value)

    def text(self, *keys: str) -> FoundText | None:
        """Return text as `get` does; `""` counts as absent."""
        found = self.get(*keys)
        if found is None or isinstance(found.value, Mapping | list) or str(found.value) == "":
            return None
        return FoundText(key=found.key, value=str(found.value), line=found.line)

    def text_or(self, default: str, *keys: str) -> FoundText:
        """Return text as `text` does, else the trainer's default, which has no key."""
        return self.text(*keys) or FoundText(key="", value=default)

    def word(self, *keys: str) -> str:
        """Return a text's value in small letters; empty if there is none."""
        return self.text_or("", *keys).value.lower()

    def true(self, *keys: str) -> Found | None:
        """Return the first of these keys that is switched on."""
        for key in keys:
            found = self.get(key)
            if found is not None and str(found.value).lower() in _ON:
                return found
        return None

    def false(self, key: str) -> Found | None:
        """Return the key if it is there and switched off."""
        found = self.get(key)
        is_off = found is not None and str(found.value).lower() in _OFF
        return found if is_off else None

    def mapping(self, *keys: str) -> Section:
        """Return the settings under the first of these keys; empty if there are none.

        What is looked up in them counts as read.
        """
        found = self.get(*keys)
        if found is None or not isinstance(found.value, Mapping):
            return {}
        return _Watched(found.value, found.key, self)

    def look(self, *keys: str) -> None:
        """Count these keys as read."""
        self.asked.update(keys)
        self.seen.update(keys)

    def put(
        self,
        name: str,
        value: object,
        *found: Found | None,
        text: str = "",
        after: tuple[str, ...] = (),
    ) -> None:
        """Set a field from what was found in the file.

        Args:
            name: Field of the recipe.
            value: The value in rksp's units.
            found: What was read; its keys and the first one's line become the origin. What has no
                key is the trainer's default, as is a value without anything.
            text: How the value was converted; empty if it was not.
            after: Fields that it was computed from, or `devices`.
        """
        for f in found:
            if f is not None and f.open:
                self.unknown(name, f)
                return
        seen = [f for f in found if f is not None and f.key]
        self.seen.update(f.key for f in seen)
        keys = " and ".join(f.key for f in seen)
        roots = self._roots(*after)
        kind = OriginKind.COMPUTED if text and (len(seen) > 1 or after) else OriginKind.FILE
        if not seen:
            kind = OriginKind.TRAINER
            keys = f"default of {self.trainer}"
        elif all(f.key in self.document.defaults for f in seen):
            keys += f", the default of {self.document.defaults[seen[0].key]}"
        self._set(
            name,
            value,
            Origin(
                kind=OriginKind.ASSUMED if roots else kind,
                text=f"{keys}: {text}" if text else keys,
                file=self.document.path.as_posix() if seen else None,
                line=next((f.line for f in seen), None),
                keys=tuple(f.key for f in seen),
                assumes=roots,
            ),
        )

    def adopt(self, field: RecipeField) -> None:
        """Copy a field with its origin from another file's draft."""
        self._set(field.name, field.value, field.origin)

    def default(
        self, name: str, value: object, text: str = "", after: tuple[str, ...] = ()
    ) -> None:
        """Set a field to the trainer's default if the file does not state it, here or elsewhere."""
        keys = self.keys.get(name, "").split()
        if not self.knows(name) and not self.stands_elsewhere(name, keys):
            self.put(name, value, text=text, after=after)

    def assume(self, name: str, why: str = "", found: Found | None = None) -> None:
        """Leave a field at rksp's default, because neither the file nor the trainer decides it."""
        origin = assumed(name, why)
        if found is not None:
            origin = dataclasses.replace(
                origin, keys=(found.key,), line=found.line, file=self.document.path.as_posix()
            )
        self._set(name, Recipe.model_fields[name].default, origin)

    def unknown(self, name: str, found: Found, why: str = "") -> None:
        """Leave a field unknown: the file gives it, and what it comes to cannot be read there.

        What decides no answer is assumed.
        """
        if name not in Recipe.model_fields:  # `devices`, without which a batch is assumed
            return
        said = why or f"{found.key} is {found.open or _said(found.value)}"
        self.assume(name, f"{said}; give {flag_of(name)}", found)
        if name in DECISIVE and name not in self._given:
            field = self._fields[name]
            origin = dataclasses.replace(field.origin, kind=OriginKind.UNKNOWN)
            self._fields[name] = dataclasses.replace(field, origin=origin)

    def stands_elsewhere(self, name: str, keys: Sequence[str]) -> bool:
        """Leave a field unknown if its value is in another place, so that no default hides it."""
        found = self.document.find(*keys) if keys else None
        if name in self._fields or found is None:
            return False
        is_open = isinstance(found.value, Unresolved) or found.value == "auto"
        if is_open:
            self.unknown(name, found)
        return is_open

    def value(self, name: str) -> Any:
        """Return a field's present value; rksp's own default if nothing was read."""
        if name in self._fields:
            return self._fields[name].value
        return Recipe.model_fields[name].default

    @property
    def explained(self) -> int:
        """Number of the file's settings that were read."""
        return len(self.seen & set(self.document.stated().leaves()))

    @property
    def explains_a_third(self) -> bool:
        """Whether a third of the file's settings, or more, were read."""
        return 3 * self.explained >= len(self.document.stated().leaves())

    def is_read(self, name: str) -> bool:
        """Return True if the file, or the user, gives a field, and what it is is known."""
        kind = self._fields[name].origin.kind if self.knows(name) else None
        return kind in (OriginKind.FILE, OriginKind.COMPUTED, OriginKind.FLAG)

    def is_unknown(self, name: str) -> bool:
        """Return True if the file gives a field, and what it comes to is not known."""
        return self.knows(name) and self._fields[name].origin.kind is OriginKind.UNKNOWN

    @property
    def unknown_keys(self) -> set[str]:
        """Keys of the file that give a field, and what it comes to is not known."""
        origins = [field.origin for field in self._fields.values()]
        return {key for one in origins if one.kind is OriginKind.UNKNOWN for key in one.keys}

    def keys_of(self, name: str) -> tuple[str, ...]:
        """Return the keys of the file that give a field."""
        return self._fields[name].origin.keys if self.knows(name) else ()

    @property
    def has_rate(self) -> bool:
        """Whether the file, or the user, gives a learning rate, known or not."""
        origin = self._fields["learning_rate"].origin if self.knows("learning_rate") else None
        return origin is not None and origin.kind is not OriginKind.TRAINER

    def knows(self, name: str) -> bool:
        """Return True if a field was decided already."""
        return name in self._fields

    def _roots(self, *names: str) -> tuple[str, ...]:
        found: list[str] = []
        for name in names:
            if name == "devices":
                found += [] if self.devices else ["devices"]
            elif name in self._fields:
                found += self._fields[name].origin.assumes
            else:
                found.append(name)
        return tuple(dict.fromkeys(found))

    def note(self, sentence: str) -> None:
        """Add a note for the user, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def describe(self, name: str, overrides: Mapping[str, object], *notes: str) -> None:
        """Set the model that the file describes; settings that are None are left out."""
        for value in (overrides, *overrides.values()):
            if isinstance(value, _Watched):
                value.take()
        kept = {k: v for k, v in overrides.items() if v is not None or k in _MAY_BE_NONE}
        if kept.keys() & _DEPTHS and "vocab_size" not in kept:
            notes = (*notes, _VOCABULARY)
        cached = _CACHED.search(name)  # a folder of the Hub's cache
        stem = f"{cached[1]}/{cached[2]}" if cached else PurePath(name).name
        if stem != name and _is_absent(name):
            notes = (*notes, f"{name} is not on this machine; it is read as {stem}.")
            name = stem
        self._target = FileTarget(name=name, overrides=kept, notes=notes)

    @property
    def lacks_target(self) -> bool:
        """Whether no model was found, and nothing yet that says why there can be none."""
        return self._target is None and self._target_missing == _NO_TARGET

    @property
    def is_literal(self) -> bool:
        """Whether the model is described by sizes that stand in the file."""
        return self._target is not None and "num_hidden_layers" in self._target.overrides

    def no_target(self, sentence: str) -> None:
        """Record why the file's model cannot become the target."""
        self._target, self._target_missing = None, sentence

    def finish(self) -> RecipeFile:
        """Return everything read, with rksp's own defaults for undecided fields."""
        values = {name: self.value(name) for name in Recipe.model_fields}
        used = used_in(values)
        for name, value in values.items():
            if name not in self._fields:
                self._set(name, value, left_out(name, name in used))
        steps, warmup = self._fields["max_steps"], self.value("warmup_steps")
        is_open = steps.origin.kind in (OriginKind.ASSUMED, OriginKind.UNKNOWN)
        if is_open and self.is_read("warmup_steps") and warmup >= steps.value:
            self._set("max_steps", 10 * warmup, steps.origin)  # a run outlasts its warm-up
        return RecipeFile(
            path=self.document.path,
            trainer=self.trainer,
            fields=tuple(self._fields[name] for name in Recipe.model_fields),
            target=self._target,
            target_missing=self._target_missing,
            notes=tuple(self._notes),
            understood=self.explained,
            settings=len(self.document.stated().leaves()),
            names_weights=self.names_weights,
            devices=self.devices,
            document=self.document,
            deepspeed=self.deepspeed,
        )

    def where(self, found: Found) -> str:
        """Return the file and the line of what was found, for messages."""
        return f"{self.document.path}:{found.line}" if found.line else str(self.document.path)

    def _set(self, name: str, value: object, origin: Origin) -> None:
        if name in self._given:
            return
        if origin.keys and self.by_name:
            origin = dataclasses.replace(origin, by_name=True)
        self._fields[name] = RecipeField(name=name, value=_whole(name, value), origin=origin)


def _said(value: object) -> str:
    return value.text if isinstance(value, Unresolved) else str(value)


_CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)(?:/|$)")


def _is_absent(name: str) -> bool:
    is_path = name.startswith(("/", "./", "../", "~", "\\")) or name[1:3] in (":\\", ":/")
    try:
        return is_path and not with_home(name).exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _whole(name: str, value: object) -> object:
    is_count = Recipe.model_fields[name].annotation in (int, int | None)
    if is_count and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
