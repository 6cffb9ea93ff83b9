"""Make batches of the user's own examples, in the form that a model takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rksp.datasets.batch import IGNORED
from rksp.datasets.own_rows import OwnRows
from rksp.datasets.probe import Probe, encoded, position_limit, spread_bytes, vocabulary_of
from rksp.ground.errors import InputError, foreign

_SEQUENCES, _LENGTH = 16, 128  # of a probe, as of the bundled text
_CHARACTERS = 16  # that are encoded for each token that is asked for
_TRIED = 400_000  # characters
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names
_ANSWERS = "of completions only the answer is learned"


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
    if not source.is_pretrained or source.has_fresh_head:
        source.config.num_labels = max(2, classes)
    elif classes > own:
        raise InputError(
            f"{data.name} has {classes} classes and the head of {source.target} {own}; give data "
            "of its classes, or the checkpoint without its head and --task text-classification."
        )


class _Coder:
    """Turns text and chats into tokens, by the tokenizer beside the weights or by bytes."""

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

    def chat(self, messages: Sequence[Any]) -> list[int]:
        """Encode a conversation through the checkpoint's template."""
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
    """Return examples evenly spaced over the data, of about so many characters together."""
    size = sum(len(str(first)) + len(str(second or "")) for first, second in data.rows)
    count = max(2, math.ceil(len(data.rows) * min(1.0, characters / max(1, size))))
    if count >= len(data.rows):
        return data
    chosen = [i * len(data.rows) // count for i in range(count)]
    return replace(data, rows=tuple(data.rows[i] for i in chosen))


def _examples(data: OwnRows, coder: _Coder) -> Iterable[tuple[list[int], list[int]]]:
    """Yield (tokens, labels) of every example; a question is read and not learned."""
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
    """Join all examples and cut them into sequences; the labels are the next tokens if shifted."""
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
    source: Any, data: OwnRows, coder: _Coder, count: int, length: int
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
    config: Any, data: OwnRows, coder: _Coder, count: int, length: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return questions for the encoder, and answers for the decoder to predict."""
    pairs = [data.rows[i] for i in _evenly(len(data.rows), count)]
    questions = [coder.ids(_text(q), is_whole=True)[:length] for q, _ in pairs]
    answers = [(coder.ids(_text(a)) + coder.end)[:length] or [coder.padding] for _, a in pairs]
    start = getattr(config, "decoder_start_token_id", None)
    read = [[coder.padding if start is None else start, *answer[:-1]] for answer in answers]
    inputs = _padded(questions, coder.padding) | _padded(read, coder.padding, "decoder_")
    return inputs, _padded(answers, IGNORED)["input_ids"]


def _evenly(room: int, count: int) -> list[int]:
    """Return at most `count` places, evenly spaced over this many, both ends among them."""
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


def _text(value: Any) -> str:
    """Return a text; of TRL's messages in a prompt, their contents."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(_message(one)["content"] for one in value)
    return str(value)
