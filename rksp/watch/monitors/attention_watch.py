"""The attention calls in the first micro-batch of a sampled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    visible_logits,
    watching_attention,
)
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Monitor, Reading

_QUERIES = 64  # query positions looked at per attention call, evenly chosen
_SEQUENCES = 2


class AttentionWatcher(Monitor):
    """A monitor that sees every attention call of the pass, in any implementation.

    A torch function mode that lasts for the pass shows fused attention. Attention inside of a
    compiled region is not seen.
    """

    def bind(self, model: nn.Module) -> str | None:
        """Find the attention layers, or the blocks if no layer has a known layout."""
        anatomy = find_anatomy(model)
        self._places = [layer.path for layer in anatomy.attention] or list(anatomy.blocks)
        self._clear()
        self._has_attended = False
        if not anatomy.attention and not _may_attend(model):
            return "no attention layer was found"
        return None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Watch the attention calls of the next forward pass."""
        self._clear()
        handles = [
            model.get_submodule(path).register_forward_pre_hook(self._enter_layer(path))
            for path in self._places
        ]
        enter = model.register_forward_pre_hook(self._enter)
        # Runs first and even if the pass raises, so that torch's functions are always restored.
        leave = model.register_forward_hook(self._leave, prepend=True, always_call=True)
        return [*handles, enter, leave]

    @abstractmethod
    def look(self, layer: str, call: AttentionCall) -> None:
        """Look at one call inside of the pass; never fail, and keep no tensor of the graph."""

    def leave(self) -> None:
        """Process the pass after it ended."""
        return None

    def _clear(self) -> None:
        self._layer, self._is_done, self._calls_seen = "", False, 0
        self._open: ExitStack | None = None

    def worst_head(self, quantity: str, step: int, layer: str, by_head: Tensor) -> Reading:
        """Return the reading of a layer from its heads' values `[heads]`; larger ones are worse."""
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
        """Return the readings of the pass.

        Raises:
            NotCovered: No attention call was seen.
        """
        self._has_attended |= self._calls_seen > 0
        if not self._has_attended:
            raise NotCovered(
                "no attention call was seen; the model uses an attention that rksp cannot read, or "
                "it runs inside of a compiled region"
            )
        return self.readings(moment)

    @abstractmethod
    def readings(self, moment: Moment) -> list[Reading]:
        """Return the readings of a pass in which attention was seen."""

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

    _calls: list[tuple[str, AttentionCall]]
    _measured: dict[str, Mapping[str, Tensor]]

    def look(self, layer: str, call: AttentionCall) -> None:
        """Keep the call until the pass has ended."""
        self._calls.append((layer, call.kept(_SEQUENCES)))

    def leave(self) -> None:
        """Measure the first usable call of each layer."""
        with torch.no_grad():
            for layer, call in self._calls:
                if layer in self._measured:
                    continue
                logits, visible = visible_logits(call, _late_rows(call))
                if bool((visible.sum(-1) > 1).any()):
                    self._measured[layer] = self.measure(logits, visible)
        self._calls = []

    def readings(self, moment: Moment) -> list[Reading]:
        """Return the readings of all layers."""
        measured, self._measured = self._measured, {}
        return [
            reading
            for layer, by_head in measured.items()
            for reading in self.readings_of(layer, by_head, moment.step)
        ]

    @abstractmethod
    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Return values for each head, `[heads]`.

        Args:
            logits: `[batch, heads, queries, keys]`; hidden keys are −inf.
            visible: Bool of the same shape: the visible keys.
        """

    @abstractmethod
    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        """Return the readings of one layer."""

    def _clear(self) -> None:
        super()._clear()
        self._calls = []
        self._measured = {}


def _late_rows(call: AttentionCall) -> Tensor:
    """Return the last positions of up to 64 equal parts, because late queries see most keys."""
    length = call.rows.shape[-2]
    count = min(length, _QUERIES)
    return (torch.arange(count, device=call.rows.device) + 1) * length // count - 1
