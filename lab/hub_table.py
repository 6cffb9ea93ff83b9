"""Make the table of published configurations from rows of facts: `rksp/models/published.tsv`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError

TABLE = Path(__file__).parents[1] / "rksp" / "models" / "published.tsv"
# Known, and not among the rows.
_MORE = [
    {
        "id": "facebook/wav2vec2-base",
        "model_type": "wav2vec2",
        "config": {},
        "source": "transformers: the documentation of Wav2Vec2Config",
        "certain": True,
    },
    {"id": "facebook/wav2vec2-base-960h", "same_as": "facebook/wav2vec2-base"},
]
_LISTS = ("RahulSChand/gpu_poor",)
_COMMIT = re.compile(r"@[0-9a-f]+")


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a JSON Lines file by Hub id.

    Raises:
        InputError: A row repeats the shape of an id that the file lacks.
    """
    read = map(json.loads, path.read_text("utf-8").splitlines())
    rows = {row["id"]: row for row in (*_MORE, *read)}
    for row in rows.values():
        if row.get("same_as", row["id"]) not in rows:
            raise InputError(
                f"{path}: {row['id']} is the same as {row['same_as']}, which it lacks."
            )
    return rows


def hub_table(rows: Mapping[str, Mapping[str, Any]], month: str) -> str:
    """Return the text of the table.

    A shape that a stored file states goes before one whose other settings are conventional. Left
    out are ids of which only a list knows, in `_LISTS`, whose shape no stored file states, and, of
    ids in several spellings, the later.

    Args:
        rows: See `read_rows`: either `model_type` and `config`, or `same_as`.
        month: When the facts were collected, as 2026-11.
    """
    shapes: dict[tuple[str, str], list[str]] = {}
    of: dict[tuple[str, str], Mapping[str, Any]] = {}
    seen: set[str] = set()
    for row in sorted(rows.values(), key=_rank(rows)):
        shape = _shape(row, rows)
        is_listed = row.get("source", "").startswith(_LISTS) and not shape["certain"]
        if is_listed or row["id"].lower() in seen:
            continue
        seen.add(row["id"].lower())
        settings = json.dumps(shape["config"], separators=(",", ":"), sort_keys=True)
        key = (shape["model_type"], settings)
        of.setdefault(key, shape)
        shapes.setdefault(key, []).append(row["id"])
    lines = [
        f"{kind}\t{settings}\t{_COMMIT.sub('', of[kind, settings]['source'])}\t {' '.join(ids)} "
        for (kind, settings), ids in shapes.items()
    ]
    return "\n".join([month, *lines]) + "\n"


def _rank(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    """Order rows: complete shapes first; of a shape its own name, its owner's others, the rest."""

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool, str, bool, bool, str]:
        shape = _shape(row, rows)
        known = (not shape.get("exact"), not shape["certain"])
        is_copy = row["id"].partition("/")[0] != shape["id"].partition("/")[0]
        return *known, shape["id"], row is not shape, is_copy, row["id"]

    return rank


def _shape(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    while "same_as" in row:
        row = rows[row["same_as"]]
    return row
