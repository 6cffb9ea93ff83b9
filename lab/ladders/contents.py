"""Tell which ladders a folder or file holds."""

from __future__ import annotations

import json
from pathlib import Path

from lab.ladders.collection import collection_ids
from lab.ladders.fine_tuning.store import SCHEMA
from lab.ladders.parquet import read_columns, schema_of
from lab.ladders.store import MOST_BYTES
from rksp.ground.errors import InputError
from rksp.ground.files import read_text


def hold_fine_tuning(source: Path) -> bool:
    """Tell whether a folder, a ladder's file or a packed file holds ladders of fine-tuning.

    What cannot be read does not; whoever reads it then says what is wrong with it.
    """
    if source.suffix == ".parquet":
        return schema_of(source) == SCHEMA if source.is_file() else False
    path = next(iter(sorted(source.glob("*.json"))), None) if source.is_dir() else source
    if path is None:
        return False
    try:
        return json.loads(read_text(path, MOST_BYTES)).get("schema") == SCHEMA
    except (InputError, ValueError, AttributeError, RecursionError):
        return False


def packed_ids(path: Path) -> frozenset[str]:
    """Return the ids of the ladders of a packed file of either kind."""
    if hold_fine_tuning(path):
        return frozenset(read_columns(path, SCHEMA, ("ladder",))["ladder"])
    return collection_ids(path)
