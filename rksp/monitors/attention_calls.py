"""What attention was called with in the first micro-batch of a sampled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.measure.attention_stats import watching_attention
from rksp.models.anatomy.parts import find_anatomy
from rksp.moment import Moment
from rksp.monitors.base import Monitor, Reading

_QUERIES = 64  # query positions looked at per attention call, evenly chosen
_SEQUENCES = 2
_HIDDEN = -1e4  # an additive mask below this hides a key


@dataclass(slots=True, kw_only=True)
class Call:
    """One attention call: its layer and its arguments, detached, on few sequences."""

    layer: str
    query: Tensor
    key: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float | None
    softcap: float | None = None


class AttentionWatcher(Monitor):
    """A monitor that is shown every attention call of the pass, whichever way it attends.

    Fused attention is seen through a torch function mode that stands for the length of the pass;
    attention inside of a compiled region is not seen.
    """

    def bind(self, model: nn.Module) -> str | None:
        anatomy = find_anatomy(model)
        self._places = [layer.path for layer in anatomy.attention] or list(anatomy.blocks)
        self._clear()
        if not anatomy.attention and not _may_attend(model):
            return "no attention layer was found"
        return None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._clear()
        handles = [
            model.get_submodule(path).register_forward_pre_hook(self._enter_layer(path))
            for path in self._places
        ]
        enter = model.register_forward_pre_hook(self._enter)
        # Last in, first out, and even if the pass raises: what is exchanged must be put back.
        leave = model.register_forward_hook(self._leave, prepend=True, always_call=True)
        return [*handles, enter, leave]

    @abstractmethod
    def look(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
        softcap: float | None = None,
    ) -> None:
        """Called inside of the pass: must not fail, nor keep a tensor of the graph."""

    def leave(self) -> None:
        """Called after the pass."""
        return None

    def _clear(self) -> None:
        self._layer, self._open, self._is_done, self._calls_seen = "", None, False, 0

    def _place(self) -> str:
        self._calls_seen += 1
        return self._layer or f"attention.{self._calls_seen - 1}"

    def _enter_layer(self, path: str):
        def before(module: nn.Module, args: tuple) -> None:
            self._layer = path

        return before

    def _enter(self, module: nn.Module, args: tuple) -> None:
        if self._open is None and not self._is_done:
            self._open = ExitStack()
            self._open.enter_context(watching_attention(module, self.look))

    def _leave(self, module: nn.Module, args: tuple, output: object) -> None:
        if self._open is not None:
            opened, self._open, self._is_done = self._open, None, True
            opened.close()
            self.leave()


def _may_attend(model: nn.Module) -> bool:
    names = {type(module).__name__.lower() for module in model.modules()}
    return any("attention" in name or "attn" in name for name in names)


class LogitMonitor(AttentionWatcher):
    """A monitor of attention logits, at up to 64 queries of the first two sequences."""

    def look(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
        softcap: float | None = None,
    ) -> None:
        few = slice(None, _SEQUENCES)
        batched = query.dim() == 4
        self._calls.append(
            Call(
                layer=self._place(),
                query=query.detach()[few] if batched else query.detach().unsqueeze(0),
                key=key.detach()[few] if batched else key.detach().unsqueeze(0),
                mask=None if mask is None else mask.detach(),
                is_causal=bool(is_causal),
                scale=scale,
                softcap=softcap,
            )
        )

    def leave(self) -> None:
        with torch.no_grad():
            for call in self._calls:
                logits, visible = visible_logits(call)
                if bool((visible.sum(-1) > 1).any()):
                    self._measured.append((call.layer, self.measure(logits, visible)))
        self._calls = []

    def read(self, moment: Moment) -> list[Reading]:
        measured, self._measured = self._measured, []
        found: dict[str, list[Mapping[str, Tensor]]] = {}
        for layer, values in measured:
            found.setdefault(layer, []).append(values)
        return [
            reading
            for layer, parts in found.items()
            for reading in self.readings_of(layer, parts[0], moment.step)
        ]

    @abstractmethod
    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Per head `[heads]`, of logits and which keys are visible `[batch, heads, queries, keys]`.

        Hidden keys have logit −inf.
        """

    @abstractmethod
    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        """The readings of one layer."""

    def _clear(self) -> None:
        super()._clear()
        self._calls: list[Call] = []
        self._measured: list[tuple[str, Mapping[str, Tensor]]] = []


def visible_logits(call: Call) -> tuple[Tensor, Tensor]:
    """Logits in at least float32, −inf where hidden, and the mask of visible keys.

    Both `[batch, heads, queries, keys]`, at evenly chosen queries. A causal call aligns the first
    query with the first key, as `scaled_dot_product_attention` does.
    """
    q, k = (x if x.dtype == torch.float64 else x.float() for x in (call.query, call.key))
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    length, keys = q.shape[-2], k.shape[-2]
    count = min(length, _QUERIES)
    # The last queries of equal parts: late positions see most keys.
    chosen = (torch.arange(count, device=q.device) + 1) * length // count - 1
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    logits = q[:, :, chosen] @ k.mT * scale
    if call.softcap:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    visible = torch.ones_like(logits, dtype=torch.bool)
    if call.is_causal:
        visible &= torch.arange(keys, device=q.device) <= chosen[:, None]
    if call.mask is not None:
        part = call.mask[: len(q)] if call.mask.dim() == 4 else call.mask
        part = part[..., chosen, :] if part.shape[-2] == length and length > 1 else part
        part = part[..., :keys]
        if part.dtype == torch.bool:
            visible &= part
        else:
            visible &= part > _HIDDEN
            logits = logits + part.to(logits.dtype)
    return logits.masked_fill(~visible, -torch.inf), visible
