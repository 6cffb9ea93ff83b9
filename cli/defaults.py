"""Defaults of options from `.rksp.toml`, or `[tool.rksp]` in `pyproject.toml`.

A table is a command, a key a long option::

    [score]                      # [tool.rksp.score] in pyproject.toml
    verbose = true
    fail-on = ["warning", "unknown"]

The file belongs to the repository under test, and on CI that may be a stranger's. So it sets only
what an option allows (`Flag.from_file`): how much is printed, how many threads work, and a stricter
gate. Nothing in it can change the answer. What is typed wins, and reports say what the file set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.budgets import DEFAULTS, reading
from rksp.ground.errors import InputError, nearest
from rksp.ground.files import parse_toml, read_text
from rksp.ground.text import one_line

FILE = ".rksp.toml"


def find_defaults(folder: Path) -> tuple[Path, dict[str, object]] | None:
    """Find the nearest file of defaults in `folder` or above, and return it with its tables.

    The search ends at the root of the repository; outside of one it ends at `folder`. In one folder
    `.rksp.toml` comes before `pyproject.toml`. A file of another user is left out, and stderr says
    so.

    Raises:
        InputError: A file cannot be read or is not TOML.
    """
    places = (folder, *folder.parents)
    root = next((n for n, place in enumerate(places) if (place / ".git").exists()), 0)
    for place in places[: root + 1]:
        own, project = place / FILE, place / "pyproject.toml"
        if own.is_file() and _is_ours(own):
            return own, _read(own)
        if project.is_file():
            tools = _read(project).get("tool")
            tables = tools.get("rksp") if isinstance(tools, dict) else None
            if tables is not None and _is_ours(project):
                if not isinstance(tables, dict):
                    raise InputError(
                        f"{project}: tool.rksp must hold tables of options, not {tables!r:.100}."
                    )
                return project, tables
    return None


def _is_ours(file: Path) -> bool:
    if not hasattr(os, "geteuid"):  # Windows
        return True
    if {file.stat().st_uid, file.lstat().st_uid} == {os.geteuid()}:
        return True
    said = f"rksp: {one_line(str(file), 200)} belongs to another user and is not read"
    print(said, file=sys.stderr)
    return False


def default_map(file: Path, tables: dict[str, object], command: Any) -> dict[str, object]:
    """Return the tables as click's `default_map`: command -> parameter -> value.

    Args:
        file: The file, for messages.
        tables: The tables in the file.
        command: The root command.

    Raises:
        InputError: A command or option is unknown (the message names the nearest), a value has
            another type, or the option must be typed.
    """
    found: dict[str, object] = {}
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
    file: Path, command: str, content: dict[str, object], inner: Any
) -> Iterator[tuple[str, object]]:
    known = {
        name.removeprefix("--"): parameter
        for parameter in inner.params
        for name in parameter.opts
        if name.startswith("--") and name != "--help"
    }
    from_file = getattr(inner, "from_file", ())  # those of a group have none
    allowed = [name for name, parameter in known.items() if parameter.name in from_file]
    for key, value in content.items():
        option = key.replace("_", "-")
        if option not in known:
            hint = nearest(option, known, count=1) or "."
            raise InputError(f"{file}: rksp {command} has no option {key!r}{hint}")
        if option not in allowed:
            may = f"it may set {', '.join(sorted(allowed))}" if allowed else "it may set none"
            raise InputError(
                f"{file}: {key!r} cannot stand in a file of defaults (of rksp {command}, {may}); "
                f"type --{option}."
            )
        parameter = known[option]
        if parameter.multiple and not isinstance(value, list):
            value = [value]
        _check(file, key, value, parameter)
        if option == "fail-on" and isinstance(value, list):
            value = _stricter(file, key, list(map(str, value)), parameter.default)
        yield parameter.name, value


def _check(file: Path, key: str, value: object, parameter: Any) -> None:
    is_bool, wanted = isinstance(value, bool), "one text or number"
    is_right = not isinstance(value, dict | list) and not is_bool
    if parameter.multiple:
        wanted = "a list of texts"
        entries = value if isinstance(value, list) else [value]
        is_right = all(isinstance(x, str | float | int) for x in entries) and True not in entries
    elif parameter.is_flag:
        is_right, wanted = is_bool, "true or false"
    if not is_right:
        raise InputError(f"{file}: {key!r} must be {wanted}, not {value!r}.")


def _stricter(file: Path, key: str, asked: list[str], default: list[str]) -> list[str]:
    from rksp.documents.terms import Gate  # most files set none

    if not Gate.parse(asked).is_at_least(Gate.parse(default)):
        raise InputError(
            f"{file}: {key!r} cannot be weaker than {', '.join(default)} in a file of defaults; "
            f"type --fail-on {','.join(asked)}."
        )
    return asked


def _read(file: Path) -> dict[str, object]:
    with reading(f"the defaults in {file!s:.200}"):
        return parse_toml(file, read_text(file, DEFAULTS))
