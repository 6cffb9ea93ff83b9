"""Fault: some batches of the run are bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from rksp.batch import IGNORED, Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.watch.faults.base import Fault

Kind = Literal["labels", "repeated"]


class BadBatches(Fault):
    """Exchanges the batches of some steps for bad ones.

    Kinds:
        labels: The labels that count are permuted within the batch (label noise).
        repeated: One token stands at every position, as input and as label, as in a shard of
            padding. It makes the gradient small, and the batches after it make it large.

    Args:
        step: First step.
        steps: How many.
        kind: How they are bad.
    """

    name = "bad_batches"

    def __init__(self, step: int = 10, steps: int = 10, kind: Kind = "labels") -> None:
        if kind not in _CHANGES or step < 0 or steps < 1:
            raise InputError(
                "Fault 'bad_batches' needs kind=labels or kind=repeated, step >= 0 and "
                f"steps >= 1, got kind={kind!r}, step={step}, steps={steps}."
            )
        self.step, self.steps, self.kind = step, steps, kind

    def batches(self, batches: Sequence[Batch], *, per_step: int, seed: int) -> Sequence[Batch]:
        """Return the batches with the bad ones in their steps."""
        start, stop = self.step * per_step, (self.step + self.steps) * per_step
        generator = torch.Generator().manual_seed(seed)
        bad = [_changed(batch, self.kind, generator) for batch in batches[start:stop]]
        return [*batches[:start], *bad, *batches[stop:]]


def _permuted(batch: Batch, generator: torch.Generator) -> Batch:
    counts = batch.labels != IGNORED
    held = definite(batch.labels)[counts]
    order = torch.randperm(len(held), generator=generator).to(held.device)
    labels = definite(batch.labels).clone()
    labels[counts] = held[order]
    return replace(batch, labels=labels)


def _repeated(batch: Batch, generator: torch.Generator) -> Batch:
    inputs: Any = batch.inputs
    token = inputs.flatten()[0]
    labels = definite(batch.labels)
    labels = labels.where(labels == IGNORED, token)
    return replace(batch, inputs=token.expand_as(inputs).clone(), labels=labels)


_CHANGES: dict[str, Callable[[Batch, torch.Generator], Batch]] = {
    "labels": _permuted,
    "repeated": _repeated,
}


def _changed(batch: Batch, kind: str, generator: torch.Generator) -> Batch:
    is_known = isinstance(batch.labels, Tensor) and isinstance(batch.inputs, Tensor)
    if not is_known or (kind == "repeated" and cast(Tensor, batch.inputs).is_floating_point()):
        raise NotCovered(
            "Fault 'bad_batches' changes tensors of tokens and labels and the batches hold "
            "others; choose another fault."
        )
    return _CHANGES[kind](batch, generator)
