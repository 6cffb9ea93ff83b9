"""Fault: the backward pass of attention works with too few bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from rksp.errors import InputError, NotCovered
from rksp.faults.base import Fault
from rksp.moment import Moment

Kind = Literal["truncate", "round", "bf16"]


class LowPrecisionAttention(Fault):
    """Corrupts δ = rowsum(dO ∘ O) in the backward pass of attention; the forward pass is untouched.

    Kinds:
        truncate: O and dO are taken in bfloat16 with their lowest `bits` bits cleared, the
            injection of arXiv 2606.28116. A gross bias: truncation only shrinks.
        round: The same bits are lost by rounding to nearest, which has no bias.
        bf16: O is computed anew with unnormalized probabilities exp(s − max), values and sums in
            bfloat16, the natural failure of arXiv 2510.04212: rows with several maximal keys
            round to one side. `bits` is not used. Blocks of keys are summed in float32 here and
            rounded once, so the error is smaller than a kernel's that rounds block by block.

    It holds for every attention call that goes through `scaled_dot_product_attention`: the zoo's,
    and transformers' with `attn_implementation="sdpa"`, its default. The calls are exchanged by a
    torch function mode between `arm` and the removal of the handle; dropout must be off.

    Args:
        bits: Lowest bits of bfloat16's 16 that are lost; 7 is its whole mantissa.
        kind: How.
        step: First step.
    """

    name = "low_precision_attention"

    def __init__(self, bits: int = 7, kind: Kind = "truncate", step: int = 0) -> None:
        if kind not in ("truncate", "round", "bf16"):
            raise InputError(
                "Fault 'low_precision_attention' has the kinds truncate, round and bf16, got "
                f"kind={kind!r}."
            )
        if not 0 <= bits <= 8 or step < 0:
            raise InputError(
                "Fault 'low_precision_attention' needs 0 <= bits <= 8 and step >= 0, got "
                f"bits={bits}, step={step}."
            )
        self.bits, self.kind, self.step = bits, kind, step
        self._exchange: _Exchange | None = None

    def bind(self, model: nn.Module, *, seed: int) -> None:
        config = getattr(model, "config", None)
        written = getattr(config, "_attn_implementation", None)
        if written not in (None, "sdpa"):
            raise NotCovered(
                "Fault 'low_precision_attention' strikes scaled_dot_product_attention and this "
                f"model attends through {written!r}; build it with attn_implementation='sdpa'."
            )

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        if moment.step < self.step:
            return ()
        self._exchange = _Exchange(self)
        return [self._exchange]

    def after_backward(self, moment: Moment) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.calls == 0:
            raise NotCovered(
                "Fault 'low_precision_attention' strikes scaled_dot_product_attention and no call "
                "of it was made; choose another fault for this model."
            )

    def spoil(self, tensor: Tensor) -> Tensor:
        """A tensor as its low bits let it be, in float32."""
        raw = tensor.to(torch.bfloat16).view(torch.int16)
        if self.kind == "round" and self.bits:
            raw = raw + (1 << (self.bits - 1))  # sign and magnitude: away from zero at a tie
        return (raw & (-1 << self.bits)).view(torch.bfloat16).float()


class _Exchange(TorchFunctionMode):
    """Sends attention calls through `_Attention`; entered when made, left by `remove`."""

    def __init__(self, fault: LowPrecisionAttention) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0
        self.__enter__()

    def remove(self) -> None:
        """As a hook's handle."""
        self.__exit__(None, None, None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls += 1
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("dropout_p"):
            raise NotCovered(
                "Fault 'low_precision_attention' recomputes attention and cannot with dropout "
                f"{given['dropout_p']} in it; set attention dropout to 0."
            )
        return _Attention.apply(
            given["query"],
            given["key"],
            given["value"],
            given.get("attn_mask"),
            given.get("is_causal", False),
            given.get("scale"),
            given.get("enable_gqa", False),
            self.fault,
        )


class _Attention(torch.autograd.Function):
    """Attention whose forward is torch's own and whose backward is FlashAttention's, spoiled.

    dV = Pᵀ dO;  dS = P ∘ (dO Vᵀ − δ);  dQ = scale dS K;  dK = scale dSᵀ Q (Dao et al., 2022,
    algorithm 4), in float32 (float64 stays) except for δ.
    """

    @staticmethod
    def forward(ctx, query, key, value, mask, is_causal, scale, grouped, fault):
        output = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
        )
        ctx.save_for_backward(query, key, value, mask, output)
        ctx.is_causal, ctx.fault = is_causal, fault
        ctx.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return output

    @staticmethod
    def backward(ctx, grad):
        query, key, value, mask, output = ctx.saved_tensors
        fault, scale = ctx.fault, ctx.scale
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q, k, v, g = (part.to(wide) for part in (query, key, value, grad))
        groups = q.shape[-3] // k.shape[-3]
        k, v = (part.repeat_interleave(groups, dim=-3) for part in (k, v))
        scores = _masked(q @ k.mT * scale, mask, ctx.is_causal)
        p = scores.softmax(-1)
        if fault.kind == "bf16":
            low, spoiled = _low_precision_output(scores, v), g
        else:
            low, spoiled = fault.spoil(output), fault.spoil(g)
        delta = (low.to(wide) * spoiled.to(wide)).sum(-1, keepdim=True)
        dv = p.mT @ g
        ds = p * (g @ v.mT - delta) * scale
        dq, dk = ds @ k, ds.mT @ q
        dk, dv = (_fold(part, groups) for part in (dk, dv))
        return dq.to(query), dk.to(key), dv.to(value), *(None,) * 5


def _masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf)
    return scores + mask.to(scores)


def _low_precision_output(scores: Tensor, v: Tensor) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights.bfloat16() @ v.bfloat16()).to(scores) / total


def _fold(gradient: Tensor, groups: int) -> Tensor:
    """Adds up the gradients of query heads that share a key head."""
    return gradient if groups == 1 else gradient.unflatten(-3, (-1, groups)).sum(-3)
