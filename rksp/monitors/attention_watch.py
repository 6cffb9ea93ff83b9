"""What attention was called with in the first micro-batch of a sampled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.errors import NotCovered
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    visible_logits,
    watching_attention,
)
from rksp.models.anatomy.parts import find_anatomy
from rksp.moment import Moment
from rksp.monitors.base import Monitor, Reading

_QUERIES = 64  # query positions looked at per attention call, evenly chosen
_SEQUENCES = 2


class AttentionWatcher(Monitor):
    """A monitor that is shown every attention call of the pass, whichever way it attends.

    Fused attention is seen through a torch function mode that stands for the length of the pass;
    attention inside of a compiled region is not seen.
    """

    def bind(self, model: nn.Module) -> str | None:
        anatomy = find_anatomy(model)
        self._places = [layer.path for layer in anatomy.attention] or list(anatomy.blocks)
        self._clear()
        self._has_attended = False
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
    def look(self, layer: str, call: AttentionCall) -> None:
        """Called inside of the pass: must not fail, nor keep a tensor of the graph."""

    def leave(self) -> None:
        """Called after the pass."""
        return None

    def _clear(self) -> None:
        self._layer, self._open, self._is_done, self._calls_seen = "", None, False, 0

    def worst_head(self, quantity: str, step: int, layer: str, by_head: Tensor) -> Reading:
        """The reading of a layer whose heads have the values `[heads]`, larger ones being worse."""
        largest, head = by_head.max(0)
        detail = {"median": float(by_head.median()), "head": float(head)}
        return self.reading(
            quantity, step, float(largest), layer=layer, heads=float(len(by_head)), **detail
        )

    def _look(self, call: AttentionCall) -> None:
        layer = self._layer or f"attention.{self._calls_seen}"
        self._calls_seen += 1
        self.look(layer, call)

    def read(self, moment: Moment) -> list[Reading]:
        """The readings of the pass.

        Raises:
            NotCovered: No attention call was seen.
        """
        self._has_attended |= self._calls_seen > 0
        if not self._has_attended:
            raise NotCovered(
                "no attention call was seen; the model attends in a way that rksp cannot read, or "
                "inside of a compiled region"
            )
        return self.readings(moment)

    @abstractmethod
    def readings(self, moment: Moment) -> list[Reading]:
        """The readings of a pass in which attention was seen."""

    def _enter_layer(self, path: str):
        def before(module: nn.Module, args: tuple) -> None:
            self._layer = path

        return before

    def _enter(self, module: nn.Module, args: tuple) -> None:
        if self._open is None and not self._is_done:
            self._open = ExitStack()
            self._open.enter_context(watching_attention(module, self._look))

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

    def look(self, layer: str, call: AttentionCall) -> None:
        self._calls.append((layer, call.kept(_SEQUENCES)))

    def leave(self) -> None:
        with torch.no_grad():
            for layer, call in self._calls:
                if layer in self._measured:
                    continue
                logits, visible = visible_logits(call, _late_rows(call))
                if bool((visible.sum(-1) > 1).any()):
                    self._measured[layer] = self.measure(logits, visible)
        self._calls = []

    def readings(self, moment: Moment) -> list[Reading]:
        measured, self._measured = self._measured, {}
        return [
            reading
            for layer, by_head in measured.items()
            for reading in self.readings_of(layer, by_head, moment.step)
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
        self._calls: list[tuple[str, AttentionCall]] = []
        self._measured: dict[str, Mapping[str, Tensor]] = {}


def _late_rows(call: AttentionCall) -> Tensor:
    """Positions of up to 64 queries, the last ones of equal parts: late queries see most keys."""
    length = call.rows.shape[-2]
    count = min(length, _QUERIES)
    return (torch.arange(count, device=call.rows.device) + 1) * length // count - 1
