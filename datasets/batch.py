"""Define a batch, the inputs and labels of a model, and compute the loss that a run minimizes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.kernels.cross_entropy import IGNORED as IGNORED  # a label that does not count
from rksp.kernels.cross_entropy import loss_of
from rksp.kernels.wide_output import UnmadeOutputs

_NESTED = (Mapping, tuple, list)  # what may hold tensors
_OF_TENSORS = ("inputs", "labels", "given")  # fields of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The result of one forward pass over a batch.

    Attributes:
        output: The model's prediction, any shape; None if only a loss is known.
        loss: The loss of the output, a scalar.
        aux: The routers' weighted auxiliary loss, if it is not part of `loss`.
        logits: The output if it is logits over classes `[..., classes]`.
    """

    output: Tensor | None
    loss: Tensor
    aux: Tensor | None = None
    logits: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The quantity that training minimizes."""
        return self.loss if self.aux is None else self.loss + self.aux


# Runs a model on a batch and computes its loss.
Objective: TypeAlias = "Callable[[nn.Module, Batch], Pass]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Model inputs (tokens `[batch, length]` int64, or images `[batch, 1, 8, 8]`) and labels.

    Attributes:
        inputs: A tensor, positional arguments, or keyword arguments; the first dimension of every
            tensor counts the examples.
        labels: Labels of the logits, already shifted for a language model; with an objective,
            whatever it compares the output with.
        objective: How the model is run and judged; None means that of `run_pass`.
        given: The batch as the user wrote it.
        is_whole: It cannot be cut into examples, as that of a graph cannot.
    """

    inputs: Tensor | tuple[Any, ...] | dict[str, Any]
    labels: Tensor | None
    objective: Objective | None = None
    given: object = None
    is_whole: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether a loss can be computed."""
        return self.labels is not None or self.objective is not None

    @property
    def count(self) -> int:
        """The number of examples."""
        return next((len(t) for t in tensors(self.inputs) if t.dim()), 0)

    def rows(self, start: int, stop: int) -> Batch:
        """Return the examples from `start` to before `stop`; all of a batch that is whole."""
        return self.at(slice(start, stop))

    def at(self, which: slice | Tensor) -> Batch:
        """Return the examples of a slice or of indices; all of a batch that is whole."""
        if self.is_whole:
            return self
        size = self.count
        return self._changed(lambda t: t[which] if t.dim() and len(t) == size else t)

    def to(self, device: str) -> Batch:
        """Return the batch on a device."""
        return self._changed(lambda t: t.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Batch:
        parts = {name: mapped(getattr(self, name), change) for name in _OF_TENSORS}
        return replace(self, **parts)


def tensors(value: object) -> list[Tensor]:
    """Return every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return [value]
    parts = [*value.values()] if isinstance(value, Mapping) else value
    return [t for part in parts for t in tensors(part)] if isinstance(parts, tuple | list) else []


def mapped(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(part, change) for part in value)
    return value


def call(model: nn.Module, inputs: object) -> Any:
    """Call a model with a tensor, positional arguments or keyword arguments, without a cache."""
    args = tuple(inputs) if isinstance(inputs, tuple | list) else ()
    args = (inputs,) if isinstance(inputs, Tensor) else args
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs.setdefault("use_cache", False)
    return model(*args, **kwargs)


def logits_of(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Compute logits `[..., classes]` and the routers' weighted auxiliary loss, or None."""
    output = call(model, batch.inputs)
    aux = getattr(output, "aux_loss", None)
    if aux is not None and not isinstance(output, tuple):
        # Hugging Face returns the unweighted balance loss; the zoo's is already weighted.
        aux = getattr(model.config, "router_aux_loss_coef", 0.0) * aux
    return output.logits, aux


def run_pass(model: nn.Module, batch: Batch) -> Pass:
    """Run a model on a batch; the loss is the batch's objective, or else cross-entropy."""
    if batch.objective is not None:
        return batch.objective(model, batch)
    with UnmadeOutputs():
        logits, aux = logits_of(model, batch)
    return Pass(output=logits, loss=loss_of(logits, definite(batch.labels)), aux=aux, logits=logits)


def task_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Compute what training minimizes: mean cross-entropy plus the routers' own losses."""
    return run_pass(model, batch).total


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Return the mean loss over batches in evaluation mode; not finite as it comes."""
    was_training = model.training
    model.eval()
    try:
        return math.fsum(float(task_loss(model, batch)) for batch in batches) / len(batches)
    finally:
        model.train(was_training)
