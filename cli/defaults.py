"""Defaults of options from `.rksp.toml`, or `[tool.rksp]` in `pyproject.toml`.

A table is a command, a key a long option::

    [score]                      # [tool.rksp.score] in pyproject.toml
    precision = "bf16"
    fail-on = "error"

What is typed wins. The file belongs to the repository under test, and on CI that may be a
stranger's: what could run or fetch code, write a file, reach another machine, open the gate, hide
a finding from it or put another model before it must be typed. Reports say what the file set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError, nearest
from rksp.ground.files import read_text

FILE = ".rksp.toml"
_RUNS = "lets code run or be fetched"
_WRITES = "writes files"
_CONNECTS = "hands work to other machines"
_OPENS = "can hide a failure"
_SWAPS = "changes the model that is judged"
TYPED_ONLY = {
    "trust-remote-code": _RUNS,
    "allow-hub": _RUNS,
    "target": _RUNS,
    "output": _WRITES,
    "export": _WRITES,
    "keep": _WRITES,
    "record": _WRITES,
    "engine": _CONNECTS,
    "address": _CONNECTS,
    "slurm": _CONNECTS,
    "exit-zero": _OPENS,
    "baseline": _OPENS,
    "classifier": _OPENS,
    "dry-run": _OPENS,
    "ignore": _OPENS,
    "select": _OPENS,
    "level": _OPENS,
    "help-all": _OPENS,
    "set": _SWAPS,
    "task": _SWAPS,
}
_STRICTNESS = ("never", "error", "warning")
_MOST_BYTES = 2**20


def find_defaults(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Find the nearest file of defaults in `folder` or above, and return it with its tables.

    The search ends at the root of the repository. In one folder `.rksp.toml` comes before
    `pyproject.toml`.

    Raises:
        InputError: A file cannot be read or is not TOML.
    """
    for place in (folder, *folder.parents):
        own, project = place / FILE, place / "pyproject.toml"
        if own.is_file():
            return own, _read(own)
        if project.is_file():
            tools = _read(project).get("tool")
            tables = tools.get("rksp") if isinstance(tools, dict) else None
            if tables is not None:
                return project, _tables(project, tables)
        if (place / ".git").exists():
            return None
    return None


def _tables(file: Path, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{file}: tool.rksp must hold tables of options, not {found!r:.100}.")
    return found


def default_map(file: Path, tables: dict[str, Any], command: Any) -> dict[str, Any]:
    """Return the tables as click's `default_map`: command -> parameter -> value.

    Args:
        file: The file, for messages.
        tables: The tables in the file.
        command: The root command.

    Raises:
        InputError: A command or option is unknown (the message names the nearest), a value has
            another type, or the option must be typed.
    """
    found = {}
    for name, content in tables.items():
        inner = command.commands.get(name)
        if inner is None:
            hint = nearest(name, command.commands, count=1) or "."
            raise InputError(f"{file}: rksp has no command {name!r}{hint}")
        if not isinstance(content, dict):
            raise InputError(f"{file}: {name!r} is a command; write its options under [{name}].")
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
        if option in TYPED_ONLY:
            raise InputError(
                f"{file}: {key!r} cannot be a default, since it {TYPED_ONLY[option]}; "
                f"type --{option}."
            )
        _check(file, key, value, known[option])
        if option == "fail-on" and _is_weaker(value, known[option].default):
            raise InputError(
                f"{file}: {key!r} cannot be weaker than {known[option].default} in a file of "
                f"defaults; type --{option} {value}."
            )
        yield known[option].name, value


def _check(file: Path, key: str, value: object, parameter: Any) -> None:
    """Check the kind of a value; the option itself checks the range."""
    if parameter.multiple:
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return
        raise InputError(f"{file}: {key!r} must be a list of texts, not {value!r}.")
    if parameter.is_flag and not isinstance(value, bool):
        raise InputError(f"{file}: {key!r} must be true or false, not {value!r}.")
    if isinstance(value, dict | list) or (isinstance(value, bool) and not parameter.is_flag):
        raise InputError(f"{file}: {key!r} must be one text or number, not {value!r}.")


def _is_weaker(value: object, default: object) -> bool:
    """Return True if a gate is weaker than the default; invalid values are reported later."""
    if str(value) in _STRICTNESS:
        rank = _STRICTNESS.index(str(value))
        return rank < (_STRICTNESS.index(default) if default in _STRICTNESS else 1)
    try:
        return not float(str(value)) <= float(str(default))
    except ValueError:
        return False


def _read(file: Path) -> dict[str, Any]:
    import tomllib  # most commands have no such file

    text = read_text(file, _MOST_BYTES)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{file} is not valid TOML: {error}.") from None
