"""Grids as rows of CSV, JSON Lines or Parquet, one cell a row, as trackers export them."""

from __future__ import annotations

import csv
import json
from io import BytesIO, StringIO
from pathlib import Path

from rksp.grid.axes import canonical
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited, read_text
from rksp.recipe_files.parse.document import parse_yaml

_LARGEST = 64 * 2**20  # bytes
_MOST_ROWS, _MOST_COLUMNS = 100_000, 10_000


def read_rows(path: Path) -> tuple[list[dict[str, object]], list[str]]:
    """Read one cell from each row; leave out columns that are neither recipe nor model.

    Returns:
        The cells, and a note that lists the columns left out.

    Raises:
        InputError: The file cannot be read, or it has no rows.
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
    note = f"Ignored columns (neither recipe nor model): {', '.join(sorted(ignored))}."
    return points, [note] if ignored else []


def _csv(path: Path) -> list[dict[str, object]]:
    try:
        return list(csv.DictReader(_lines(path)))
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV, {error}.") from error


def _json_lines(path: Path) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not valid JSON.") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: a row must be a JSON object.")
        rows.append(row)
    return rows


def _parquet(path: Path) -> list[dict[str, object]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow; pip install 'rksp[lab]'.") from error
    content = read_limited(path, _LARGEST)
    try:
        file = parquet.ParquetFile(BytesIO(content))
        if file.metadata.num_rows > _MOST_ROWS or file.metadata.num_columns > _MOST_COLUMNS:
            raise InputError(f"{path} holds more rows or columns than a grid can have.")
        return file.read().to_pylist()
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are these
        raise InputError(f"{path}: not valid Parquet ({error!s:.200}).") from error


def _lines(path: Path) -> StringIO:
    """Return the text of a file with its line ends unchanged."""
    return StringIO(read_text(path, _LARGEST), newline="")


_READ = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
ROWS = tuple(_READ)
