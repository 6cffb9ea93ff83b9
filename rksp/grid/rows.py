"""Grids as rows: CSV, JSON Lines or Parquet, one cell each, as trackers export them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from rksp.errors import InputError
from rksp.grid.axes import canonical
from rksp.recipe_files.document import parse_yaml


def read_rows(path: Path) -> tuple[list[dict[str, object]], list[str]]:
    """One cell a row; columns that are neither recipe nor model (metrics, names) are left out.

    Raises:
        InputError: The file cannot be read, or holds nothing.
    """
    rows = _READ[path.suffix.lower()](path)
    ignored, points = set(), []
    for row in rows:
        point = {}
        for name, value in row.items():
            if name is None or value in (None, ""):
                continue
            kind, _ = canonical(str(name))
            if kind == "set" and not str(name).startswith("set."):
                ignored.add(str(name))
                continue
            point[str(name)] = parse_yaml(value) if isinstance(value, str) else value
        points.append(point)
    if not points:
        raise InputError(f"{path} holds no rows.")
    note = f"Columns that are neither recipe nor model: {', '.join(sorted(ignored))}."
    return points, [note] if ignored else []


def _csv(path: Path) -> list[dict[str, object]]:
    with _open(path) as file:
        return list(csv.DictReader(file))


def _json_lines(path: Path) -> list[dict[str, object]]:
    rows = []
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}:{number}: not valid JSON.") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number}: a row is a JSON object.")
            rows.append(row)
    return rows


def _parquet(path: Path) -> list[dict[str, object]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow; pip install 'rksp[lab]'.") from error
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    return parquet.read_table(path).to_pylist()


def _open(path: Path):
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


_READ = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
ROWS = tuple(_READ)
