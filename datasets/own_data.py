"""The user's own examples: JSON Lines, CSV, Parquet, text, or a folder; and batches of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rksp.datasets.batch import IGNORED
from rksp.datasets.probe import Probe, encoded, position_limit, spread_bytes, vocabulary_of
from rksp.ground.budgets import CELLS, PROBE
from rksp.ground.errors import ArtifactError, InputError, foreign, summary
from rksp.ground.files import read_head, read_text, with_home
from rksp.ground.reading import open_lines, parse_json

Form = Literal["text", "chat", "completion"]

_MOST_ROWS = 20_000  # of a file that may hold billions
_MOST_CLASSES = 10_000
_MOST_CHARACTERS = 64 * 2**20
_ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
_SAVED = ("dataset_info.json", "dataset_dict.json")  # of `Dataset.save_to_disk`, with `*.arrow`
# The columns of each form; the first that a file has are read.
_FORMS: tuple[tuple[Form, str], ...] = (
    *(("chat", "messages"), ("chat", "conversations")),
    *(("completion", "prompt completion"), ("completion", "instruction output")),
    *(("completion", "instruction response"), ("text", "sentence1 sentence2")),
    *(("text", "premise hypothesis"), ("text", "question sentence")),
    *(("text", "question1 question2"), ("text", "text1 text2")),
    *(("text", "text"), ("text", "content"), ("text", "sentence")),
)
_LABELS = ("label", "labels")
_COLUMNS = (
    "text; messages or conversations; prompt and completion; instruction and output; or text and "
    "label"
)
_SEQUENCES, _LENGTH = 16, 128  # of a probe, as of the bundled text
_CHARACTERS = 16  # that are encoded for each token that is asked for
_TRIED = 400_000  # characters
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names
_ANSWERS = "of completions only the answer is learned"


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
    if file.suffix.lower() == ".txt":
        yield from ({"text": line.rstrip("\n")} for line in _lines(file))
    elif file.suffix.lower() in (".json", ".jsonl"):
        if read_head(file, 64).lstrip().startswith(b"["):
            yield from parse_json(read_text(file, PROBE), file, most=CELLS)
        else:
            yield from (parse_json(line, file) for line in _lines(file) if line.strip())
    else:
        for batch in _batches(file):
            yield from batch.to_pylist()


def _lines(file: Path) -> Iterator[str]:
    return open_lines(file, _MOST_CHARACTERS)


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


def _understood(path: Path, rows: list[dict[str, object]]) -> OwnRows:
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


def _form(path: Path, names: Sequence[str]) -> tuple[Form, list[str]]:
    for form, columns in _FORMS:
        if set(columns.split()) <= set(names):
            return form, columns.split()
    held = ", ".join(names[:8]) or "none"
    raise InputError(f"{path} has the columns {held}; rksp reads {_COLUMNS}.")


def _within(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    sizes = list(accumulate(len(str(row)) for row in rows))
    return rows[: max(1, bisect_right(sizes, _MOST_CHARACTERS))]


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


def own_probe(
    source: Any,
    data: OwnRows,
    *,
    num_sequences: int | None = None,
    sequence_length: int | None = None,
    seed: int = 0,
) -> Probe:
    """Make a probe of the user's examples, in the order of the data.

    A language model reads them one after the other, cut into sequences of equal length; the others
    read one example a row, cut at that length and padded. The checkpoint's own tokenizer encodes
    them; without one each byte is a token. Chats go through the checkpoint's own template.

    Args:
        source: A `ModelSource`.
        data: The examples.
        num_sequences: Sequences at most, evenly spaced over the data; default 16.
        sequence_length: Tokens a sequence; default 128, or the model's limit if that is lower.
        seed: Spreads bytes over the vocabulary.

    Raises:
        InputError: The examples do not fit what the model predicts, or are too short.
    """
    config, task = source.config, source.task
    if task not in ("causal-lm", "masked-lm", "seq2seq", "text-classification", "other"):
        raise InputError(
            f"{source.target} reads no text, and --data holds text; give a factory that returns "
            "the model and its batches."
        )
    if config is None:
        raise InputError(f"{source.target} comes with its own inputs; leave out --data.")
    coder = _Coder(source, data, seed)
    length = sequence_length or _LENGTH
    length = min(length, position_limit(config) or length)
    count = num_sequences or _SEQUENCES
    described = data
    if task != "text-classification":
        data = _enough(data, _CHARACTERS * count * length)
    if task == "text-classification":
        inputs, labels = _classified(source, data, coder, count, length)
    elif task == "seq2seq" and data.form == "completion":
        inputs, labels = _answered(config, data, coder, count, length)
    else:
        inputs, labels = _running(data, coder, count, length, is_shifted=task == "causal-lm")
        if task == "seq2seq":
            inputs |= {f"decoder_{name}": part.clone() for name, part in inputs.items()}
    rows, tokens = inputs["input_ids"].shape
    notes = [_ANSWERS] if data.form == "completion" else []
    notes += ["the file holds more rows than were read"] if described.is_cut else []
    said = f"{data.name}, {len(described.rows)} examples, {coder.how}, {rows} × {tokens} tokens"
    return Probe(
        inputs=inputs,
        labels=None if task == "other" else labels,
        description="; ".join([said, *notes]),
        num_tokens=inputs["input_ids"].numel(),
    )


def fit_head(source: Any, data: OwnRows) -> None:
    """Give a head that is not trained yet as many classes as the data have.

    The configuration is changed in place, so call it before the model is built.

    Raises:
        InputError: The examples have no labels, or more classes than a trained head.
    """
    if source.task != "text-classification":
        return
    if not data.labels:
        raise InputError(
            f"{source.target} classifies texts, and {data.name} has no labels; give rows with the "
            "columns text and label."
        )
    classes, own = len(data.classes), source.config.num_labels
    if not source.start.is_stored or source.has_fresh_head:
        source.config.num_labels = max(2, classes)
    elif classes > own:
        raise InputError(
            f"{data.name} has {classes} classes and the head of {source.target} {own}; give data "
            "of its classes, or the checkpoint without its head and --task text-classification."
        )


class _Coder:
    def __init__(self, source: Any, data: OwnRows, seed: int) -> None:
        self.target, self.vocabulary = source.target, vocabulary_of(source.config)
        file: Path | None = source.tokenizer_path
        if file is not None:  # in a process of its own first, which may take only so much
            encoded("\n".join(str(one) for row in data.rows for one in row)[:_TRIED], file)
        self.tokenizer = None if file is None else _tokenizer(file)
        self.how = "each byte a token" if file is None else "the target's tokenizer"
        self._bytes = spread_bytes(self.vocabulary, seed) if file is None else None
        if data.form == "chat":
            if getattr(self.tokenizer, "chat_template", None) is None:
                raise InputError(
                    f"{source.target} has no chat template for the messages of {data.name}; give "
                    "rows with the column text, or save the tokenizer with its template."
                )
            self.how += " and its chat template"
        end = getattr(self.tokenizer, "eos_token_id", None)
        self.end = [] if end is None else [end]
        own_end = getattr(source.config, "eos_token_id", None)
        needs_end = self.tokenizer is None and getattr(source.config, "is_encoder_decoder", False)
        # A classifier with an encoder and a decoder reads the end of a text.
        self.close = [own_end] if needs_end and isinstance(own_end, int) else []
        padding = getattr(source.config, "pad_token_id", None)
        self.padding = padding if isinstance(padding, int) else 0

    def ids(self, text: str, pair: str | None = None, *, is_whole: bool = False) -> list[int]:
        """Encode a text, or two; `is_whole` adds the tokens that begin and end an example."""
        if self.tokenizer is None:
            joined = text if pair is None else f"{text}\n{pair}"
            return self._bytes[list(joined.encode())].tolist()  # type: ignore[index]  # bytes there
        with foreign(f"The tokenizer of {self.target} cannot encode the data"):
            found = self.tokenizer(text, pair, add_special_tokens=is_whole)["input_ids"]
        if found and max(found) >= self.vocabulary:
            raise InputError(
                f"The tokenizer of {self.target} gives the token {max(found)}, and the vocabulary "
                f"has {self.vocabulary}; give the tokenizer of this model."
            )
        return list(found)

    def chat(self, messages: Sequence[object]) -> list[int]:
        with foreign(f"The chat template of {self.target} refuses a conversation"):
            said = [_message(one) for one in messages]
            text = self.tokenizer.apply_chat_template(said, tokenize=False)  # type: ignore[union-attr]  # a chat
        return self.ids(text)


def _tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    said = f"{file} cannot be read as a tokenizer"
    # Where nothing names its class, the file itself may still be whole.
    with suppress(InputError), foreign(said):
        return AutoTokenizer.from_pretrained(
            file.parent, local_files_only=True, trust_remote_code=False
        )
    fast: Any = PreTrainedTokenizerFast  # whose initializer has no types
    with foreign(said):
        return fast(tokenizer_file=str(file))


def _message(one: Any) -> dict[str, str]:
    role, content = (one["from"], one["value"]) if "from" in one else (one["role"], one["content"])
    return {"role": _ROLES.get(role, role), "content": content}


def _enough(data: OwnRows, characters: int) -> OwnRows:
    size = sum(len(str(first)) + len(str(second or "")) for first, second in data.rows)
    count = max(2, math.ceil(len(data.rows) * min(1.0, characters / max(1, size))))
    if count >= len(data.rows):
        return data
    chosen = [i * len(data.rows) // count for i in range(count)]
    return replace(data, rows=tuple(data.rows[i] for i in chosen))


def _examples(data: OwnRows, coder: _Coder) -> Iterable[tuple[list[int], list[int]]]:
    for first, second in data.rows:
        if data.form == "chat":
            ids = coder.chat(first)
            yield ids, ids
            continue
        question = coder.ids(_text(first))
        if second is None:
            yield question + coder.end, question + coder.end
            continue
        answer = coder.ids(_text(second)) + coder.end
        hidden = [IGNORED] * len(question) if data.form == "completion" else question
        yield question + answer, hidden + answer


def _running(
    data: OwnRows, coder: _Coder, count: int, length: int, *, is_shifted: bool
) -> tuple[dict[str, Tensor], Tensor]:
    ids: list[int] = []
    learned: list[int] = []
    for tokens, labels in _examples(data, coder):
        ids += tokens
        learned += labels
    shift = int(is_shifted)
    if len(ids) < 2 + shift:
        raise InputError(f"{data.name} gives {len(ids)} tokens, too few for a batch.")
    length = min(length, max(2, (len(ids) - shift) // 2))  # two sequences at least
    chosen = torch.tensor(_evenly((len(ids) - shift) // length, count))
    places = (chosen * length)[:, None] + torch.arange(length)
    read, asked = torch.tensor(ids)[places], torch.tensor(learned)[places + shift]
    return {"input_ids": read, "attention_mask": torch.ones_like(read)}, asked


def _classified(
    source: object, data: OwnRows, coder: _Coder, count: int, length: int
) -> tuple[dict[str, Tensor], Tensor]:
    fit_head(source, data)
    places = {label: place for place, label in enumerate(data.classes)}
    chosen, rows = _evenly(len(data.rows), count), []
    for first, second in (data.rows[i] for i in chosen):
        pair = None if second is None else _text(second)
        ids = coder.ids(_text(first), pair, is_whole=True)
        rows.append(ids[: length - len(coder.close)] + coder.close)
    labels = torch.tensor([places[data.labels[i]] for i in chosen])
    return _padded(rows, coder.padding), labels


def _answered(
    config: object, data: OwnRows, coder: _Coder, count: int, length: int
) -> tuple[dict[str, Tensor], Tensor]:
    pairs = [data.rows[i] for i in _evenly(len(data.rows), count)]
    questions = [coder.ids(_text(q), is_whole=True)[:length] for q, _ in pairs]
    answers = [(coder.ids(_text(a)) + coder.end)[:length] or [coder.padding] for _, a in pairs]
    start = getattr(config, "decoder_start_token_id", None)
    read = [[coder.padding if start is None else start, *answer[:-1]] for answer in answers]
    inputs = _padded(questions, coder.padding) | _padded(read, coder.padding, "decoder_")
    return inputs, _padded(answers, IGNORED)["input_ids"]


def _evenly(room: int, count: int) -> list[int]:
    room = max(1, room)
    places: list[int] = torch.linspace(0, room - 1, min(count, room)).round().long().tolist()
    return list(dict.fromkeys(places))


def _padded(rows: Sequence[Sequence[int]], padding: int, prefix: str = "") -> dict[str, Tensor]:
    width = max(1, *(len(row) for row in rows))
    full = [[*row, *[padding] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return {
        f"{prefix}input_ids": torch.tensor(full),
        f"{prefix}attention_mask": torch.tensor(mask),
    }


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(_message(one)["content"] for one in value)
    return str(value)
