"""Compute the cross-entropy of logits, of many some rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rksp.kernels.wide_output import AT_ONCE, ROWS, Unmade, part_of, row_buffer

IGNORED = -100  # the label of a position that does not count, as in torch's cross-entropy


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats over the labels that count."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the same; in chunks where it is of many logits on the CPU and wants a gradient."""
    labels = labels.flatten()
    if isinstance(logits, Unmade) and not logits.is_made:
        if labels.numel() > ROWS:
            states, weight, bias = logits.factors
            flat, is_trained = states.flatten(0, -2), torch.is_grad_enabled()
            return _UnmadeCrossEntropy.apply(flat, weight, bias, labels, is_trained)
        logits.made()  # so that who reads the output later does not make it again
    is_large = logits.numel() > AT_ONCE and logits.device.type == "cpu"
    if not (is_large and logits.requires_grad):
        return cross_entropy(logits, labels)
    return _ChunkedCrossEntropy.apply(logits.flatten(0, -2), labels)


class _Nats:
    """The sum of a cross-entropy over chunks of logits, whose gradient it makes in the same read.

    torch's own keeps the logarithms of all probabilities beside the logits, and makes the gradient
    in a third array of that size.
    """

    def __init__(self, labels: Tensor) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=labels.device)
        self.count = (labels != IGNORED).sum()

    def add(self, logits: Tensor, labels: Tensor, out: Tensor) -> None:
        """Add some rows, and write their gradient to `out`, which may be the logits."""
        rows = max(1, AT_ONCE // logits.shape[-1])
        for part, label, gradient in zip(
            logits.split(rows), labels.split(rows), out.split(rows), strict=True
        ):
            counts = (label != IGNORED).unsqueeze(-1)
            at = label.unsqueeze(-1).where(counts, 0)
            high = part.amax(-1, keepdim=True).to(out.dtype)
            chosen = part.gather(-1, at).to(out.dtype)
            size = torch.sub(part.to(out.dtype), high, out=gradient).exp_().sum(-1, keepdim=True)
            self.total += (size.log() + high - chosen).where(counts, 0).sum(dtype=torch.float64)
            share = counts.to(out.dtype) / self.count
            gradient.mul_(share / size).scatter_add_(-1, at, -share)

    def mean(self, kind: torch.dtype) -> Tensor:
        """Return the mean over the labels that count."""
        return (self.total / self.count).to(kind)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        kind = logits.dtype if logits.dtype == torch.float64 else torch.float32
        gradient = torch.empty_like(logits, dtype=kind, memory_format=torch.contiguous_format)
        nats = _Nats(labels)
        nats.add(logits, labels, gradient)
        ctx.save_for_backward(gradient)
        ctx.kind = logits.dtype
        return nats.mean(kind)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return _times(gradient, outer).to(ctx.kind), None


class _UnmadeCrossEntropy(torch.autograd.Function):
    """Cross-entropy of an unmade product, whose logits never stand all at once."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        is_trained: bool,
    ) -> Tensor:
        of_states, of_weight, of_bias = (
            torch.zeros_like(given) if given is not None and is_trained and wants else None
            for given, wants in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        )
        nats, buffer = _Nats(labels), row_buffer(states, len(weight))
        for start in range(0, len(states), ROWS):
            rows = slice(start, start + ROWS)
            part = part_of(states[rows], weight, bias, buffer)
            nats.add(part, labels[rows], part)
            if of_states is not None:
                torch.mm(part, weight, out=of_states[rows])
            if of_weight is not None:
                of_weight.addmm_(part.t(), states[rows])
            if of_bias is not None:
                of_bias += part.sum(0)
        ctx.save_for_backward(of_states, of_weight, of_bias)
        return nats.mean(states.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return (*(None if g is None else _times(g, outer) for g in ctx.saved_tensors), None, None)


def _times(gradient: Tensor, outer: Tensor) -> Tensor:
    return gradient if float(outer) == 1 else gradient * outer
