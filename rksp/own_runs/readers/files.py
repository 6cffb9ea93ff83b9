"""What readers of past runs share: JSON and SQLite of strangers, settings beside a run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rksp.ground.budgets import PAST_RUN, PAST_RUNS, bound_queries
from rksp.ground.errors import InputError
from rksp.ground.files import read_head, read_text
from rksp.recipe_files.parse.document import is_logged, load_document, unwrapped

_HEAD = 2**16
_BESIDE = ("training_args.json", "args.json", "hparams.yaml", "arguments.json", "config.yaml")
_DEEPEST = 6  # of nested settings


def head_of(path: Path) -> bytes:
    """Return the beginning of a file; empty for what is no readable file."""
    try:
        return read_head(path, _HEAD)
    except InputError:
        return b""


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        InputError: It cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_text(path, PAST_RUN))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error!s:.100}).") from None


def flat(settings: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return nested settings by dotted names; beyond six levels they are left out."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                found |= flat(value, f"{key}.", depth + 1)
        elif value is not None:
            found[key] = value
    return found


def settings_beside(folder: Path) -> dict[str, object]:
    """Return the settings in a file beside a run: its arguments, and the model that it stores.

    A file that cannot be read says nothing: it is not what the user named.
    """
    found: dict[str, object] = {}
    for name in _BESIDE:
        path = folder / name
        if not path.is_file():
            continue
        try:
            data = load_document(path).data
        except InputError:
            continue
        found = flat(unwrapped(data) if is_logged(data) else data)
        break
    model = folder / "config.json"
    if "target" not in found and model.is_file() and b'"model_type"' in head_of(model):
        found["target"] = str(model)
    return found


_MARK = b"SQLite format 3\x00"


def uri_of(path: Path) -> str:
    """Return the URI of a file for SQLite; what its name holds cannot end the path."""
    return f"file:{quote(path.absolute().as_posix())}"


def address_of(path: Path) -> str:
    """Return the address of an SQLite file for SQLAlchemy, opened for reading alone."""
    # Quoted twice: SQLAlchemy undoes the first, SQLite the second.
    return f"sqlite:///{quote(uri_of(path), safe=':/')}?mode=ro&uri=true"


def tables_of(path: Path) -> set[str]:
    """Return the names of the tables of a file; empty for one that is no such file."""
    if not head_of(path).startswith(_MARK):
        return set()
    try:
        with closing(sqlite3.connect(f"{uri_of(path)}?mode=ro", uri=True)) as file:
            found = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {name for (name,) in found}
    except sqlite3.Error:
        return set()


@contextmanager
def queries_that_end(path: Path) -> Iterator[None]:
    """Bound what SQLAlchemy's connections to a file may compute while the block runs.

    Raises:
        ArtifactError: The file has views or triggers.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def bound(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            bound_queries(connection, path, PAST_RUNS)

    event.listen(Engine, "connect", bound)
    try:
        yield
    finally:
        event.remove(Engine, "connect", bound)
