"""Read the user's own examples: JSON Lines, CSV, Parquet, text, or a folder of one kind of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rksp.ground.budgets import PROBE
from rksp.ground.errors import ArtifactError, InputError, summary
from rksp.ground.files import read_head, read_text, with_home

_MOST_ROWS = 20_000  # of a file that may hold billions
_MOST_CLASSES = 10_000
_MOST_CHARACTERS = 64 * 2**20
_ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
_SAVED = ("dataset_info.json", "dataset_dict.json")  # of `Dataset.save_to_disk`, with `*.arrow`
_CHATS = ("messages", "conversations")
_TEXTS = ("text", "content", "sentence")
_PROMPTS = (("prompt", "completion"), ("instruction", "output"), ("instruction", "response"))
_PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence")),
    *(("question1", "question2"), ("text1", "text2")),
)
_LABELS = ("label", "labels")
_COLUMNS = (
    "text; messages or conversations; prompt and completion; instruction and output; or text and "
    "label"
)

Form = Literal["text", "chat", "completion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """The user's examples.

    Attributes:
        name: Of the file or folder.
        form: "text" is learned whole, "chat" is a list of messages, and of a "completion" only
            the answer is learned.
        rows: (text, None), (messages, None) or (prompt, completion); two texts of a pair to
            classify are (first, second).
        labels: Class of every row, as the file has it; empty without labels.
        is_cut: Whether the file holds more rows than were read.
    """

    name: str
    form: Form
    rows: tuple[tuple[Any, Any], ...]
    labels: tuple[int | str, ...] = ()
    is_cut: bool = False

    @property
    def classes(self) -> list[int | str]:
        """The distinct labels in order; of numbers, all from 0 to the largest."""
        numbers = [label for label in self.labels if isinstance(label, int)]
        if len(numbers) == len(self.labels):
            return list(range(max(numbers, default=-1) + 1))
        return sorted(set(self.labels), key=str)


def read_own_rows(path: Path) -> OwnRows:
    """Read at most 20,000 examples; nothing is downloaded and no code of the data is run.

    Args:
        path: A file, a folder of files with one ending, or a folder of `Dataset.save_to_disk`.

    Raises:
        InputError: pyarrow is missing, there is no such file, or its columns are not known.
        ArtifactError: The file cannot be read.
    """
    path = with_home(path)
    files = _files(path)
    stats = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _read(path, stats)


@lru_cache(maxsize=4)
def _read(path: Path, stats: tuple[tuple[Path, int, int], ...]) -> OwnRows:
    try:
        rows = list(islice((row for file, *_ in stats for row in _rows(file)), _MOST_ROWS + 1))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of pyarrow, JSON or the file system
        raise ArtifactError(f"{path} cannot be read ({summary(error)}).") from error
    if not rows:
        raise InputError(f"{path} holds no rows; give a file with examples.")
    return _understood(path, rows)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, of one as large as it may be."""
    if file.suffix.lower() == ".txt":
        yield from ({"text": line.rstrip("\n")} for line in _lines(file))
    elif file.suffix.lower() in (".json", ".jsonl"):
        if read_head(file, 64).lstrip().startswith(b"["):
            yield from json.loads(read_text(file, PROBE))
        else:
            yield from (json.loads(line) for line in _lines(file) if line.strip())
    else:
        for batch in _batches(file):
            yield from batch.to_pylist()


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8-sig") as content:
        yield from iter(lambda: content.readline(_MOST_CHARACTERS), "")


def _batches(file: Path) -> Any:
    """Return the record batches of CSV, Parquet or Arrow, as pyarrow, which has no types, does."""
    try:
        from pyarrow import csv, ipc, parquet
    except ImportError:
        raise InputError(f"{file} needs pyarrow; pip install 'rksp[data]'.") from None
    kind = file.suffix.lower()
    if kind == ".parquet":
        return parquet.ParquetFile(file).iter_batches(1024)
    if kind == ".arrow":
        return ipc.open_stream(file)
    mark = "\t" if kind == ".tsv" else ","
    quoted = csv.ParseOptions(delimiter=mark, newlines_in_values=True)
    return csv.open_csv(file, parse_options=quoted)


def _files(path: Path) -> list[Path]:
    """Return the files to read, sorted.

    Raises:
        InputError: There are none, or of several kinds.
    """
    endings = ", ".join(_ENDINGS)
    if path.is_file():
        if path.suffix.lower() not in _ENDINGS:
            raise InputError(f"--data {path} ends in none of {endings}; convert it to JSON Lines.")
        return [path]
    if not path.is_dir():
        raise InputError(f"There is no file or folder {path} to read data from.")
    if any((path / name).is_file() for name in _SAVED):
        parts = {part.parent.name: part.parent for part in sorted(path.glob(f"*/{_SAVED[0]}"))}
        home = next(iter(parts.values()), path)
        return sorted(parts.get("train", home).glob("*.arrow"))  # of several the one to train on
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
    kinds = sorted({file.suffix.lower() for file in found})
    if len(kinds) != 1:
        held = f"files of several kinds ({', '.join(kinds)})" if kinds else f"no file in {endings}"
        raise InputError(f"The folder {path} holds {held}; give one file, or files of one kind.")
    return found


def _understood(path: Path, rows: list[dict[str, Any]]) -> OwnRows:
    names = list(rows[0])
    is_cut, rows = len(rows) > _MOST_ROWS, _within(rows[:_MOST_ROWS])
    form, (first, *more) = _form(path, names)
    second = more[0] if more else None
    label = next((name for name in _LABELS if name in names), None)
    kept = [row for row in rows if row.get(first)]
    if not kept:
        raise InputError(f"The column {first} of {path} is empty; give a file with examples.")
    asked = [row[first] for row in kept]
    if first == "instruction":  # Alpaca's third column is part of the question
        asked = [f"{row[first]}\n{row.get('input') or ''}".strip() for row in kept]
    found = tuple((q, second and row.get(second)) for q, row in zip(asked, kept, strict=True))
    labels = tuple(_label(path, row.get(label)) for row in kept) if label and form == "text" else ()
    return OwnRows(name=path.name, form=form, rows=found, labels=labels, is_cut=is_cut)


def _form(path: Path, names: Sequence[str]) -> tuple[Form, tuple[str, ...]]:
    for name in _CHATS:
        if name in names:
            return "chat", (name,)
    for pair in _PROMPTS:
        if set(pair) <= set(names):
            return "completion", pair
    for pair in _PAIRS:
        if set(pair) <= set(names):
            return "text", pair
    for name in _TEXTS:
        if name in names:
            return "text", (name,)
    held = ", ".join(names[:8]) or "none"
    raise InputError(f"{path} has the columns {held}; rksp reads {_COLUMNS}.")


def _within(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows up to a limit of characters, and at least one."""
    size = 0
    kept: list[dict[str, Any]] = []
    for row in rows:
        size += len(str(row))
        if kept and size > _MOST_CHARACTERS:
            break
        kept.append(row)
    return kept


def _label(path: Path, value: object) -> int | str:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():  # a column with gaps is read as floats
        value = int(value)
    if isinstance(value, str) or (isinstance(value, int) and 0 <= value < _MOST_CLASSES):
        return value
    raise InputError(
        f"{path} has the label {value!r:.50}; a label is a name or a number from 0 to "
        f"{_MOST_CLASSES - 1}."
    )
