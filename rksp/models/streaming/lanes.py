"""Run several passes through one streamed model in step, and load each weight once for all.

Every lane runs the model's own forward pass on its own thread, and stops when it needs a weight.
Only one lane runs at a time. When all lanes need the same weight, it is loaded. Each lane gets it
moved along an update by the lane's own rate, and then it is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from rksp.ground.model import definite
from rksp.models.streaming.gradients import Key, chunks
from rksp.models.streaming.guest import Begin
from rksp.models.streaming.products import SplitProducts, run_all
from rksp.models.streaming.slices import Rows

if TYPE_CHECKING:
    from rksp.models.streaming.stream import Stream
    from rksp.models.streaming.units import Slot, Unit


class Direction(Protocol):
    """An update per unit rate, for any rows of any weight."""

    def moves(self, key: Key) -> bool:
        """Tell whether the update changes this weight."""
        ...

    def is_by_rows(self, name: str) -> bool:
        """Tell whether rows can be computed without the rest of the weight."""
        ...

    def rows(self, key: Key, start: int, stop: int, weight: Tensor) -> Tensor:
        """Compute the update of the rows `start … stop`, whose values are `weight`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    """What a lane waits for, and when in the pass; lanes with equal wants are served together."""

    rank: tuple[int, int, int]
    unit: Unit | None = None
    slot: Slot | None = None
    index: int = -1


class _Stopped(BaseException):
    """Ends a lane whose pass is no longer needed."""


class _Lane(threading.Thread):
    """One pass with its weights moved by `rate` times the update."""

    def __init__(self, lanes: Lanes, rate: float, run: Callable[[float], Any]) -> None:
        super().__init__(name="rksp-lane", daemon=True)
        self.lanes, self.rate, self.run_pass = lanes, rate, run
        self.want: _Want | None = None
        self.asked: Any = None  # further arguments of the want
        self.answer: Any = None
        self.error: BaseException | None = None
        self.result: Any = None
        self.go = threading.Event()
        self.held: list[tuple[Unit, dict[str, Tensor]]] = []
        self.done: list[Unit] = []  # units that have run and still hold their weights
        self.place, self.turn = 0, 0

    def run(self) -> None:
        """Run the pass and keep its result or its error."""
        try:
            with torch.no_grad(), _LaneProducts(self):
                self.result = self.run_pass(self.rate)
        except BaseException as error:  # raised again in the thread that waits
            self.error = error
        finally:
            self.want = None
            self.lanes.back.set()

    def ask(self, want: _Want, asked: Any = None) -> Any:
        """Wait for an answer while the other lanes run."""
        self.want, self.asked = want, asked
        self.lanes.back.set()
        self.go.wait()
        self.go.clear()
        answer, self.answer = self.answer, None  # do not keep a weight alive after its use
        if answer is _Stopped:
            raise _Stopped
        for unit, tensors in self.held:  # the other lanes have placed theirs meanwhile
            unit.place(tensors)
        return answer


class Lanes:
    """Runs passes in step; it is the guest of a stream while it does.

    Args:
        stream: A rehearsed stream.
        direction: The update per unit rate.
        rates: Rates of the lanes; 0 is the unmoved model.
        served: Called with the bytes of weights that a lane has received.
    """

    def __init__(
        self,
        stream: Stream,
        direction: Direction,
        rates: Sequence[float],
        served: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.stream, self.direction, self.rates, self.served = stream, direction, rates, served
        self.back = threading.Event()
        self._places: dict[Unit, list[int]] = {}
        for place, unit in enumerate(stream.supply.order):
            self._places.setdefault(unit, []).append(place)
        self._next: tuple[Key, Callable[[], Tensor]] | None = None

    def run(self, run: Callable[[float], Any]) -> list[Any]:
        """Return the results of `run` at each rate; raise the first error of any lane."""
        lanes = [_Lane(self, rate, run) for rate in self.rates]
        with self.stream.visited_by(self):
            try:
                for lane in lanes:
                    self._resume(lane, None)
                while waiting := [lane for lane in lanes if lane.want is not None]:
                    first = min(waiting, key=lambda lane: definite(lane.want).rank).want
                    self._serve(definite(first), [lane for lane in waiting if lane.want == first])
            finally:
                for lane in lanes:
                    while lane.is_alive():
                        lane.answer = _Stopped
                        lane.go.set()
                        lane.join(0.1)
        return [lane.result for lane in lanes]

    def _resume(self, lane: _Lane, answer: Any) -> None:
        lane.answer = answer
        lane.want = lane.asked = None
        self.back.clear()
        if lane.ident is None:
            lane.start()
        else:
            lane.go.set()
        self.back.wait()
        if lane.error is not None:
            raise lane.error

    # The stream calls these methods on a lane's thread.

    def enter(self, unit: Unit) -> None:
        """Wait for the unit's moved weights and place them."""
        self.end()
        lane = cast(_Lane, threading.current_thread())
        places = self._places.get(unit, ())
        lane.place = next((place for place in places if place >= lane.place), lane.place)
        lane.turn = 0
        tensors = lane.ask(_Want(rank=(lane.place, 0, -1), unit=unit))
        lane.place += 1
        lane.held.append((unit, tensors))
        unit.place(tensors)

    def leave(self, unit: Unit) -> None:
        """Note that a unit has run."""
        cast(_Lane, threading.current_thread()).done.append(unit)

    def end(self) -> None:
        """Remove the weights of units that have run."""
        lane = cast(_Lane, threading.current_thread())
        lane.held = [pair for pair in lane.held if pair[0] not in lane.done]
        for unit in lane.done:
            unit.clear()
        lane.done.clear()

    def expert(self, slot: Slot, index: int, begin: Begin) -> Tensor:
        """Wait for one moved expert of a stack and return it."""
        lane = cast(_Lane, threading.current_thread())
        want = _Want(rank=(lane.place, lane.turn, index), slot=slot, index=index)
        return lane.ask(want, begin)

    # These methods serve a want on the caller's thread.

    def _serve(self, want: _Want, lanes: list[_Lane]) -> None:
        if want.unit is not None:
            self._serve_unit(want.unit, lanes)
        elif want.index >= 0:
            self._serve_expert(definite(want.slot), want.index, lanes)
        else:
            self._serve_rows(definite(want.slot), lanes)

    def _serve_unit(self, unit: Unit, lanes: list[_Lane]) -> None:
        weights = self.stream.supply.fetch(unit)
        updates = {name: self._update((name, None), weight) for name, weight in weights.items()}
        for lane in lanes:
            moved = {
                name: self._moved(weight, updates[name], lane.rate)
                for name, weight in weights.items()
            }
            self.served(unit.size)
            self._resume(lane, moved)

    def _serve_expert(self, slot: Slot, index: int, lanes: list[_Lane]) -> None:
        key = slot.name, index
        begin = lanes[0].asked
        wait = self._next[1] if self._next is not None and self._next[0] == key else begin()
        self._next = None
        weight = wait()
        if index + 1 < len(slot.empty) and self.stream.supply.ahead:
            read = self.stream.supply.read(slot)
            following = read(index + 1, index + 2)
            self._next = (slot.name, index + 1), lambda: following()[0]
        update = self._update(key, weight)
        for lane in lanes:
            self.served(weight.numel() * weight.element_size())
            self._resume(lane, self._moved(weight, update, lane.rate))

    def _serve_rows(self, slot: Slot, lanes: list[_Lane]) -> None:
        """Serve products with a weight that is never whole."""
        outs = [torch.empty(*lane.asked[0].shape[:-1], len(slot.empty)) for lane in lanes]
        for start, stop, part in Rows(slot.empty, self.stream.supply.read(slot)).parts():
            update = self._update((slot.name, None), part, start)
            for lane, out in zip(lanes, outs, strict=True):
                x, bias = lane.asked
                weight = self._moved(part, update, lane.rate)
                flat = out.view(-1, out.shape[-1])[:, start:stop]
                own = None if bias is None else bias[start:stop]
                SplitProducts(self.stream.supply.products).multiply(
                    x.reshape(-1, x.shape[-1]), weight, own, flat
                )
                del weight
        for lane, out in zip(lanes, outs, strict=True):
            self.served(slot.size)
            self._resume(lane, out)

    def _update(self, key: Key, weight: Tensor, first: int = 0) -> Tensor | None:
        """Compute the update of a weight or of its rows from `first` on; None if it has none."""
        if not self.direction.moves(key) or not any(self.rates):
            return None
        if not self.direction.is_by_rows(key[0]) or weight.dim() == 0:
            return self.direction.rows(key, 0, len(weight) if weight.dim() else 1, weight)
        out = self.stream.supply.buffers.empty(weight)

        def fill(start: int, stop: int) -> None:
            out[start:stop] = self.direction.rows(
                key, first + start, first + stop, weight[start:stop]
            )

        jobs = [partial(fill, *edges) for edges in chunks(tuple(weight.shape))]
        run_all(self.stream.supply.products, jobs)
        return out

    def _moved(self, weight: Tensor, update: Tensor | None, rate: float) -> Tensor:
        """Return a weight after a step of this rate."""
        if update is None or rate == 0:
            return weight
        if weight.dim() == 0:
            return weight + rate * update
        out = self.stream.supply.buffers.empty(weight)

        @torch.no_grad()
        def move(start: int, stop: int) -> None:
            torch.add(weight[start:stop], update[start:stop], alpha=rate, out=out[start:stop])

        run_all(
            self.stream.supply.products,
            [partial(move, *edges) for edges in chunks(tuple(weight.shape))],
        )
        return out


class _LaneRows:
    """A lane's weight that is never whole."""

    def __init__(self, lane: _Lane, slot: Slot) -> None:
        self.lane, self.slot = lane, slot

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return `x @ weightᵀ + bias`."""
        lane = self.lane
        lane.turn += 1
        return lane.ask(_Want(rank=(lane.place, lane.turn, -1), slot=self.slot), (x, bias))

    def look_up(self, ids: Tensor) -> Tensor:
        """Return `weight[ids]`."""
        lanes, key = self.lane.lanes, (self.slot.name, None)
        found = Rows(self.slot.empty, lanes.stream.supply.read(self.slot)).look_up(ids)
        if self.lane.rate == 0 or not lanes.direction.moves(key):
            return found
        flat, rows = ids.flatten(), found.view(-1, found.shape[-1])
        unique, inverse = flat.unique(return_inverse=True)
        first = torch.zeros_like(unique).scatter_(0, inverse, torch.arange(len(flat)))
        update = torch.empty(len(unique), found.shape[-1])
        for place, row in enumerate(unique.tolist()):
            value = rows[first[place]].unsqueeze(0)
            update[place] = lanes.direction.rows(key, row, row + 1, value)[0]
        return found + self.lane.rate * update[inverse].view(found.shape)


class _LaneProducts(SplitProducts):
    """The products of one lane."""

    def __init__(self, lane: _Lane) -> None:
        stream = lane.lanes.stream
        tall: dict[int, Any] = {id(s.empty): _LaneRows(lane, s) for s in stream.tall}
        super().__init__(stream.supply.products, tall)

    def _by_rows(self, weight: Any, x: Tensor, like: Tensor, bias: Tensor | None = None) -> Tensor:
        return weight.product(x, bias)
