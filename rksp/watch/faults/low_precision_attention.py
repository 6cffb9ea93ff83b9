"""Fault: the backward pass of attention uses too few bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    AttentionTap,
    fused_attention,
    visible_logits,
)
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.faults.base import Fault
from rksp.watch.moment import Moment

Kind = Literal["truncate", "round", "bf16"]


class LowPrecisionAttention(Fault):
    """Corrupts δ = rowsum(dO ∘ O) in the backward pass of attention; the forward pass is untouched.

    Kinds:
        truncate: O and dO are taken in bfloat16 with their lowest `bits` bits cleared, the
            injection of arXiv 2606.28116. The bias is large, because truncation only shrinks.
        round: The same bits are lost by rounding to nearest, which has no bias.
        bf16: O is recomputed with unnormalized probabilities exp(s − max), values and sums in
            bfloat16, the natural failure of arXiv 2510.04212: rows with several maximal keys
            round to one side. `bits` is not used. Blocks of keys are summed in float32 and
            rounded once, so the error is smaller than that of a kernel that rounds every block.

    The fault affects every attention call through `scaled_dot_product_attention`: those of rksp's
    own zoo, and those of transformers with `attn_implementation="sdpa"`, the default. A torch
    function mode replaces the calls between `arm` and the removal of the handle. Dropout must be
    off.

    Args:
        bits: How many of bfloat16's lowest bits are lost; 7 is the whole mantissa.
        kind: `truncate`, `round` or `bf16`.
        step: The first step.
    """

    name = "low_precision_attention"

    def __init__(self, bits: int = 7, kind: Kind = "truncate", step: int = 0) -> None:
        if kind not in ("truncate", "round", "bf16"):
            raise InputError(
                "Fault 'low_precision_attention' needs kind=truncate, round or bf16, got "
                f"kind={kind!r}."
            )
        if not 0 <= bits <= 8 or step < 0:
            raise InputError(
                "Fault 'low_precision_attention' needs 0 <= bits <= 8 and step >= 0, got "
                f"bits={bits}, step={step}."
            )
        self.bits, self.kind, self.step = bits, kind, step
        self._calls: int | None = None  # of attention in this step; None before `step`

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Check that the model calls `scaled_dot_product_attention`.

        Raises:
            NotCovered: The model uses another attention function.
        """
        config = getattr(model, "config", None)
        written = getattr(config, "_attn_implementation", None)
        if written not in (None, "sdpa"):
            raise NotCovered(
                "Fault 'low_precision_attention' acts on scaled_dot_product_attention, and this "
                f"model uses {written!r}; build it with attn_implementation='sdpa'."
            )

    def arm(self, moment: Moment) -> Sequence[Any]:
        """Replace the step's attention calls."""
        if moment.step < self.step:
            return ()
        self._calls = 0
        return [AttentionTap(self._strike).open()]

    def after_backward(self, moment: Moment) -> None:
        """Check that the step made an attention call.

        Raises:
            NotCovered: It made none.
        """
        calls, self._calls = self._calls, None
        if calls == 0:
            raise NotCovered(
                "Fault 'low_precision_attention' acts on scaled_dot_product_attention, and this "
                "model never calls it; choose another fault."
            )

    def _strike(self, call: AttentionCall) -> Tensor:
        self._calls = definite(self._calls) + 1
        if call.dropout:
            raise NotCovered(
                "Fault 'low_precision_attention' recomputes attention and cannot repeat its "
                f"dropout of {call.dropout}; set attention dropout to 0."
            )
        return _Attention.apply(call.query, call.key, call.value, call, self)

    def spoil(self, tensor: Tensor) -> Tensor:
        """Return the tensor in float32 without its low bits."""
        raw = tensor.to(torch.bfloat16).view(torch.int16)
        if self.kind == "round" and self.bits:
            raw = raw + (1 << (self.bits - 1))  # sign and magnitude: away from zero at a tie
        return (raw & (-1 << self.bits)).view(torch.bfloat16).float()


class _Attention(torch.autograd.Function):
    """Attention with torch's own forward pass and a corrupted FlashAttention backward pass.

    dV = Pᵀ dO;  dS = P ∘ (dO Vᵀ − δ);  dQ = scale dS K;  dK = scale dSᵀ Q (Dao et al., 2022,
    algorithm 4), in float32 (or float64 for float64 inputs) except for δ.
    """

    @staticmethod
    def forward(ctx, query, key, value, call, fault):
        """Compute the output and save the inputs."""
        output = fused_attention(replace(call, query=query, key=key, value=value))
        ctx.save_for_backward(query, key, value, call.mask, output)
        ctx.is_causal, ctx.scale, ctx.fault = call.is_causal, call.scale, fault
        return output

    @staticmethod
    def backward(ctx, grad):
        """Compute the gradients with a corrupted δ."""
        query, key, value, mask, output = ctx.saved_tensors
        q, k, v, g = map(at_least_float, (query, key, value, grad))
        groups = q.shape[-3] // k.shape[-3]
        k, v = (part.repeat_interleave(groups, dim=-3) for part in (k, v))
        call = AttentionCall(query=q, key=k, mask=mask, is_causal=ctx.is_causal, scale=ctx.scale)
        scores, visible = visible_logits(call)
        p = scores.softmax(-1).where(visible.any(-1, keepdim=True), 0.0)
        fault = ctx.fault
        if fault.kind == "bf16":
            low, spoiled = _low_precision_output(scores, v), g
        else:
            low, spoiled = fault.spoil(output), fault.spoil(g)
        delta = (low.to(g) * spoiled.to(g)).sum(-1, keepdim=True)
        dv = p.mT @ g
        ds = p * (g @ v.mT - delta) * call.factor
        dq, dk = ds @ k, ds.mT @ q
        dk, dv = (_fold(part, groups) for part in (dk, dv))
        return dq.to(query), dk.to(key), dv.to(value), None, None


def _low_precision_output(scores: Tensor, v: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights.bfloat16() @ v.bfloat16()).to(scores) / total


def _fold(gradient: Tensor, groups: int) -> Tensor:
    """Sum the gradients of query heads that share a key head."""
    return gradient if groups == 1 else gradient.unflatten(-3, (-1, groups)).sum(-3)
