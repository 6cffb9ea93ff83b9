"""Training data of a confirmation: batches shared by all arms, and examples that none trains on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rksp.datasets.batch import IGNORED, Batch
from rksp.datasets.own_data import OwnRows, own_probe
from rksp.datasets.probe import make_probe
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.given import one_batch
from rksp.models.source import ModelSource
from rksp.recipe import Recipe

_POOL = 4096  # sequences in memory; longer runs see them again in another order
_HIDDEN_SHARE = 0.15  # of a masked language model's tokens (Devlin et al., 2019)
_HELD_OUT = 64  # examples that judge a run of trained weights and are never trained on
_BETWEEN = 16  # sequences beside them that are left out: of a short text, neighbors overlap
_JUDGED = 16  # examples a pass
_HELD_SHARE = 5  # a fifth of the user's own examples, where they are few


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The data of the runs at one seed.

    Attributes:
        batches: One for every micro-step.
        held_out: Batches that no run trains on; none where nothing is held out.
    """

    batches: list[Batch]
    held_out: list[Batch]


def training_data(
    source: ModelSource,
    recipe: Recipe,
    *,
    seed: int,
    text: Path | None = None,
    data: OwnRows | None = None,
    device: str = "cpu",
    holds_out: bool = False,
) -> TrainingData:
    """Draw the data by the seed alone.

    The data are the model's own batches where it brings some, or the user's examples. Otherwise
    sequences are places of the probe text in random order; each occurs once before any repeats.

    Args:
        source: The model.
        recipe: How many batches of which size; a loader's batches have their own size.
        seed: Decides the order.
        text: A file to train on instead of the bundled text.
        data: The user's examples, instead of a text.
        device: Where the batches lie.
        holds_out: Keep some examples back to judge the runs.

    Raises:
        InputError: The model has no loss to train, or the text cannot be used.
    """
    generator = torch.Generator().manual_seed(seed)
    steps = recipe.max_steps * recipe.gradient_accumulation_steps
    size = max(1, recipe.batch_size // recipe.gradient_accumulation_steps)
    if source.loader is not None:
        return _of_loader(source.at(seed), steps, seed, holds_out, device)
    spare = _HELD_OUT + 2 * _BETWEEN if holds_out else 0
    pool = _pool(source, recipe, min(_POOL, steps * size) + spare, seed, text, data, generator)
    if pool.is_whole:
        return TrainingData(batches=[pool.to(device)] * steps, held_out=[])
    if source.batch is None and data is None:  # in the order of the text, whose places overlap
        places = torch.arange(pool.count)
        _, held, _, free = places.tensor_split([_BETWEEN, _BETWEEN + _HELD_OUT, spare])
        held, free = (held, free) if holds_out else (places[:0], places)
    else:
        first = min(_HELD_OUT, pool.count // _HELD_SHARE) if holds_out else 0
        held, free = torch.randperm(pool.count, generator=generator).tensor_split([first])
    rounds = -(-steps * size // len(free))
    order = [free[torch.randperm(len(free), generator=generator)] for _ in range(rounds)]
    return TrainingData(
        batches=_parts(pool, torch.cat(order)[: steps * size], size, device),
        held_out=_parts(pool, held, _JUDGED, device),
    )


def trivial_loss(batches: Sequence[Batch]) -> float | None:
    """Return the loss, in nats, of always predicting the frequencies of the batches' labels.

    None where the labels are no classes, or the loss is the user's own.
    """
    labels = [batch.labels for batch in batches]
    known = [part.flatten() for part in labels if part is not None and not part.is_floating_point()]
    is_named = any(getattr(batch.objective, "loss", None) is not None for batch in batches)
    if is_named or len(known) < len(batches):
        return None
    classes = torch.cat(known)
    return label_entropy(classes[classes != IGNORED])


def _parts(pool: Batch, order: Tensor, size: int, device: str) -> list[Batch]:
    return [pool.at(rows).to(device) for rows in order.split(size)] if len(order) else []


def _of_loader(
    source: ModelSource, steps: int, seed: int, holds_out: bool, device: str
) -> TrainingData:
    """Take a loader's batches of one pass, as it orders them under the seed; they repeat."""
    model, objective = definite(source.model), definite(definite(source.batch).objective)
    loader: Iterable[Any] = definite(source.loader)
    most = -(-_HELD_OUT // max(1, definite(source.batch).count)) if holds_out else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = [one_batch(model, given, objective) for given in islice(loader, steps + most)]
    first = min(most, len(found) // _HELD_SHARE) or min(most, len(found) - 1)
    return TrainingData(
        batches=[batch.to(device) for batch in islice(cycle(found[first:]), steps)],
        held_out=[batch.to(device) for batch in found[:first]],
    )


def _pool(
    source: ModelSource,
    recipe: Recipe,
    count: int,
    seed: int,
    text: Path | None,
    data: OwnRows | None,
    generator: torch.Generator,
) -> Batch:
    """Return the examples to draw from: the model's own, the user's, a text's, or images."""
    if source.batch is not None:
        return definite(source.at(seed).batch)
    if source.task == "text-classification" and data is None:
        raise InputError(
            f"{source.target} classifies texts, and rksp has no labelled ones of its own to train "
            "it on; give --data FILE with the columns text and label."
        )
    made = partial(make_probe, text=text) if data is None else partial(own_probe, data=data)
    pool = made(source, num_sequences=count, sequence_length=recipe.sequence_length, seed=seed)
    if pool.labels is None:
        raise InputError(
            f"rksp has no labels for what {source.target} predicts, so it cannot train it; "
            "give a language model, a classifier of images of at least ten classes, or one of "
            "texts with --task text-classification and --data."
        )
    inputs, labels = dict(pool.inputs), pool.labels
    if source.task == "masked-lm":
        inputs["input_ids"], labels = _hidden(inputs["input_ids"], source.config, generator)
    return Batch(inputs=inputs, labels=labels)


def _hidden(tokens: Tensor, config: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mask a share of the tokens, and keep the labels at those places only."""
    mask = getattr(config, "mask_token_id", None)
    mask = config.vocab_size - 1 if mask is None else mask
    hidden = torch.rand(tokens.shape, generator=generator) < _HIDDEN_SHARE
    hidden[:, 0] |= ~hidden.any(-1)
    return tokens.masked_fill(hidden, mask), tokens.masked_fill(~hidden, IGNORED)


def label_entropy(labels: Tensor) -> float:
    """Return the loss, in nats, of always answering with the frequencies of these labels."""
    counts = labels.bincount().double()
    share = counts[counts > 0] / counts.sum()
    return float(-(share * share.log()).sum())
