"""Run a forward pass whose weights are loaded just before their use and dropped right after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rksp.models.anatomy.chains import first_tensor
from rksp.models.streaming.memory import MemoryPlan
from rksp.models.streaming.products import SplitProducts
from rksp.models.streaming.supply import Supply, choose_device, move_buffers, moved
from rksp.models.streaming.units import (
    Experts,
    Grain,
    HollowProducts,
    Read,
    Rows,
    Slot,
    Unit,
    Visitor,
    hollow,
    is_stack,
    is_tall,
    slots_of,
    units_of,
)
from rksp.models.streaming.weights import Weights

if TYPE_CHECKING:
    from rksp.datasets.batch import Batch


class Stream:
    """Hooks on a skeleton that give its modules their weights only while they run.

    A rehearsal with weights that have no memory finds the order of the modules. It also finds
    whether a module's weights are used only while it runs; if not, whole blocks are loaded. Use the
    stream as a context manager: leaving it drops every weight and stops the threads.

    Args:
        model: A skeleton; its buffers have values.
        weights: The source of the weights.
        workers: Threads that prepare weights, and as many that multiply by them; the result does
            not depend on their number.
        ahead: Bytes prepared ahead of use; 0 prepares nothing ahead. Default the larger of a
            quarter of a gigabyte and the largest unit of a block, or less if memory is short.
        max_memory: Bytes; a pass that needs more is refused after its rehearsal.
        target: Name of the model in messages.
        device: Device of the model; default the GPU if there is one. Weights get there from pinned
            memory while the GPU computes. On the CPU torch gets one thread and large products are
            split here, because the result must not depend on the number of threads.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Weights,
        *,
        workers: int = 1,
        ahead: int | None = None,
        max_memory: int | None = None,
        target: str = "The model",
        device: torch.device | None = None,
    ) -> None:
        self.model, self.weights, self.workers = model, weights, workers
        self.max_memory, self.target = max_memory, target
        self.plan: MemoryPlan | None = None  # of the pass that was rehearsed
        self.gradient_batch: Batch | None = None  # of a gradient that is to follow the pass
        self.device = choose_device() if device is None else device
        move_buffers(model, self.device)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.slots = slots_of(model)
        self.empty = {slot.name: slot.empty for slot in self.slots}  # without memory, by name
        can_slice = [slot for slot in self.slots if weights.can_slice(slot.name)]
        self.stacks = tuple(slot for slot in can_slice if is_stack(slot))
        on_cpu = self.device.type == "cpu"  # a GPU multiplies by whole matrices
        self.tall = tuple(slot for slot in can_slice if on_cpu and is_tall(slot))
        self.grain: Grain = "module"
        self.units: tuple[Unit, ...] = ()
        self.asked_ahead = ahead
        self.supply = Supply(weights, self.device, workers)
        self.supply.ahead = ahead or 0
        self.widest = self.logits = 0
        self._done: list[Unit] = []
        self._experts: list[Experts] = []
        self._hooks: list = []
        self._tape: Visitor | None = None
        self.split_flops = 0  # FLOP of products split over threads
        if self.stacks and hasattr(model, "set_experts_implementation"):
            cast(Any, model).set_experts_implementation(
                "eager"
            )  # the one that reads experts one by one
        for slot in self.stacks:
            experts = Experts(
                slot,
                self.supply.read(slot),
                self.device,
                self._give_expert,
                lambda: bool(self.supply.ahead),
            )
            # In the instance's dictionary it hides the parameter, which stays registered.
            slot.module.__dict__[slot.attribute] = experts
            self._experts.append(experts)
        cast(Any, model)._rksp_stream = self
        self.attach("module")

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return sum({slot.name: slot.size for slot in self.slots}.values())

    def shape(self, name: str, index: int | None) -> tuple[int, ...]:
        """Return the shape of a weight, or of one expert of a stack."""
        shape = tuple(self.empty[name].shape)
        return shape if index is None else shape[1:]

    def describe(self) -> str:
        """Describe how the weights were held; the phrase does not depend on the threads."""
        grains = {
            "module": "module by module",
            "block": "block by block",
            "rest": "block by block, the rest at once",
        }
        experts = ", experts one by one" if self.stacks else ""
        tall = ", large matrices by rows" if self.tall else ""
        where = ", on the GPU" if self.device.type == "cuda" else ""
        return f"streamed {grains[self.grain]}{experts}{tall}{where}"

    def attach(self, grain: Grain) -> None:
        """Put hooks on the modules that hold weights, or on whole blocks."""
        self._detach()
        sliced = {*self.stacks, *self.tall}
        whole = [slot for slot in self.slots if slot not in sliced]
        self.grain, self.units = grain, units_of(self.model, whole, grain)
        for unit in self.units:
            self._hooks += [
                unit.module.register_forward_pre_hook(
                    lambda module, args, unit=unit: self._enter(unit)
                ),
                unit.module.register_forward_hook(
                    lambda module, args, output, unit=unit: self._leave(unit, output)
                ),
            ]
        self._hooks += [
            self.model.register_forward_pre_hook(
                lambda module, args, kwargs: self._begin_pass(args, kwargs), with_kwargs=True
            ),
            self.model.register_forward_hook(lambda module, args, output: self._end_pass()),
        ]

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Split products with large weights over as many threads as prepare weights."""
        if self.device.type != "cpu":
            yield
            return
        tall = {id(slot.empty): Rows(slot.empty, self.supply.read(slot)) for slot in self.tall}
        with SplitProducts(self.supply.products, tall) as split:
            yield
        self.split_flops = split.flops

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Run the model inside on weights without memory, and record the order of units."""
        self.supply.is_hollow, self.supply.order = True, []
        try:
            with HollowProducts({id(slot.empty) for slot in self.tall}):
                yield
        finally:
            self.release()
            self.supply.is_hollow = False

    def _enter(self, unit: Unit) -> None:
        if self._tape is not None:
            self._tape.enter(unit)
            return
        self._retire()
        if self.supply.is_hollow:
            self.supply.order.append(unit)
            tensors: Mapping[str, Tensor] = {
                slot.name: hollow(slot.empty, self.device) for slot in unit.slots
            }
        else:
            tensors = self.supply.fetch(unit)
        for slot in unit.slots:
            # A weight requires a gradient as it does in memory: torch chooses by this between
            # products that round differently, even if no gradient is taken. If one is taken, the
            # graph would keep every weight.
            is_asked = slot.empty.requires_grad and not torch.is_grad_enabled()
            weight = nn.Parameter(tensors[slot.name], requires_grad=is_asked)
            slot.module._parameters[slot.attribute] = weight
        self.supply.held.append(unit)

    @contextmanager
    def visited_by(self, tape: Visitor) -> Iterator[None]:
        """Let a tape give modules their weights inside."""
        self.release()
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None
            for unit in self.units:  # of a pass that was aborted
                unit.clear()
            self.release()

    def _give_expert(self, slot: Slot, index: int, read: Read) -> Tensor | None:
        """Return the expert from a tape, if there is one."""
        if self._tape is None:
            return None

        def begin() -> Callable[[], Tensor]:
            wait = read(index, index + 1)
            return lambda: wait()[0]

        return self._tape.expert(slot, index, begin)

    def _leave(self, unit: Unit, output: Any) -> None:
        if self._tape is not None:
            self._tape.leave(unit)
            return
        if self.supply.is_hollow and unit.module is not self.model:
            size = _bytes_of(output)
            # The last module returns the logits; there is one copy of them and not four.
            self.widest, self.logits = max(self.widest, self.logits), size
        # The unit is dropped later, because hooks after this one may read the weights.
        self._done.append(unit)

    def _retire(self) -> None:
        for unit in self._done:
            unit.clear()
            if unit in self.supply.held:
                self.supply.held.remove(unit)
        self._done.clear()

    def _begin_pass(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return moved((args, kwargs), self.device)

    def _end_pass(self) -> None:
        if self._tape is not None:
            self._tape.end()
        else:
            self.release()

    def release(self) -> None:
        """Drop every weight and everything prepared ahead."""
        self._done = list(dict.fromkeys(self._done + self.supply.held))
        self._retire()
        for experts in self._experts:
            experts.forget()
        self.supply.rest()

    def again(self) -> Stream:
        """Open a new stream in the state of this one after its rehearsal."""
        stream = Stream(
            self.model,
            self.weights,
            workers=self.workers,
            ahead=self.asked_ahead,
            max_memory=self.max_memory,
            target=self.target,
            device=self.device,
        )
        if not self.tall:
            stream.tall = ()
        stream.attach(self.grain)
        stream.supply.take_over(self.supply, {unit.path: unit for unit in stream.units})
        stream.plan, stream.widest = self.plan, self.widest
        return stream

    def close(self) -> None:
        """Drop every weight, remove the hooks and stop the threads."""
        self.release()
        self._detach()
        for slot in self.stacks:
            slot.module.__dict__.pop(slot.attribute, None)
        self.model.__dict__.pop("_rksp_stream", None)
        self.supply.close()
        torch.set_num_threads(self._threads)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _bytes_of(output: Any) -> int:
    tensor = first_tensor(output)
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
