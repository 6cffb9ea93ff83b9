"""Observe or replace attention calls, however a model computes attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rksp.ground.model import definite
from rksp.models.anatomy.weight_view import at_least_float

_HIDDEN = -1e4  # an additive mask at or below this hides a key
_NOTHING = 20.0  # nats below every other key: its weight is lost in float32's rounding
_EAGER = "eager_attention_forward"  # transformers' name for unfused attention
_FUSED = F.scaled_dot_product_attention
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)
_IS_MEASURING: ContextVar[bool] = ContextVar("is_measuring", default=False)
# Arguments of fused and of eager attention, in order, by their names in an `AttentionCall`.
_GIVEN = {"query": "query", "key": "key", "value": "value"}
_FUSED_GIVEN = {
    **_GIVEN,
    **{"attn_mask": "mask", "dropout_p": "dropout", "is_causal": "is_causal", "scale": "scale"},
}
_EAGER_GIVEN = {**_GIVEN, "attention_mask": "mask", "scaling": "scale", "softcap": "softcap"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionCall:
    """The arguments of one call of attention, softmax(scale · q kᵀ + mask) v.

    If a model computes attention in its own way, only `logits` are known.

    Attributes:
        query: `[batch, heads, queries, dim]`, or `[heads, queries, dim]` without a batch.
        key: Like `query`; may have fewer heads (grouped queries).
        value: Like `key`.
        mask: Boolean (true is visible) or additive, broadcast to `[batch, heads, queries, keys]`.
        is_causal: A query sees the keys up to its own position, counted from the first key, as
            in `scaled_dot_product_attention`.
        scale: Factor of the logits; None means `dim ** -0.5`.
        softcap: c of c · tanh(logits / c), if the model caps its logits.
        dropout: Share of the probabilities that is dropped.
        logits: `[batch, heads, queries, keys]`, masked, as the softmax received them; the call then
            has no query and no key.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    logits: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """Tensor with a row for every query, `[..., heads, queries, dim or keys]`."""
        return definite(self.query) if self.logits is None else self.logits

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return definite(self.query).shape[-1] ** -0.5 if self.scale is None else self.scale

    def kept(self, sequences: int) -> AttentionCall:
        """Return the call on its first sequences, batched, without its graph and values."""
        if self.logits is not None:
            return AttentionCall(logits=self.logits.detach()[:sequences])
        query, key = definite(self.query).detach(), definite(self.key).detach()
        is_batched = query.dim() == 4
        mask = self.mask if self.mask is None or self.mask.dim() < 4 else self.mask[:sequences]
        return replace(
            self,
            query=query[:sequences] if is_batched else query.unsqueeze(0),
            key=key[:sequences] if is_batched else key.unsqueeze(0),
            value=None,
            mask=None if mask is None else mask.detach(),
        )


def visible_logits(call: AttentionCall, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the logits of a call, and which keys its queries see.

    Args:
        call: A call with or without a batch dimension.
        rows: Positions of the queries to compute, int64; all by default.

    Returns:
        The logits and the mask of visible keys (bool), both `[..., heads, queries, keys]`. The
        logits are scaled, capped and include the additive mask; they are −inf for a hidden key.
        Their dtype is float32, or float64 if the queries are float64.
    """
    if call.logits is not None:
        logits = at_least_float(call.logits if rows is None else call.logits[..., rows, :])
        visible = logits > _HIDDEN
        return logits.masked_fill(~visible, -torch.inf), visible
    query, key = at_least_float(definite(call.query)), at_least_float(definite(call.key))
    groups = query.shape[-3] // key.shape[-3]
    key = key if groups == 1 else key.repeat_interleave(groups, dim=-3)
    length, keys = query.shape[-2], key.shape[-2]
    rows = torch.arange(length, device=query.device) if rows is None else rows
    with torch.autocast(query.device.type, enabled=False):
        logits = query[..., rows, :] @ key.mT * call.factor
    if call.softcap:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    visible = torch.ones_like(logits, dtype=torch.bool)
    if call.is_causal:
        visible &= torch.arange(keys, device=query.device) <= rows[:, None]
    if call.mask is not None:
        mask = call.mask[..., :keys]
        mask = mask[..., rows, :] if mask.shape[-2] == length and length > 1 else mask
        if mask.dtype == torch.bool:
            visible &= mask
        else:
            visible &= _seen(mask)
            logits = logits + mask.to(logits.dtype)
    return logits.masked_fill(~visible, -torch.inf), visible


def _seen(mask: Tensor) -> Tensor:
    """Return where an additive mask, `[..., queries, keys]`, shows a key (bool, the same shape).

    A mask that hides by a moderate number (Swin: −100) leaves a gap between its levels; a bias by
    distance (ALiBi), however far it falls, falls in small steps.
    """
    seen = mask > _HIDDEN
    if bool((seen & (mask <= -_NOTHING)).any()):
        levels = torch.unique(mask[seen])  # rising
        is_hidden = (levels[:-1] <= -_NOTHING) & (levels.diff() >= _NOTHING)
        if bool(is_hidden.any()):
            seen &= mask > levels[:-1][is_hidden].max()
    return seen


def logit_deviations(logits: Tensor, visible: Tensor) -> Tensor:
    """Compute the standard deviation of each query's logits over its visible keys.

    Args:
        logits: As `visible_logits` returns them.
        visible: As `visible_logits` returns them.

    Returns:
        The deviations, `[batch, heads, queries]`.
    """
    count = visible.sum(-1).clamp(min=1)
    clean = logits.masked_fill(~visible, 0.0)
    mean = clean.sum(-1, keepdim=True) / count.unsqueeze(-1)
    return (((clean - mean).square() * visible).sum(-1) / count).sqrt()


def attention_entropies(logits: Tensor, visible: Tensor) -> Tensor:
    """Compute H / ln(visible keys) of each query's softmax, in [0, 1].

    Args:
        logits: As `visible_logits` returns them.
        visible: As `visible_logits` returns them.

    Returns:
        The entropies, `[batch, heads, queries]`.
    """
    most = visible.sum(-1).clamp(min=2).to(logits.dtype).log()
    token = _IS_MEASURING.set(True)  # so that other watchers do not count this softmax
    try:
        probabilities = logits.softmax(-1)
    finally:
        _IS_MEASURING.reset(token)
    entropies: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropies / most


Look = Callable[[AttentionCall], None]
Handle = Callable[[AttentionCall], Tensor | None]


class AttentionTap(TorchFunctionMode):
    """Passes every call of scaled dot-product attention to `handle`.

    The return value of `handle` replaces the result; with None the call proceeds unchanged. This
    is a mode and not a patched function: it applies to this thread only, and it also sees callers
    that imported the function by name.

    The tap is entered with `with`, or with `open` until `remove`. Function modes leave a stack from
    its top, so several may be removed in any order if no pass runs in between.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self.handle, self._stack = handle, ExitStack()

    def open(self) -> AttentionTap:
        """Enter the mode; the tap can then be stored like the handle of a hook."""
        self._stack.enter_context(self)
        return self

    def remove(self) -> None:
        """Leave the mode, like removing a hook."""
        self._stack.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._inside(func, args, kwargs)
        if func is _FUSED:
            replaced = self.handle(_call(_FUSED_GIVEN, args, kwargs))
            return func(*args, **kwargs) if replaced is None else replaced
        return func(*args, **kwargs)

    def _inside(self, func: Callable[..., object], args: Any, kwargs: Any) -> object:
        """Tap nn.MultiheadAttention, which reaches a mode as one call with the mode off inside."""
        before = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = _Tapped((*getattr(before, "handles", ()), self.handle))
        try:
            return func(*args, **kwargs)
        finally:
            F.scaled_dot_product_attention = before


@dataclass(frozen=True, slots=True)
class _Tapped:
    handles: tuple[Handle, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        for handle in self.handles:
            replaced = handle(_call(_FUSED_GIVEN, args, kwargs))
            if replaced is not None:
                return replaced
        return _FUSED(*args, **kwargs)


def fused_attention(call: AttentionCall) -> Tensor:
    """Run torch's scaled dot-product attention for a call; no tap sees it."""
    return _FUSED(
        definite(call.query),
        definite(call.key),
        definite(call.value),
        call.mask,
        call.dropout,
        call.is_causal,
        scale=call.scale,
        enable_gqa=definite(call.key).shape[-3] != definite(call.query).shape[-3],
    )


class _Watcher(AttentionTap):
    """Observes fused attention, and every other softmax over keys.

    Those are the last dimension of `[batch, heads, queries, keys]`, and of `[batch, tokens,
    tokens]`.
    """

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self.is_inside = False  # of attention that was already observed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SOFTMAX and not (self.is_inside or _IS_MEASURING.get()):
            logits = args[0] if args else kwargs.get("input")
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(logits, Tensor) and dim in (-1, logits.dim() - 1):
                # Those of a router or of classes are not of a token against each.
                is_square = logits.dim() == 3 and logits.shape[-1] == logits.shape[-2] > 1
                if logits.dim() == 4 or is_square:
                    whole = logits.unsqueeze(1) if is_square else logits
                    self.handle(AttentionCall(logits=whole))
        return super().__torch_function__(func, types, args, kwargs)

    def shown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap transformers' eager attention: observe its arguments instead of its softmax."""

        def eager(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.handle(_call(_EAGER_GIVEN, args, kwargs))
            before, self.is_inside = self.is_inside, True
            try:
                return original(module, *args, **kwargs)
            finally:
                self.is_inside = before

        return eager


@contextmanager
def watching_attention(model: nn.Module, look: Look) -> Iterator[None]:
    """Call `look` for every attention call inside the block.

    A torch function mode sees fused attention. Eager attention of transformers is seen by replacing
    `eager_attention_forward`, a name that its modeling files share. Attention that a model computes
    in its own way (GPT-J, BLOOM, MPT) is seen by its softmax.
    """
    watcher = _Watcher(look)
    with ExitStack() as stack:
        for name in {type(module).__module__ for module in model.modules()}:
            file = sys.modules.get(name)
            original = getattr(file, _EAGER, None)
            if original is not None:
                setattr(file, _EAGER, watcher.shown(original))
                stack.callback(setattr, file, _EAGER, original)
        # In evaluation mode, torch's own encoder layers have a fused path that bypasses hooks.
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(watcher)
        yield


def _call(
    fields: dict[str, str], args: tuple[Any, ...], kwargs: dict[str, object]
) -> AttentionCall:
    given = dict(zip(fields, args, strict=False)) | kwargs
    return AttentionCall(**{fields[name]: given[name] for name in given if name in fields})
