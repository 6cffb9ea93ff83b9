"""The command-line flags of a model's fields, their errors, and sizes and counts in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError

from rksp.ground.errors import InputError, nearest

_POWERS = {"k": "e3", "K": "e3", "M": "e6", "B": "e9"}  # the letters of `count`


_LARGEST = 10**15  # of a count


def whole(value: object) -> object:
    """Read a count from `10000`, `10_000`, `1e4`, `10k`, `1.5M` or `1.3B`.

    Args:
        value: A text or a number; anything else is returned as it is.

    Raises:
        ValueError: It is not whole; the message says what it should be.
    """
    if isinstance(value, str):
        value = _number(value.strip())
    if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
        raise ValueError(f"it should be at most {_LARGEST:g}, which no run reaches")
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise ValueError("it should be a whole number, such as 10000, 1e4, 10_000, 10k or 1.5M")
    return int(value)


def _number(text: str) -> int | float:
    power = _POWERS.get(text[-1:])
    try:
        return float(text[:-1] + power) if power else int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return math.nan


def count(number: float) -> str:
    """Format a count with three digits and a letter: `124 M`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"


Model = TypeVar("Model", bound=BaseModel)
COUNT = BeforeValidator(whole)  # marks a field of whole numbers that may be written as `10k`


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line option of a field, as a marker in the field's annotation.

    The type, the default and the choices are those of the field.

    Attributes:
        name: Name of the option, such as `--clip`; `--set z_loss=` for a field that has none of its
            own.
        help: One sentence.
        aliases: Other accepted names of the option.
        names: Other names that people give the field, separated by blanks, wherever a field is
            named: an axis, a column, a key in Python, and, those of one word, an option.
        also: What others call such an option, separated by blanks; only messages know it.
        unit: What the value counts; the help shows it in place of the value.
        zero_is_off: Zero means None.
        is_text: The command line takes text, which the field's own validator parses.
        from_file: A file of defaults may set it. Such a file may be a stranger's: only what changes
            neither the answer nor the machine, and hides nothing, may say yes.
    """

    name: str
    help: str
    aliases: tuple[str, ...] = ()
    names: str = ""
    also: str = ""
    unit: str = ""
    zero_is_off: bool = False
    is_text: bool = False
    from_file: bool = False

    @property
    def said(self) -> str:
        """The help, and whether a file of defaults may set the option."""
        return f"{self.help} A file of defaults may set it." if self.from_file else self.help

    @property
    def options(self) -> tuple[str, ...]:
        """All names of the option, its own first."""
        if self.is_set:
            return ()
        words = (f"--{name}" for name in self.names.split() if "_" not in name)
        return tuple(dict.fromkeys((self.name, *self.aliases, *words)))

    @property
    def is_set(self) -> bool:
        """True for a field that `--set` sets."""
        return self.name.endswith("=")

    def typed(self, value: str) -> tuple[str, ...]:
        """Return the words of a command that give the field this value."""
        return tuple(f"{self.name}{value}".split(" ", 1)) if self.is_set else (self.name, value)


@cache
def field_of(model: type[BaseModel], name: str) -> str:
    """Return the field that people call `name`; the name itself if no field has it."""
    known = {
        other: field for field, flag in flags_of(model).items() for other in flag.names.split()
    }
    return known.get(name, name)


@cache
def flags_of(model: type[BaseModel]) -> dict[str, Flag]:
    """Map each field that has a flag to the flag, in the order of the fields."""
    return {
        name: marker
        for name, field in model.model_fields.items()
        for marker in field.metadata
        if isinstance(marker, Flag)
    }


def checked(
    model: type[Model],
    fields: Mapping[str, object],
    *,
    noun: str,
    sources: Mapping[str, str] | None = None,
) -> Model:
    """Build a model from untrusted fields.

    Args:
        model: A pydantic model.
        fields: Values by name.
        noun: What a message calls the model: "recipe".
        sources: Where the user gave a field, such as `--clip` or `run.yaml:3, max_grad_norm`;
            default the name of the field.

    Returns:
        The model.

    Raises:
        InputError: A field is unknown (the message names the nearest known one) or out of range.
    """
    for name, value in fields.items():
        field = model.model_fields.get(name)
        takes = (bool,) if field is None else (field.annotation, *get_args(field.annotation))
        if isinstance(value, bool) and bool not in takes:
            said = (sources or {}).get(name) or f"{noun.capitalize()} field {name!r}"
            raise InputError(f"{said} is {value}; it should be a number or a word.")
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            known = nearest(name, model.model_fields) or "."
            raise InputError(f"The {noun} has no field {name!r}{known}") from None
        said = (sources or {}).get(name) or f"{noun.capitalize()} field {name!r}"
        wanted = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        if first["type"].startswith("byte_size"):
            wanted = "it should be a size, such as 8GB"
        flag = flags_of(model).get(name)
        if flag is not None and flag.zero_is_off:
            wanted += f", and {flag.name} 0 switches it off"
        end = "" if wanted.endswith("?") else "."
        raise InputError(f"{said} is {first['input']!r}; {wanted}{end}") from None


def assignments(pairs: list[str], option: str = "--set", like: str = "key=value") -> dict[str, str]:
    """Read the pairs of an option that takes key=value, such as `like`.

    Raises:
        InputError: A pair is not key=value.
    """
    found = {}
    for pair in pairs:
        key, separator, value = map(str.strip, pair.partition("="))
        if not separator or not key:
            raise InputError(f"{option} {pair!r} must have the form {like}.")
        if re.search(r"^[^\[{(\"']*,\s*[A-Za-z_.]+=", value):
            raise InputError(f"{option} {pair!r} sets two; repeat {option} for each.")
        found[key] = value
    return found
