"""Grids as rows of CSV, JSON Lines or Parquet, one cell a row, as trackers export them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path

from rksp.grid.axes import canonical, names_weights
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited, read_text
from rksp.models.settings import settings_of
from rksp.recipe_files.parse.document import parse_yaml

_LARGEST = 64 * 2**20  # bytes
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
            str(name): parse_yaml(value) if isinstance(value, str) else value
            for name, value in row.items()
            if name is not None and value not in (None, "")
        }
        for row in rows
    ]


class Columns:
    """Tells the columns that set a cell's recipe, model or seed from metrics and names.

    Attributes:
        ignored: The names of the others, of every row so far.
    """

    def __init__(self, *, allow_hub: bool = False) -> None:
        self.ignored: set[str] = set()
        self._settings = lru_cache(lambda target: settings_of(target, allow_hub=allow_hub))

    def chosen(self, row: Mapping[str, object], target: str | None) -> dict[str, object]:
        """Return what a row sets.

        A column without a prefix is a setting of the model if the configuration of the row's
        target has it. Beside stored weights it counts only where it differs from theirs.

        Args:
            row: Values by column.
            target: The model, if the row names none.
        """
        own = next((str(row[n]) for n in ("target", *row) if _is_target(n) and n in row), target)
        known = self._settings(own) if own is not None else None
        point = {}
        for name, value in row.items():
            kind, setting = canonical(name)
            if kind == "set" and not name.startswith("set."):
                if known is None or setting not in known:
                    self.ignored.add(name)
                    continue
                value = _typed(value, known.value(setting))
                if known.has_weights and value == known.value(setting):
                    continue
            elif _names_target_again(name, value, row):
                self.ignored.add(name)
                continue
            point[name] = value
        return point

    def notes(self) -> list[str]:
        """Return a note that names the ignored columns; none if there are none."""
        names = ", ".join(sorted(self.ignored))
        return [f"Ignored columns (neither recipe nor settings of the model): {names}."] * bool(
            names
        )


def _is_target(name: str) -> bool:
    return canonical(name)[0] == "target"


def _names_target_again(name: str, value: object, row: Mapping[str, object]) -> bool:
    """Tell whether a column adds nothing to `target`; the name of its weights adds that."""
    if not _is_target(name) or name == "target" or "target" not in row:
        return False
    return value != row["target"] or not names_weights(name)


def _typed(value: object, like: object) -> object:
    """Convert 2.0 to 2 where the setting is a whole number: a column with gaps holds floats."""
    is_whole = isinstance(like, int) and not isinstance(like, bool)
    return int(value) if is_whole and isinstance(value, float) and value.is_integer() else value


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
