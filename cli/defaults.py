"""Defaults of options from `.rksp.toml`, or `[tool.rksp]` in `pyproject.toml`.

A table is a command, a key a long option::

    [score]                      # [tool.rksp.score] in pyproject.toml
    precision = "bf16"
    fail-on = "error"
    set = ["n_layer=4"]

What is typed wins. What lets code run or be fetched, and the classifier that judges, cannot be set
here: the file belongs to the repository under test, and on CI that may be a stranger's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.errors import InputError, nearest

FILE = ".rksp.toml"
_TYPED_ONLY = ("trust-remote-code", "allow-hub", "classifier")


def find_defaults(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest file of defaults in `folder` or above, and its tables.

    The search ends at the root of the repository. In one folder `.rksp.toml` comes before
    `pyproject.toml`.

    Raises:
        InputError: A file cannot be read or is no TOML.
    """
    for place in (folder, *folder.parents):
        own, project = place / FILE, place / "pyproject.toml"
        if own.is_file():
            return own, _read(own)
        if project.is_file():
            tables = _read(project).get("tool", {}).get("rksp")
            if tables is not None:
                return project, tables
        if (place / ".git").exists():
            return None
    return None


def default_map(file: Path, tables: dict[str, Any], command: Any) -> dict[str, Any]:
    """The tables as click's `default_map`: command -> parameter -> value.

    Args:
        file: For messages.
        tables: As read.
        command: The root command (or, below it, a group).

    Raises:
        InputError: A command or option is unknown (the nearest is named), a value is of another
            kind, or the option must be typed.
    """
    found = {}
    for name, content in tables.items():
        inner = command.commands.get(name)
        if inner is None:
            hint = nearest(name, command.commands, count=1) or "."
            raise InputError(f"{file}: rksp has no command {name!r}{hint}")
        if not isinstance(content, dict):
            raise InputError(f"{file}: {name!r} is a command; write its options under [{name}].")
        if hasattr(inner, "commands"):
            found[name] = default_map(file, content, inner)
        else:
            found[name] = dict(_options(file, name, content, inner))
    return found


def _options(
    file: Path, command: str, content: dict[str, Any], inner: Any
) -> Iterator[tuple[str, Any]]:
    known = {
        name.removeprefix("--"): parameter
        for parameter in inner.params
        for name in parameter.opts
        if name.startswith("--") and name != "--help"
    }
    for key, value in content.items():
        option = key.replace("_", "-")
        if option not in known:
            hint = nearest(option, known, count=1) or "."
            raise InputError(f"{file}: rksp {command} has no option {key!r}{hint}")
        if option in _TYPED_ONLY:
            raise InputError(f"{file}: {key!r} cannot be a default; type --{option}.")
        _check(file, key, value, known[option])
        yield known[option].name, value


def _check(file: Path, key: str, value: object, parameter: Any) -> None:
    """The kind of value; its range is the option's own business."""
    if parameter.multiple:
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return
        raise InputError(f"{file}: {key!r} is a list of texts, not {value!r}.")
    if parameter.is_flag and not isinstance(value, bool):
        raise InputError(f"{file}: {key!r} is true or false, not {value!r}.")
    if isinstance(value, dict | list) or (isinstance(value, bool) and not parameter.is_flag):
        raise InputError(f"{file}: {key!r} is one text or number, not {value!r}.")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is no TOML: {error}.") from None
