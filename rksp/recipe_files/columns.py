"""Tables that trackers export (CSV, JSON Lines, Parquet), one cell or run a row, and their columns.

A column, like an axis of a sweep, sets a field of the recipe, the model, the seed or a setting.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from rksp.ground.budgets import CELLS, TABLE, TABLE_COLUMNS, TABLE_ROWS, UNPACKED
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited, read_text
from rksp.ground.flags import field_of
from rksp.ground.reading import parse_json
from rksp.recipe import Recipe
from rksp.recipe_files.parse.content import parse_yaml
from rksp.recipe_files.parse.values import read_number
from rksp.recipe_files.table.names import optimizer_of, precision_of, schedule_of

_Row = dict[str, object]
_WEIGHTS = "model_name_or_path"  # Hugging Face's scripts load the weights that it names
_TARGETS = ("target", "model", _WEIGHTS)
_PREFIXES = ("config.", "config/", "params.", "params_", "hparams.", "recipe.")
_UNIT = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*$")
# Sections of nested settings that hold a recipe: a name below them means what it means alone.
_SECTIONS = re.compile(r"optim|sched|train|hyper_?param|^args$|^data")
_KINDS = ("name", "type", "class_path", "_target_")  # below them, what the section itself names


def without_unit(name: str) -> str:
    """Return a column's name without the unit behind it: `loss (nats)`, `lr [1/step]`."""
    return _UNIT.sub("", name.strip())


@lru_cache(maxsize=4096)
def canonical(name: str) -> tuple[str, str]:
    """Return what an axis varies, as a pair of kind and name.

    The pair is `("recipe", field)`, `("target", "")`, `("seed", "")` or `("set", setting)`.
    The names of `Recipe`'s fields, their usual short forms and the prefixes of exports
    (`config.lr`, `params_lr`) are known. `set.X` and every other name is a setting of the model.
    """
    plain = without_unit(name).lstrip("+")
    if plain.startswith("set."):
        return "set", plain.removeprefix("set.")
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    plain = plain.replace("-", "_")
    if plain in _TARGETS:
        return "target", ""
    if plain == "seed":
        return "seed", ""
    *sections, last = plain.lower().replace(" ", "_").split(".")
    if sections and last in _KINDS:
        *sections, last = sections
    field = field_of(Recipe, last)
    if field in Recipe.model_fields and all(_SECTIONS.search(part) for part in sections):
        return "recipe", field
    return "set", plain


def names_weights(name: str) -> bool:
    """Tell whether an axis names the weights that a run starts from, and not only its model."""
    plain = name.strip().lstrip("+").replace("-", "_")
    return canonical(name)[0] == "target" and plain.rsplit(".", 1)[-1].endswith(_WEIGHTS)


def in_our_words(field: str, value: object) -> object:
    """Translate names of optimizers, schedules and precisions; leave unknown ones alone."""
    if field == "optimizer":
        return optimizer_of(str(value))[0] or value
    if field == "schedule":
        return schedule_of(str(value))[0] or value
    if field == "precision":
        return precision_of(str(value)) or value
    return value


_SEPARATORS = (",", ";", "\t")  # the first of those that a header has as often
_DECIMAL_COMMA = re.compile(r"\s*[-+]?[0-9]+,[0-9]+([eE][-+]?[0-9]+)?\s*")
_BATCH = 1024  # rows
_LONGEST = 4096  # characters of a cell that may be a number or a list


def read_rows(path: Path) -> list[_Row]:
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
    if len(text) > _LONGEST:  # no setting
        return text
    number = read_number(text)
    return _parsed(text) if number is None else number


@lru_cache(maxsize=4096)
def _parsed(text: str) -> object:
    return parse_yaml(text)


def _csv(path: Path) -> list[_Row]:
    lines = _lines(path)
    header = lines.readline()
    lines.seek(0)
    mark = max(_SEPARATORS, key=header.count)
    try:
        reader = csv.DictReader(lines, delimiter=mark)
        width = len(reader.fieldnames or ())
        TABLE_COLUMNS.check(width, path)
        rows = _within(path, reader, width)
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV, {error}.") from error
    if mark == ",":
        return rows
    return [{name: _with_point(value) for name, value in row.items()} for row in rows]


def _with_point(value: object) -> object:
    if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
        return value.replace(",", ".")
    return value


def _json_lines(path: Path) -> list[_Row]:
    return _within(path, _objects(path))


def _objects(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}:{number}")
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: a row must be a JSON object.")
        yield row


def _within(path: Path, rows: Iterable[_Row], width: int = 0) -> list[_Row]:
    found: list[_Row] = []
    cells = 0
    for row in rows:
        found.append(row)
        cells += max(width, len(row))
        TABLE_ROWS.check(len(found), path)
        CELLS.check(cells, path)
    return found


def _parquet(path: Path) -> list[_Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow; pip install 'rksp[lab]'.") from error
    content = BytesIO(read_limited(path, TABLE))
    try:
        file = parquet.ParquetFile(content)
        _check_sizes(path, file)
        # As dictionaries: of a text that many rows share there is one.
        texts = [name for name in _leaves(file) if name.physical_type == "BYTE_ARRAY"]
        content.seek(0)
        file = parquet.ParquetFile(content, read_dictionary=[text.path for text in texts])
        rows: list[_Row] = []
        size = 0
        for batch in file.iter_batches(_BATCH):
            size += sum(_unpacked(column) for column in batch.columns)
            UNPACKED.check(size, path)
            rows += batch.to_pylist()
        return rows
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are these
        raise InputError(f"{path}: not valid Parquet ({error!s:.200}).") from error


def _leaves(file: Any) -> list[Any]:
    return [file.schema.column(i) for i in range(file.metadata.num_columns)]


def _check_sizes(path: Path, file: Any) -> None:
    """Refuse, by what the file says of itself, more than is read.

    Lists that repeat within a row must be short: how many values they have in all is what the
    pages say, which nobody reads before they are unpacked.

    Raises:
        InputError: There are too many rows, columns, values or bytes.
    """
    about, leaves = file.metadata, _leaves(file)
    TABLE_ROWS.check(about.num_rows, path)
    TABLE_COLUMNS.check(about.num_columns, path)
    values = size = 0
    for g in range(about.num_row_groups):
        for i, leaf in enumerate(leaves):
            chunk = about.row_group(g).column(i)
            values += chunk.num_values
            size += max(chunk.total_uncompressed_size, chunk.num_values * (leaf.length or 0))
    CELLS.check(values, path)
    UNPACKED.check(size, path)


def _unpacked(column: Any) -> int:
    """Return the bytes of a column's values, those of a dictionary as often as they are used."""
    import pyarrow
    import pyarrow.compute as compute

    kind = pyarrow.types
    if kind.is_struct(column.type):
        return sum(_unpacked(part) for part in column.flatten())
    if kind.is_list(column.type) or kind.is_large_list(column.type):
        return _unpacked(column.flatten())
    if not kind.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = compute.binary_length(column.dictionary)
    return int(compute.sum(lengths.take(column.indices)).as_py() or 0)


def _lines(path: Path) -> StringIO:
    return StringIO(read_text(path, TABLE), newline="")


_READ = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
ROWS = tuple(_READ)
