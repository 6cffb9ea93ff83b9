"""Tasks over domains: what a model is trained on first, and what it is fine-tuned on then.

Every task has two parts, `training` and `held_out`, which share no text. With `examples` the
training part is that many fixed rows, drawn with replacement, so that a run may see them often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lab.tasks.domains import (
    MODULES,
    Part,
    domain_tokens,
    enciphered,
    module_source,
    tokens_of,
)
from lab.tasks.tasks import Head, Task, image_task, task_of
from rksp.confirm.trial import label_entropy
from rksp.datasets.batch import IGNORED, Batch
from rksp.datasets.probe import digit_images

VOCABULARY = 256  # bytes
MASK, PADDING, START = 0, 1, 2  # bytes that no text has
_EXAMPLES_SEED = 20_261_124
_TRAINING_IMAGES = 1400  # of 1,797
_SOURCES = ("late_plays", "docs", "code", "cipher")
_HIDDEN = 0.15
_MODULES = 5  # to tell apart: another number of classes than that of the other tasks


def _starts(tokens: Tensor, length: int, examples: int | None) -> Tensor:
    """Return the positions at which a row may start: all, or `examples` fixed ones."""
    last = len(tokens) - length
    if examples is None:
        return torch.arange(last)
    return torch.randint(
        0, last, (examples,), generator=torch.Generator().manual_seed(_EXAMPLES_SEED)
    )


def _rows(generator: torch.Generator, batch: int, tokens: Tensor, starts: Tensor, length: int):
    chosen = starts[torch.randint(0, len(starts), (batch, 1), generator=generator)]
    return tokens[chosen + torch.arange(length)]


def _next(generator: torch.Generator, batch: int, *, tokens: Tensor, starts: Tensor, length: int):
    rows = _rows(generator, batch, tokens, starts, length + 1)
    return Batch(inputs=rows[:, :-1].contiguous(), labels=rows[:, 1:].contiguous())


def _masked(generator: torch.Generator, batch: int, *, tokens: Tensor, starts: Tensor, length: int):
    rows = _rows(generator, batch, tokens, starts, length)
    hidden = _hidden(generator, rows)
    return Batch(inputs=rows.masked_fill(hidden, MASK), labels=rows.masked_fill(~hidden, IGNORED))


def _filled(generator: torch.Generator, batch: int, *, tokens: Tensor, starts: Tensor, length: int):
    rows = _rows(generator, batch, tokens, starts, length)
    hidden = _hidden(generator, rows)
    return Batch(
        inputs=_pair(rows.masked_fill(hidden, MASK), rows),
        labels=rows.masked_fill(~hidden, IGNORED),
    )


def _hidden(generator: torch.Generator, rows: Tensor) -> Tensor:
    hidden = torch.rand(rows.shape, generator=generator) < _HIDDEN
    hidden[:, 0] |= ~hidden.any(-1)  # at least one answer per row
    return hidden


def _pair(source: Tensor, target: Tensor) -> dict[str, object]:
    """Return what an encoder–decoder reads: the source, and the target one token late."""
    late = torch.cat([torch.full_like(target[:, :1], START), target[:, :-1]], 1)
    return {"input_ids": source, "decoder_input_ids": late}


def next_byte(*, domain: str, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of next-byte prediction on a domain."""
    return _text("next_byte", "causal-lm", _next, domain, part, length, examples)


def masked_byte(*, domain: str, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of masked-byte prediction on a domain; 15 % of the bytes are hidden."""
    return _text("masked_byte", "masked-lm", _masked, domain, part, length, examples)


def filled_byte(*, domain: str, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task for encoder–decoders: the decoder writes the text whose bytes were hidden."""
    return _text("filled_byte", "seq2seq", _filled, domain, part, length, examples)


def _text(name: str, head: Head, draw, domain: str, part: Part, length: int, examples) -> Task:
    tokens = domain_tokens(domain, part)
    starts = _starts(tokens, length + 1, examples if part == "training" else None)
    return _task(
        name, head, tokens, partial(draw, tokens=tokens, starts=starts, length=length), length
    )


def _task(name: str, head: Head, labels: Tensor, draw, length: int, classes: int = 256) -> Task:
    return Task(
        name=name,
        head=head,
        vocab_size=VOCABULARY,
        num_classes=classes,
        sequence_length=length,
        trivial_loss=label_entropy(labels),
        draw=draw,
    )


def translation(*, head: Head, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of writing the late plays in the cipher.

    An encoder–decoder (`head` "seq2seq") reads a row and writes all of it. A decoder ("causal-lm")
    reads half as much, and writes its cipher behind it; only what it writes counts.
    """
    plain = domain_tokens("late_plays", part)
    secret = torch.frombuffer(
        bytearray(enciphered(bytes(plain.tolist()))), dtype=torch.uint8
    ).long()
    starts = _starts(plain, length + 1, examples if part == "training" else None)
    draw = partial(
        _translated_pair if head == "seq2seq" else _translated_behind,
        both=torch.stack([plain, secret]),
        starts=starts,
        length=length,
    )
    return _task("translation", head, secret, draw, length)


def _both(generator: torch.Generator, batch: int, both: Tensor, starts: Tensor, length: int):
    chosen = starts[torch.randint(0, len(starts), (batch, 1), generator=generator)]
    return both[:, chosen + torch.arange(length)].unbind()


def _translated_pair(generator, batch: int, *, both: Tensor, starts: Tensor, length: int) -> Batch:
    plain, secret = _both(generator, batch, both, starts, length)
    return Batch(inputs=_pair(plain, secret), labels=secret)


def _translated_behind(
    generator: torch.Generator, batch: int, *, both: Tensor, starts: Tensor, length: int
) -> Batch:
    plain, secret = _both(generator, batch, both, starts, length // 2)
    rows = torch.cat([plain, secret], 1)
    labels = torch.cat([rows[:, 1:], rows[:, :1]], 1)
    labels[:, : length // 2 - 1] = IGNORED
    labels[:, -1] = IGNORED
    return Batch(inputs=rows, labels=labels)


def _classified(
    generator: torch.Generator,
    batch: int,
    *,
    texts: list[Tensor],
    starts: list[Tensor],
    length: int,
) -> Batch:
    labels = torch.randint(0, len(texts), (batch,), generator=generator)
    rows = torch.empty(batch, length, dtype=torch.long)
    for row, label in zip(rows, labels.tolist(), strict=True):
        row[:] = _rows(generator, 1, texts[label], starts[label], length)[0]
    return Batch(inputs=rows, labels=labels)


def origin(*, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of telling four domains apart: plays, documentation, code, cipher."""
    texts = [domain_tokens(name, part) for name in _SOURCES]
    return _classes("origin", texts, part, length, examples)


def module(*, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of telling the sources of five modules of Python's library apart."""
    texts = [tokens_of(module_source(name), part) for name in MODULES[:_MODULES]]
    return _classes("module", texts, part, length, examples)


def mirrored(*, part: Part, length: int = 64, examples: int | None = None) -> Task:
    """Make a task of telling the late plays from the same text with every word reversed."""
    text = domain_tokens("late_plays", part)
    words = bytes(text.tolist()).split(b" ")
    turned = b" ".join(word[::-1] for word in words)
    texts = [text, torch.frombuffer(bytearray(turned), dtype=torch.uint8).long()]
    return _classes("mirrored", texts, part, length, examples)


def _classes(name: str, texts: list[Tensor], part: Part, length: int, examples) -> Task:
    each = None if examples is None or part != "training" else max(1, examples // len(texts))
    starts = [_starts(text, length, each) for text in texts]
    draw = partial(_classified, texts=texts, starts=starts, length=length)
    return _task(name, "classifier", torch.arange(len(texts)), draw, length, len(texts))


def digit_views(
    *, part: Part, view: str = "plain", label: str = "digit", examples: int | None = None
) -> Task:
    """Make a task of classifying the bundled digits, seen in another way or asked otherwise.

    Args:
        part: The first 1,400 images, or the others.
        view: `plain`, `turned` (mirrored at the diagonal) or `inverted` (bright for dark).
        label: `digit` (ten classes), or `parity` (two).
        examples: Images to learn from; default all of the part.

    Returns:
        The task.
    """
    images, digits = digit_images()
    chosen = slice(_TRAINING_IMAGES) if part == "training" else slice(_TRAINING_IMAGES, None)
    images, digits = images[chosen], digits[chosen]
    if part == "training" and examples is not None:
        images, digits = images[:examples], digits[:examples]
    views = {"plain": images, "turned": images.mT.contiguous(), "inverted": -images}
    labels = {"digit": digits, "parity": digits % 2}
    return image_task(
        "digit_views", views[view], labels[label], classes={"digit": 10, "parity": 2}[label]
    )


DOMAIN_TASKS: dict[str, Callable[..., Task]] = {
    "next_byte": next_byte,
    "masked_byte": masked_byte,
    "filled_byte": filled_byte,
    "translation": translation,
    "origin": origin,
    "module": module,
    "mirrored": mirrored,
    "digit_views": digit_views,
}


def make_domain_task(name: str, *, part: Part, **options: object) -> Task:
    """Return one part of the task called `name`, as `lab.tasks.tasks.task_of` does."""
    return task_of(DOMAIN_TASKS, name, {**options, "part": part})
