"""Compute the loss that a run minimizes, for the zoo's models and Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.batch import IGNORED, Batch, Pass
from rksp.ground.model import definite


def logits_of(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Compute logits `[..., classes]` and the routers' weighted auxiliary loss, or None."""
    inputs = batch.inputs
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    aux = getattr(output, "aux_loss", None)
    if aux is not None and not isinstance(output, tuple):
        # Hugging Face returns the unweighted balance loss; the zoo's is already weighted.
        aux = getattr(model.config, "router_aux_loss_coef", 0.0) * aux
    return output.logits, aux


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats over the labels that count."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED)


def run_pass(model: nn.Module, batch: Batch) -> Pass:
    """Run a model on a batch; the loss is the batch's objective, or else cross-entropy."""
    if batch.objective is not None:
        return batch.objective(model, batch)
    logits, aux = logits_of(model, batch)
    return Pass(
        output=logits, loss=cross_entropy(logits, definite(batch.labels)), aux=aux, logits=logits
    )


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
