"""The identity of a target: by it, a store knows whether its answers are about what is there now.

Every byte counts. The header, size and time of a weights file may all be those of other weights: a
copy that keeps times, or a second save at the same shapes. A copy of the same weights has other
times and is the same model. Reading a file costs a second or two for each gigabyte, once a process,
and less than the measurement, which reads the weights too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.ground.factory import is_factory
from rksp.models.settings import hub_folder, is_hub_id

_READ = ("config.json", "tokenizer.json")  # of a folder, beside its weights

Signature = tuple[tuple[str, int, int, int, int], ...]


def identity(target: str | Path, *, allow_hub: bool = False, with_code: bool = False) -> str | None:
    """Return the digest of everything that is read of a target.

    That is the content of a configuration; of a checkpoint's configuration, weights and tokenizer;
    of a Hub model's files in the cache; of the file that defines a factory, without what that file
    imports.

    Args:
        target: As for `rksp.models.resolve.resolve`.
        allow_hub: Fetch from the Hub what the local cache lacks.
        with_code: The Python files beside a configuration count too.

    Returns:
        The digest; None for a model type, and for a target that cannot be found.
    """
    try:
        path = Path(target).expanduser()
    except RuntimeError:  # `~` of nobody
        return None
    if path.is_file() and path.suffix != ".safetensors":
        return file_identity(path)
    if path.exists():
        return _of_folder(path if path.is_dir() else path.parent, with_code)
    if is_factory(str(target)):
        file = _file_of_module(str(target).partition(":")[0])
        return None if file is None else file_identity(file)
    folder = _hub_folder(str(target), allow_hub) if is_hub_id(str(target)) else None
    return None if folder is None else _of_folder(folder, with_code)


def file_identity(path: Path) -> str | None:
    """Return the digest of a file's content; None if there is no such file."""
    return _digest(_signature([path])) if path.is_file() else None


def tree_identity(path: Path) -> str:
    """Return the digest of a file's content, or of all files under a folder.

    Raises:
        InputError: There is nothing at this path.
    """
    if not path.exists():
        raise InputError(f"There is no file or folder {path}.")
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    return _digest(_signature(files))


def _of_folder(folder: Path, with_code: bool) -> str:
    files = [file for name in _READ if (file := folder / name).is_file()]
    files += sorted(folder.glob("*.py")) if with_code else []
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    read = _read_weights(folder, _signature(sorted(weights))) if weights else ()
    return _digest(_signature([*files, *read]))


@lru_cache(maxsize=4096)
def _read_weights(folder: Path, signature: Signature) -> tuple[Path, ...]:
    """Return the weights that a model of this folder is loaded from; all of them if damaged."""
    from rksp.models.checkpoint import find_weights  # torch

    try:
        return find_weights(folder)
    except InputError:
        return tuple(Path(name) for name, *_ in signature)


def _signature(files: Iterable[Path]) -> Signature:
    """Return what changes when a file is written to, so that no file is read twice a process."""
    stats = [(file, file.stat()) for file in files]
    return tuple((str(f), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in stats)


@lru_cache(maxsize=4096)
def _digest(signature: Signature) -> str:
    whole = hashlib.sha256()
    for name, *_ in signature:
        with Path(name).open("rb") as content:  # weights may be larger than the memory
            inner = hashlib.file_digest(content, "sha256").hexdigest()
        whole.update(f"{Path(name).name}\n{inner}\n".encode())
    return whole.hexdigest()


@lru_cache(maxsize=4096)
def _hub_folder(target: str, allow_hub: bool) -> Path | None:
    try:
        return hub_folder(target, allow_hub)
    except InputError:
        return None


def _file_of_module(name: str) -> Path | None:
    """Return the file of a module as `load_factory` would import it, without importing it."""
    places: list[str] | None = [*sys.path, str(Path.cwd())]
    found = None
    for count in range(1, name.count(".") + 2):
        found = PathFinder.find_spec(".".join(name.split(".")[:count]), places)
        places = None if found is None else found.submodule_search_locations
        if not places:
            break
    if found is None or found.name != name or not found.has_location:
        return None
    return Path(found.origin) if found.origin else None
