"""Training data of a confirmation: batches of the probe's text or images, shared by all arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rksp.batch import IGNORED, Batch
from rksp.datasets.probe import make_probe
from rksp.datasets.tasks import label_entropy
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.source import ModelSource
from rksp.recipe import Recipe

_POOL = 4096  # sequences in memory; longer runs see them again in another order
_HIDDEN_SHARE = 0.15  # of a masked language model's tokens (Devlin et al., 2019)


def training_batches(
    source: ModelSource,
    recipe: Recipe,
    *,
    seed: int,
    text: Path | None = None,
    device: str = "cpu",
) -> list[Batch]:
    """Return one batch for every micro-step, drawn by the seed alone.

    Sequences are places of the probe text in random order; each occurs once before any repeats.

    Raises:
        InputError: The model has no loss to train, or the text cannot be used.
    """
    steps = recipe.max_steps * recipe.gradient_accumulation_steps
    size = max(1, recipe.batch_size // recipe.gradient_accumulation_steps)
    pool = make_probe(
        source,
        num_sequences=min(_POOL, steps * size),
        sequence_length=recipe.sequence_length,
        seed=seed,
        text=text,
    )
    if pool.labels is None:
        raise InputError(
            f"rksp has no labels for what {source.target} predicts, so it cannot train it; "
            "give a language model, or a classifier of at least ten classes."
        )
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = dict(pool.inputs), pool.labels
    if source.task == "masked-lm":
        inputs["input_ids"], labels = _hidden(inputs["input_ids"], source.config, generator)
    count = len(labels)
    rounds = -(-steps * size // count)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])
    return [
        Batch(
            inputs={name: value[rows].to(device) for name, value in inputs.items()},
            labels=labels[rows].to(device),
        )
        for rows in order[: steps * size].split(size)
    ]


def trivial_loss(batches: Sequence[Batch]) -> float:
    """Return the loss, in nats, of always predicting the frequencies of the batches' labels."""
    labels = torch.cat([definite(batch.labels).flatten() for batch in batches])
    return label_entropy(labels[labels != IGNORED])


def _hidden(tokens: Tensor, config: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mask a share of the tokens, and keep the labels at those places only."""
    mask = getattr(config, "mask_token_id", None)
    mask = config.vocab_size - 1 if mask is None else mask
    hidden = torch.rand(tokens.shape, generator=generator) < _HIDDEN_SHARE
    hidden[:, 0] |= ~hidden.any(-1)
    return tokens.masked_fill(hidden, mask), tokens.masked_fill(~hidden, IGNORED)
