"""A grid as files for other programs: its records as tables, the kept cells as sweeps."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rksp.grid.sweeps import SWEEPS
from rksp.grid.table import Record
from rksp.ground.errors import InputError
from rksp.ground.files import atomic_write, check_writable, replacing
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")
SUFFIXES = (*TABLES, *SWEEPS)
_CAN_BE_OFF = tuple(name for name, flag in flags_of(Recipe).items() if flag.zero_is_off)


def check_export(path: Path) -> None:
    """Check the path of an export before hours of work.

    Raises:
        InputError: The suffix is unknown, or the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"--export {path} must end in one of {', '.join(SUFFIXES)}.")
    check_writable(path, "--export")


def export(found: Sequence[Record], path: Path) -> None:
    """Write all records with all columns in the format that the suffix names.

    Raises:
        InputError: As for `check_export`, or pyarrow is missing for Parquet.
        Incomplete: The disk is full; an old file is unchanged.
    """
    check_export(path)
    if path.suffix == ".parquet":
        _write_parquet(found, path)
    elif path.suffix == ".csv":
        atomic_write(path, to_csv(found))
    else:
        lines = (json.dumps(_flat(record), sort_keys=True) + "\n" for record in found)
        atomic_write(path, "".join(lines))


def to_csv(found: Sequence[Record]) -> str:
    """Return all columns of all records as CSV, which `rksp grid` reads as the same cells."""
    found = [_flat(record) for record in found]
    text = io.StringIO()
    columns = _columns(found)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_inert, columns))
    writer.writerows([_inert(row.get(name, "")) for name in columns] for row in found)
    return text.getvalue()


def _inert(value: Any) -> Any:
    """Return text that a spreadsheet does not take for a formula, which it would run."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _write_parquet(found: Sequence[Record], path: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow; pip install 'rksp[lab]'.") from error
    found = [_flat(record) for record in found]
    table = {name: _of_one_type([r.get(name) for r in found]) for name in _columns(found)}
    with replacing(path) as partial:
        parquet.write_table(arrow.table(table), partial)


def _flat(record: Record) -> Record:
    """Return a record without lists of findings, and with 0 for what is off, as options have it.

    An empty cell of a table means that nobody decided.
    """
    findings = " ".join(f"{part['code']} {part['level']}" for part in record["findings"])
    off = {name: 0 for name in _CAN_BE_OFF if name in record and record[name] is None}
    return record | off | {"findings": findings}


def _columns(found: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in found for name in record))


def _of_one_type(values: list[Any]) -> list[Any]:
    """Convert a column to one type, as Parquet needs: numbers to floats, other mixtures to text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 and kinds <= {int, float, bool, str}:
        return values
    cast = float if kinds == {int, float} else str
    return [None if value is None else cast(value) for value in values]
