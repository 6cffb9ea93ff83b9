"""What a model is shown when it is scored: real text or images, with labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rksp.datasets.corpora import digit_images, shakespeare
from rksp.datasets.tasks import IGNORED, Batch
from rksp.errors import InputError

STATES = 2048  # enough for a full-rank spectrum at width 768 (2.7 states a dimension)
_LENGTH = 128
_MASKED_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A batch and where it came from.

    Attributes:
        batch: Inputs as the model's keyword arguments, and labels in line with its logits.
        description: What was shown, for the report.
        tokens: Number of states that a block will see.
    """

    batch: Batch
    description: str
    tokens: int


def text_probe(
    *,
    task: str,
    vocab_size: int,
    max_length: int | None = None,
    tokenizer: Path | None = None,
    file: Path | None = None,
    states: int = STATES,
    skip: int = 0,
) -> Probe:
    """Consecutive sequences of a text, as a model of `task` takes them.

    Args:
        task: `causal-lm`, `masked-lm`, or `seq2seq` (the decoder continues the encoder's text).
        vocab_size: Ids stay below it.
        max_length: Longest sequence the model takes.
        tokenizer: A `tokenizer.json`; without one the text's bytes are spread over the vocabulary.
        file: Text to show instead of the bundled Shakespeare.
        states: Tokens wanted in all; rounded up to whole sequences.
        skip: Sequences of the text left out at its start, for a second, disjoint probe.

    Raises:
        InputError: The file is missing or too short, or an id lies outside the vocabulary.
    """
    text, name = _read(file)
    ids, how = _encode(text, vocab_size, tokenizer)
    length = min(_LENGTH, max_length or _LENGTH)
    rows = math.ceil(states / length)
    if task == "seq2seq":
        rows, length = rows, length  # each row feeds the encoder, the next text the decoder
    span = length + 1
    have = len(ids) // span
    if have < skip + rows:
        rows, skip = have - skip if have > skip else have, skip if have > skip else 0
    if rows < 1 or length < 2:
        raise InputError(
            f"{name} gives {len(ids)} tokens, too few for one sequence of {max(span, 3)}; "
            "use a longer --probe."
        )
    block = ids[skip * span : (skip + rows) * span].view(rows, span)
    return Probe(
        batch=_batch(task, block, vocab_size),
        description=f"{rows} × {length} tokens of {name}, {how}",
        tokens=rows * length,
    )


def image_probe(*, size: int, channels: int, labels: int, images: int = 16, skip: int = 0) -> Probe:
    """Scikit-learn's handwritten digits, enlarged to the model's size and repeated over channels.

    Args:
        size: Height and width in pixels.
        labels: Classes of the model; a digit beyond them has no label.
    """
    pictures, digits = digit_images()
    chosen = slice(skip * images, (skip + 1) * images)
    pixels = torch.nn.functional.interpolate(pictures[chosen], size=(size, size), mode="bilinear")
    known = torch.where(digits[chosen] < labels, digits[chosen], IGNORED)
    return Probe(
        batch=Batch(inputs={"pixel_values": pixels.repeat(1, channels, 1, 1)}, labels=known),
        description=f"{images} handwritten digits (scikit-learn) at {size} × {size} × {channels}",
        tokens=images,
    )


def _read(file: Path | None) -> tuple[bytes, str]:
    if file is None:
        return shakespeare(), "Shakespeare (bundled)"
    try:
        return file.read_bytes(), file.name
    except OSError as error:
        raise InputError(f"--probe {file} cannot be read: {error.strerror}.") from None


def _encode(text: bytes, vocab_size: int, tokenizer: Path | None) -> tuple[Tensor, str]:
    if tokenizer is None:
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        if vocab_size < 256:
            return data % vocab_size, f"bytes folded into {vocab_size} ids"
        # Spread out, so that neighbors in the alphabet share no neighborhood of the embedding.
        return data * (vocab_size // 256), f"bytes spread over {vocab_size:,} ids"
    from tokenizers import Tokenizer  # only a model with a tokenizer at hand needs it

    try:
        encoder = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        raise InputError(f"{tokenizer} is not a tokenizer: {error}.") from None
    ids = torch.tensor(encoder.encode(text.decode(errors="replace")[:400_000]).ids)
    if len(ids) and int(ids.max()) >= vocab_size:
        raise InputError(
            f"The tokenizer gives id {int(ids.max())}, but the model knows {vocab_size} ids; "
            "the tokenizer and the configuration do not belong together."
        )
    return ids, "the target's tokenizer"


def _batch(task: str, block: Tensor, vocab_size: int) -> Batch:
    inputs, following = block[:, :-1].contiguous(), block[:, 1:].contiguous()
    if task == "causal-lm":
        return Batch(inputs={"input_ids": inputs}, labels=following)
    if task == "seq2seq":
        half = inputs.shape[1]
        return Batch(
            inputs={"input_ids": inputs, "decoder_input_ids": inputs.roll(1, 0)[:, :half]},
            labels=following.roll(1, 0)[:, :half].contiguous(),
        )
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(inputs.shape, generator=generator) < _MASKED_SHARE
    hidden[:, 0] = True
    return Batch(
        inputs={"input_ids": inputs.masked_fill(hidden, vocab_size - 1)},
        labels=inputs.masked_fill(~hidden, IGNORED),
    )
