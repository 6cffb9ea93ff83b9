"""Define the training tasks: synthetic, textual and visual, each with a trivial loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from lab.tasks.corpora import bpe_tokens, byte_tokens
from lab.tasks.local_files import cifar10_images, text_bytes
from rksp.confirm.trial import label_entropy
from rksp.datasets.batch import IGNORED, Batch
from rksp.datasets.probe import digit_images
from rksp.ground.errors import InputError, nearest

_PATCHES = {8: 16, 32: 64}  # side of an image → tokens that the lab's models make of it
Head = Literal["causal-lm", "classifier", "masked-lm", "seq2seq", "image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A training task that draws batches.

    Attributes:
        name: Name of the task.
        head: What the model must predict.
        vocab_size: Size of the input vocabulary (0 for images).
        num_classes: Number of distinct answers.
        sequence_length: Tokens per sequence.
        trivial_loss: Cross-entropy, in nats, of always answering with the label frequencies.
        draw: Function from (generator, batch size) to a `Batch`.
    """

    name: str
    head: Head
    vocab_size: int
    num_classes: int
    sequence_length: int
    trivial_loss: float
    draw: Callable[[torch.Generator, int], Batch]

    @property
    def uniform_loss(self) -> float:
        """Cross-entropy, in nats, of answering every class with equal probability."""
        return math.log(self.num_classes)

    def batches(self, count: int, batch_size: int, *, seed: int) -> list[Batch]:
        """Draw `count` batches; the same arguments give the same batches."""
        generator = torch.Generator().manual_seed(seed)
        return [self.draw(generator, batch_size) for _ in range(count)]


def token_task(
    name: str,
    head: Head,
    vocab: int,
    length: int,
    trivial_loss: float,
    draw: Callable[[torch.Generator, int], Batch],
) -> Task:
    """Return a task whose answers are tokens; the arguments are fields of `Task`."""
    return Task(
        name=name,
        head=head,
        vocab_size=vocab,
        num_classes=vocab,
        sequence_length=length,
        trivial_loss=trivial_loss,
        draw=draw,
    )


def _recall(
    generator: torch.Generator, batch: int, *, length: int, vocab: int, pairs: int
) -> Batch:
    half = vocab // 2
    order = torch.rand(batch, half - 1, generator=generator).argsort(-1)
    keys = order[:, :pairs] + 1  # token 0 is the padding
    values = torch.randint(half, vocab, (batch, pairs), generator=generator)
    tokens = torch.zeros(batch, length, dtype=torch.long)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    asked = torch.randint(0, pairs, (batch, 1), generator=generator)
    tokens[:, -1:] = keys.gather(1, asked)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, -1:] = values.gather(1, asked)
    return Batch(inputs=tokens, labels=labels)


def associative_recall(*, length: int = 64, vocab: int = 256, pairs: int = 4) -> Task:
    """Make the associative recall task: key–value pairs, padding, and a queried key last.

    The answer at the last position is the value of the queried key. Defaults are those of arXiv
    2602.22988. Keys are distinct tokens of the lower half of the vocabulary; values are tokens of
    the upper half. So the trivial answer knows the half.
    """
    draw = partial(_recall, length=length, vocab=vocab, pairs=pairs)
    return token_task("recall", "causal-lm", vocab, length, math.log(vocab - vocab // 2), draw)


def _segment(generator: torch.Generator, vocab: int) -> Tensor:
    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    kind = integer(0, 2)
    if kind == 0:
        pattern = torch.randint(10, vocab, (integer(2, 5),), generator=generator)
        return pattern.repeat(integer(2, 4))
    if kind == 1:
        count = integer(5, 15)
        return integer(10, vocab - count) + torch.arange(count)
    return torch.randint(10, vocab, (integer(5, 15),), generator=generator)


def _synthetic(generator: torch.Generator, batch: int, *, length: int, vocab: int) -> Batch:
    rows = torch.empty(batch, length + 1, dtype=torch.long)
    for row in rows:
        filled = 0
        while filled < length + 1:
            segment = _segment(generator, vocab)[: length + 1 - filled]
            row[filled : filled + len(segment)] = segment
            filled += len(segment)
    return Batch(inputs=rows[:, :-1], labels=rows[:, 1:].contiguous())


def synthetic_lm(*, length: int = 256, vocab: int = 10_000) -> Task:
    """Make a task of repeats, ascending runs and random tokens; defaults of arXiv 2602.22988."""
    draw = partial(_synthetic, length=length, vocab=vocab)
    return token_task("synthetic", "causal-lm", vocab, length, math.log(vocab - 10), draw)


def _crops(generator: torch.Generator, batch: int, *, tokens: Tensor, length: int) -> Batch:
    starts = torch.randint(0, len(tokens) - length - 1, (batch, 1), generator=generator)
    rows = tokens[starts + torch.arange(length + 1)]
    return Batch(inputs=rows[:, :-1].contiguous(), labels=rows[:, 1:].contiguous())


def _masked(
    generator: torch.Generator, batch: int, *, rows: Callable[..., Batch], hidden: int
) -> Batch:
    whole: Any = rows(generator, batch).inputs
    asked = torch.rand(whole.shape, generator=generator) < hidden / 100
    asked[:, 0] |= ~asked.any(-1)  # at least one answer per sequence
    return Batch(
        inputs=whole.masked_fill(asked, 0),  # token 0, which no sequence holds, is the mask
        labels=whole.masked_fill(~asked, IGNORED),
    )


def _denoised(
    generator: torch.Generator, batch: int, *, rows: Callable[..., Batch], hidden: int
) -> Batch:
    whole: Any = rows(generator, batch).inputs
    noisy = torch.rand(whole.shape, generator=generator) < hidden / 100
    started = torch.nn.functional.pad(whole[:, :-1], (1, 0))
    inputs = {"input_ids": whole.masked_fill(noisy, 0), "decoder_input_ids": started}
    return Batch(inputs=inputs, labels=whole)


def byte_lm(*, length: int = 64) -> Task:
    """Make a task of next-byte prediction on the bundled Shakespeare."""
    tokens = byte_tokens()
    draw = partial(_crops, tokens=tokens, length=length)
    return token_task("bytes", "causal-lm", 256, length, label_entropy(tokens), draw)


def masked_bytes(*, length: int = 64, hidden: int = 15) -> Task:
    """Make a task of masked-byte prediction on the bundled Shakespeare.

    `hidden` percent of the bytes are hidden; byte 0 replaces all of them.
    """
    tokens = byte_tokens()
    rows = partial(_crops, tokens=tokens, length=length)
    draw = partial(_masked, rows=rows, hidden=hidden)
    return token_task("masked_bytes", "masked-lm", 256, length, label_entropy(tokens), draw)


def denoised_bytes(*, length: int = 64, hidden: int = 30) -> Task:
    """Make a task for an encoder and a decoder: write a text of which bytes are hidden.

    The text is the bundled Shakespeare. The encoder reads it with `hidden` percent of the bytes
    replaced by byte 0; the decoder reads what comes before the byte that it predicts.
    """
    tokens = byte_tokens()
    rows = partial(_crops, tokens=tokens, length=length)
    draw = partial(_denoised, rows=rows, hidden=hidden)
    return token_task("denoised_bytes", "seq2seq", 256, length, label_entropy(tokens), draw)


def masked_repeats(*, length: int = 32, vocab: int = 64, period: int = 4, hidden: int = 30) -> Task:
    """Make a task of filling in hidden tokens of a row that repeats `period` random tokens.

    Small encoders learn it within hundreds of steps, where masked text takes thousands: first that
    a hidden token is one of the row's, then which.
    """
    rows = partial(_repeats, length=length, vocab=vocab, period=period)
    draw = partial(_masked, rows=rows, hidden=hidden)
    return token_task("masked_repeats", "masked-lm", vocab, length, math.log(vocab - 1), draw)


def _repeats(
    generator: torch.Generator, batch: int, *, length: int, vocab: int, period: int
) -> Batch:
    pattern = torch.randint(1, vocab, (batch, period), generator=generator)
    rows = pattern.repeat(1, math.ceil(length / period))[:, :length]
    return Batch(inputs=rows, labels=rows)


def bpe_lm(*, length: int = 64) -> Task:
    """Make a task of next-token prediction on the bundled Shakespeare under the bundled BPE."""
    tokens, vocab = bpe_tokens()
    draw = partial(_crops, tokens=tokens, length=length)
    return token_task("bpe", "causal-lm", vocab, length, label_entropy(tokens), draw)


def text_file(
    *, path: str, length: int = 64, column: str = "text", sha256: str | None = None
) -> Task:
    """Make a task of next-byte prediction on a local file.

    Options and errors are those of `local_files.text_bytes`.
    """
    data = text_bytes(path, column=column, sha256=sha256)
    if len(data) < length + 2:
        raise InputError(
            f"{path} holds {len(data)} bytes, too few for sequences of {length}; "
            "give a longer file or a shorter length."
        )
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    draw = partial(_crops, tokens=tokens, length=length)
    return token_task("text", "causal-lm", 256, length, label_entropy(tokens), draw)


def _pictures(generator: torch.Generator, batch: int, *, images: Tensor, labels: Tensor) -> Batch:
    chosen = torch.randint(0, len(images), (batch,), generator=generator)
    return Batch(inputs=images[chosen], labels=labels[chosen])


def image_task(name: str, images: Tensor, labels: Tensor, *, classes: int = 10) -> Task:
    """Make a task of classifying images.

    Args:
        name: Its name.
        images: `[count, channels, height, width]` float32.
        labels: `[count]` int64.
        classes: Number of distinct labels.
    """
    return Task(
        name=name,
        head="image",
        vocab_size=0,
        num_classes=classes,
        sequence_length=_PATCHES[images.shape[-1]],
        trivial_loss=label_entropy(labels),
        draw=partial(_pictures, images=images, labels=labels),
    )


def digits() -> Task:
    """Make a task of classifying scikit-learn's 1,797 handwritten digits, 8 × 8 pixels."""
    return image_task("digits", *digit_images())


def cifar10(*, path: str, sha256: str | None = None) -> Task:
    """Make a task of classifying CIFAR-10's images, 32 × 32 pixels; errors of `cifar10_images`."""
    return image_task("cifar10", *cifar10_images(path, sha256=sha256))


TASKS: dict[str, Callable[..., Task]] = {
    "recall": associative_recall,
    "synthetic": synthetic_lm,
    "bytes": byte_lm,
    "masked_bytes": masked_bytes,
    "masked_repeats": masked_repeats,
    "denoised_bytes": denoised_bytes,
    "bpe": bpe_lm,
    "digits": digits,
    "text": text_file,
    "cifar10": cifar10,
}


@cache
def _made(make: Callable[..., Task], options: tuple[tuple[str, Any], ...]) -> Task:
    return make(**dict(options))


def task_of(
    table: Mapping[str, Callable[..., Task]], name: str, options: Mapping[str, Any]
) -> Task:
    """Return a table's task; it is made once per process and set of options.

    Raises:
        InputError: The task is unknown or its data are not available.
    """
    if name not in table:
        raise InputError(f"No task is called {name!r}{nearest(name, table)}")
    return _made(table[name], tuple(sorted(options.items())))


def make_task(name: str, **options: Any) -> Task:
    """Return the task called `name`, a key of `TASKS`; the options are those of its factory.

    Raises:
        InputError: The task is unknown or its data are not available.
    """
    return task_of(TASKS, name, options)
