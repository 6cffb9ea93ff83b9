"""Follow a configuration to the files that it is made of: Hydra's defaults, `_base_`, `extends`.

Only files within the repository are read. What a configuration says itself replaces what they say.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError
from rksp.ground.files import read_head
from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document, folders_above, load_document

_BASES = ("_base_", "_BASE_", "__base__", "base_config", "extends", "inherit_from", "parent_config")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_MOST, _DEEPEST = 40, 6  # files, and files of files
_GLOBAL = "_global_"


def composed(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a configuration with what the files say that it names, and which these are."""
    if document.syntax not in ("yaml", "json", "toml"):
        return document, ()
    read: list[str] = []
    lost: list[str] = []
    data = _whole(document.path, document.data, read, lost, 0)
    notes = [f"Composed with {', '.join(read)}."] if read else []
    notes += [f"{name}, which the configuration is made of, was not found." for name in lost]
    return dataclasses.replace(document, data=data) if read else document, tuple(notes)


def _whole(
    path: Path, data: Mapping[str, object], read: list[str], lost: list[str], depth: int
) -> Mapping[str, Any]:
    own = {k: v for k, v in data.items() if k != "defaults" and k not in _BASES}
    found: dict[str, Any] = {}
    is_last = True
    for package, name in _named(data):
        if name == "_self_":
            found, is_last = _merged(found, own), False
            continue
        there = _place(path, name)
        if there is None or depth >= _DEEPEST or len(read) >= _MOST:
            lost += [name] if there is None else []
            continue
        with contextlib.suppress(InputError):
            inner: Any = load_document(there).data
            read.append(
                there.name if there.parent == path.parent else f"{there.parent.name}/{there.name}"
            )
            inner = _whole(there, inner, read, lost, depth + 1)
            head = read_head(there, 200).decode("utf-8", "replace")
            for part in reversed(() if f"@package {_GLOBAL}" in head else package):
                inner = {part: inner}
            found = _merged(found, inner)
    return _merged(found, own) if is_last else found


def _named(data: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the files that a configuration is made of, each with the section that it fills."""
    bases = [data.get(key) for key in _BASES]
    defaults = data.get("defaults")
    bases += [defaults] if isinstance(defaults, str) else []
    for base in bases:
        for one in base if isinstance(base, list) else [base]:
            if isinstance(one, str):
                yield (), one
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            yield (), entry
        for group, name in entry.items() if isinstance(entry, Mapping) else ():
            plain, _, at = (
                str(group).removeprefix("optional ").removeprefix("override ").partition("@")
            )
            plain = plain.strip().strip("/")
            package = () if at == _GLOBAL else tuple((at or plain).replace("/", ".").split("."))
            for one in name if isinstance(name, list) else [name]:
                if isinstance(one, str):
                    yield package, f"{plain}/{one}"


def _place(path: Path, name: str) -> Path | None:
    """Return the file of this name near a configuration, within its repository."""
    names = [name] if name.endswith(_SUFFIXES) else [f"{name}{suffix}" for suffix in _SUFFIXES]
    root = folders_above(path)[-1].resolve()
    for folder in folders_above(path):
        for one in names:
            with contextlib.suppress(OSError, ValueError):
                there = (folder / one.lstrip("/")).resolve()
                if there.is_file() and there != path.resolve() and there.is_relative_to(root):
                    return there
    return None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        other = found.get(key)
        is_section = isinstance(other, Mapping) and isinstance(value, Mapping)
        found[key] = _merged(definite(other), value) if is_section else value
    return found
