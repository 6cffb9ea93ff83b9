"""Values of configuration files: YAML 1.2 numbers, what is set elsewhere, and what W&B wraps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")
_LONGEST = 300  # characters of a whole number; Python refuses to read one of 4,300 digits


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that is set elsewhere: an `!include`, or an unknown reference."""

    text: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that an object of a script holds, such as the parsed options."""

    held: Section


# What a file holds, or a name of a script. Keys of YAML may be numbers: `str` makes text of them.
Parsed: TypeAlias = (
    "bool | int | float | str | Unresolved | Settings | list[Parsed] | Section | None"
)
Section: TypeAlias = "Mapping[str, Parsed]"


def as_section(value: Parsed) -> Section:
    """Return a section as it is; what is none is an empty one."""
    return value if isinstance(value, Mapping) else {}


def section_in(home: dict[str, Parsed], name: str) -> dict[str, Parsed]:
    """Return the section of this name in another, which is made if it is not there."""
    found = home.setdefault(name, {})
    return found if isinstance(found, dict) else {}


def read_number(text: str) -> int | float | None:
    """Parse a number by the rules of YAML 1.2; None for other text, such as `1.0e_8`.

    A whole number of hundreds of digits is read as infinite.
    """
    text = text.strip()
    if WHOLE.fullmatch(text) and len(text) <= _LONGEST:
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if NUMBER.fullmatch(text) else None


_OWN = ("_wandb", "wandb_version")  # what W&B says of itself


def is_logged(data: Section) -> bool:
    """Tell whether every setting, and more than one, is wrapped."""
    inner = [as_section(value) for key, value in data.items() if key not in _OWN]
    return len(inner) >= 2 and all("value" in value for value in inner)


def unwrapped(data: Section) -> dict[str, Parsed]:
    """Return the settings alone."""
    wrapped = {key: as_section(value) for key, value in data.items() if key not in _OWN}
    return {key: value["value"] for key, value in wrapped.items() if "value" in value}


def unwrapped_lines(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the lines of the settings by their keys without `value`."""
    found = {}
    for key, line in lines.items():
        parts = key.split(".")
        if len(parts) > 1 and parts[1] == "value":
            inner = ".".join((parts[0], *parts[2:]))
            found[inner] = line if len(parts) > 2 else lines[parts[0]]
    return found


def underscored(key: object) -> str:
    """Return a key with underscores where trainers may write dashes."""
    return str(key).replace("-", "_")
