"""Compute the cross-entropy of logits, of many some rows at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rksp.kernels.wide_output import AT_ONCE, ROWS, Graph, Unmade, part_of, row_buffer

_LOG2_E = math.log2(math.e)
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
            flat, counts = states.flatten(0, -2), labels != IGNORED
            if not counts.all():  # of masked models most rows do not count
                flat, labels = flat[counts], labels[counts]
            is_trained = torch.is_grad_enabled()
            return _UnmadeCrossEntropy.apply(flat, weight, bias, labels, is_trained)
        logits.made()  # so that who reads the output later does not make it again
    is_large = logits.numel() > AT_ONCE and logits.device.type == "cpu"
    if not (is_large and logits.requires_grad):
        return cross_entropy(logits, labels)
    return _ChunkedCrossEntropy.apply(logits.flatten(0, -2), labels)


def _powers(bits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Put 2^(logit - the largest of its row) in the place of logits that count in bits.

    Powers of two take less than half the time of those of e.

    Returns:
        The loss of each row in nats, and the sum of its powers, both `[rows, 1]`.
    """
    nats, sizes = [], []
    rows = max(1, AT_ONCE // bits.shape[-1])
    for part, label in zip(torch.split(bits, rows), torch.split(labels, rows), strict=True):
        high = part.amax(-1, keepdim=True)
        below = high - part.gather(-1, label.unsqueeze(-1))
        sizes.append(part.sub_(high).exp2_().sum(-1, keepdim=True))
        nats.append((sizes[-1].log2() + below) / _LOG2_E)
    return torch.cat(nats), torch.cat(sizes)


class _ChunkedCrossEntropy(Graph):
    """Cross-entropy of logits, whose gradient is made in the same read.

    torch's own keeps the logarithms of all probabilities beside the logits, and makes the gradient
    in a third array of that size.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        kind = logits.dtype if logits.dtype == torch.float64 else torch.float32
        whole = torch.empty_like(logits, dtype=kind, memory_format=torch.contiguous_format)
        total, count = torch.zeros((), dtype=torch.float64), (labels != IGNORED).sum()
        rows = max(1, AT_ONCE // logits.shape[-1])
        parts = (torch.split(given, rows) for given in (logits, labels, whole))
        for part, label, gradient in zip(*parts, strict=True):
            counts = label != IGNORED
            at = label.where(counts, 0)
            nats, size = _powers(torch.mul(part.to(kind), _LOG2_E, out=gradient), at)
            total += nats.where(counts.unsqueeze(-1), 0).sum(dtype=torch.float64)
            share = (counts.to(kind) / count).unsqueeze(-1)
            gradient.mul_(share / size).scatter_add_(-1, at.unsqueeze(-1), -share)
        ctx.save_for_backward(whole)
        ctx.kind = logits.dtype
        return (total / count).to(kind)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return _times(gradient, outer).to(ctx.kind), None


class _UnmadeCrossEntropy(Graph):
    """Cross-entropy of an unmade product, whose logits never stand all at once.

    Probabilities are left unscaled, and the labels' share is taken off at the end, because to
    touch each logit again would cost more than to scale the factors.
    """

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
        total, share = torch.zeros((), dtype=torch.float64), 1 / max(len(states), 1)
        bits = None if bias is None else bias * _LOG2_E
        buffer = row_buffer(states, len(weight))
        for start in range(0, len(states), ROWS):
            rows = slice(start, start + ROWS)
            part = part_of(states[rows] * _LOG2_E, weight, bits, buffer)
            nats, size = _powers(part, labels[rows])
            total += nats.sum(dtype=torch.float64)
            scale = share / size
            if of_states is not None:
                torch.mm(part, weight, out=of_states[rows]).mul_(scale)
                of_states[rows].sub_(weight[labels[rows]], alpha=share)
            if of_weight is not None:
                of_weight.addmm_(part.t(), states[rows] * scale)
            if of_bias is not None:
                of_bias.addmv_(part.t(), scale.squeeze(-1))
        if of_weight is not None:
            of_weight.index_add_(0, labels, states, alpha=-share)
        if of_bias is not None:
            of_bias.index_add_(0, labels, of_bias.new_full((len(labels),), -share))
        ctx.save_for_backward(of_states, of_weight, of_bias)
        return (total / len(states)).to(states.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return (*(None if g is None else _times(g, outer) for g in ctx.saved_tensors), None, None)


def _times(gradient: Tensor, outer: Tensor) -> Tensor:
    return gradient if float(outer) == 1 else gradient * outer
