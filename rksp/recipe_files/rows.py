"""Tables of CSV, JSON Lines or Parquet, one cell or run a row, as trackers export them."""

from __future__ import annotations

import csv
import json
import re
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.ground.files import read_limited, read_text
from rksp.recipe_files.parse.document import parse_yaml
from rksp.recipe_files.parse.values import read_number

_LARGEST = 64 * 2**20  # bytes
_SEPARATORS = (",", ";", "\t")  # the first of those that a header has as often
_DECIMAL_COMMA = re.compile(r"\s*[-+]?[0-9]+,[0-9]+([eE][-+]?[0-9]+)?\s*")
_MOST_ROWS, _MOST_COLUMNS = 100_000, 10_000


def read_rows(path: Path) -> list[dict[str, object]]:
    """Read the columns that have a value of each row, texts as YAML values.

    Raises:
        InputError: The file cannot be read, or it has no rows.
    """
    rows = _READ[path.suffix.lower()](path)
    if not rows:
        raise InputError(f"{path} holds no rows.")
    return [
        {
            str(name): _value(value) if isinstance(value, str) else value
            for name, value in row.items()
            if name is not None and value not in (None, "")
        }
        for row in rows
    ]


def _value(text: str) -> object:
    """Parse a cell; numbers, which most cells are, take the short way."""
    number = read_number(text)
    return _parsed(text) if number is None else number


@lru_cache(maxsize=4096)
def _parsed(text: str) -> object:
    return parse_yaml(text)


def _csv(path: Path) -> list[dict[str, object]]:
    """Read a table of commas; or of semicolons or tabs, whose numbers may have decimal commas."""
    lines = _lines(path)
    header = lines.readline()
    lines.seek(0)
    mark = max(_SEPARATORS, key=header.count)
    try:
        rows = list(csv.DictReader(lines, delimiter=mark))
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV, {error}.") from error
    if mark == ",":
        return rows
    return [{name: _with_point(value) for name, value in row.items()} for row in rows]


def _with_point(value: object) -> object:
    """Write a number with a decimal comma with a point."""
    if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
        return value.replace(",", ".")
    return value


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
            raise InputError(f"{path} holds more rows or columns than rksp reads.")
        return file.read().to_pylist()
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are these
        raise InputError(f"{path}: not valid Parquet ({error!s:.200}).") from error


def _lines(path: Path) -> StringIO:
    """Return the text of a file with its line ends unchanged."""
    return StringIO(read_text(path, _LARGEST), newline="")


_READ = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
ROWS = tuple(_READ)
