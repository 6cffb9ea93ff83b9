"""Run a forward pass whose weights are loaded just before their use and dropped right after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor, nn

from rksp.errors import InputError, NotCovered
from rksp.models.anatomy.chains import first_tensor
from rksp.models.streaming.buffers import Buffers
from rksp.models.streaming.guest import Guest
from rksp.models.streaming.loading import Jobs, Loading, choose_device, move_buffers, moved
from rksp.models.streaming.planning import plan_stream
from rksp.models.streaming.products import SplitProducts
from rksp.models.streaming.scales import Scales
from rksp.models.streaming.slices import Experts, Read, Rows, is_stack, is_tall
from rksp.models.streaming.units import (
    GRAINS,
    Grain,
    HollowProducts,
    Slot,
    Unit,
    hollow,
    slots_of,
    units_of,
)
from rksp.models.streaming.weights import Weights

Result = TypeVar("Result")


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
        self.max_memory, self.target, self.plan = max_memory, target, None
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
        self.order: list[Unit] = []
        self.is_rehearsing = False
        self.asked_ahead = ahead
        self.ahead = ahead or 0
        self.widest = self.logits = 0
        self.waited = 0.0  # seconds the model waited for its weights
        self.pass_seconds: float | None = None  # duration of the stream's last own pass
        self._begun = 0.0
        self._place = 0
        self._done: list[Unit] = []
        self._loaded: list[Unit] = []
        self._coming: dict[Unit, Loading] = {}
        self._experts: list[Experts] = []
        self._hooks: list = []
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rksp-weights")
        self.products = ThreadPoolExecutor(workers, thread_name_prefix="rksp-products")
        self.buffers = Buffers()
        self.scales = Scales()
        self._guest: Guest | None = None
        self.split_flops = 0  # FLOP of products split over threads
        if self.stacks and hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # the one that reads experts one by one
        for slot in self.stacks:
            experts = Experts(
                slot, self.read(slot), self.device, self._give_expert, lambda: bool(self.ahead)
            )
            # In the instance's dictionary it hides the parameter, which stays registered.
            slot.module.__dict__[slot.attribute] = experts
            self._experts.append(experts)
        model._rksp_stream = self
        self._attach("module")

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

    def _attach(self, grain: Grain) -> None:
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
        tall = {id(slot.empty): Rows(slot.empty, self.read(slot)) for slot in self.tall}
        with SplitProducts(self.products, tall) as split:
            yield
        self.split_flops = split.flops

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Run the model inside on weights without memory, and record the order of units."""
        self.is_rehearsing, self.order = True, []
        try:
            with HollowProducts({id(slot.empty) for slot in self.tall}):
                yield
        finally:
            self.release()
            self.is_rehearsing = False

    def rehearse(
        self, run: Callable[[], Result], *, sequences: int = 1, entries: int = 0
    ) -> Result:
        """Call `run` in a rehearsal, with the finest grain that the model supports.

        Args:
            run: Runs the model on one sequence.
            sequences: Number of sequences of the pass that will follow.
            entries: States times width of that pass.

        Returns:
            The result of `run`.

        Raises:
            InputError: The pass would not fit in memory.
            NotCovered: The model uses weights outside of the modules that hold them.
        """
        failure: Exception | None = None
        for _ in self._attempts():
            try:
                with self.rehearsal():
                    result = run()
                break
            except NotCovered:
                raise
            except (InputError, RuntimeError, NotImplementedError, TypeError) as error:
                failure = failure or error
        else:
            text = " ".join(str(failure).split())[:200]
            raise NotCovered(
                f"{type(self.model).__name__} cannot be streamed: it uses weights outside of the "
                f"modules that hold them ({text}); use --stream never."
            ) from failure
        self.plan, self.ahead = plan_stream(self, sequences, entries)
        self.buffers.limit = self.plan.weights
        return result

    def _attempts(self) -> Iterator[None]:
        """Try coarser and coarser grains: matrices by rows, whole, by block, the rest at once."""
        self._attach("module")
        yield
        self.tall = ()
        for grain in GRAINS:
            self._attach(grain)
            yield

    def _enter(self, unit: Unit) -> None:
        if self._guest is not None:
            self._guest.enter(unit)
            return
        self._retire()
        if self.is_rehearsing:
            self.order.append(unit)
            tensors = {slot.name: hollow(slot.empty, self.device) for slot in unit.slots}
        else:
            tensors = self.fetch(unit)
        for slot in unit.slots:
            # A weight requires a gradient as it does in memory: torch chooses by this between
            # products that round differently, even if no gradient is taken. If one is taken, the
            # graph would keep every weight.
            is_asked = slot.empty.requires_grad and not torch.is_grad_enabled()
            weight = nn.Parameter(tensors[slot.name], requires_grad=is_asked)
            slot.module._parameters[slot.attribute] = weight
        self._loaded.append(unit)

    def fetch(self, unit: Unit) -> dict[str, Tensor]:
        """Return the weights of a unit; start loading those of the units after it."""
        loading = self._coming.pop(unit, None) or self._load(unit)
        self._advance(unit)
        tensors = self._wait(loading)
        for name, tensor in tensors.items():
            self.scales.note(name, 0, tensor, self.products)
        return tensors

    def begin(self, slot: Slot) -> Callable[[], Tensor]:
        """Start to load one whole weight; return the function that waits for it."""
        loading = self._loading({slot.name: slot.empty}, self.weights.jobs)
        return lambda: self._wait(loading)[slot.name]

    @contextmanager
    def visited_by(self, guest: Guest) -> Iterator[None]:
        """Let a guest give modules their weights inside."""
        self.release()
        self._guest = guest
        try:
            yield
        finally:
            self._guest = None
            for unit in self.units:  # of a pass that was aborted
                unit.clear()
            self.release()

    def _give_expert(self, slot: Slot, index: int, read: Read) -> Tensor | None:
        """Return the expert from a guest, if there is one."""
        if self._guest is None:
            return None

        def begin() -> Callable[[], Tensor]:
            wait = read(index, index + 1)
            return lambda: wait()[0]

        return self._guest.expert(slot, index, begin)

    def _load(self, unit: Unit) -> Loading:
        return self._loading({slot.name: slot.empty for slot in unit.slots}, self.weights.jobs)

    def _loading(self, shapes: dict[str, Tensor], jobs: Jobs) -> Loading:
        return Loading(
            shapes,
            jobs,
            in_place=self.weights.is_drawn_in_place,
            pool=self._pool,
            device=self.device,
            buffers=self.buffers,
        )

    def _wait(self, loading: Loading) -> dict[str, Tensor]:
        start = time.perf_counter()
        tensors = loading.wait()
        self.waited += time.perf_counter() - start
        return tensors

    def _leave(self, unit: Unit, output: object) -> None:
        if self._guest is not None:
            self._guest.leave(unit)
            return
        if self.is_rehearsing and unit.module is not self.model:
            size = _bytes_of(output)
            # The last module returns the logits; there is one copy of them and not four.
            self.widest, self.logits = max(self.widest, self.logits), size
        # The unit is dropped later, because hooks after this one may read the weights.
        self._done.append(unit)

    def _retire(self) -> None:
        for unit in self._done:
            unit.clear()
            if unit in self._loaded:
                self._loaded.remove(unit)
        self._done.clear()

    def _advance(self, unit: Unit) -> None:
        """Start loading what comes next, as far as memory is reserved for it."""
        try:
            self._place = self.order.index(unit, self._place) + 1
        except ValueError:
            return  # a module that the rehearsal did not reach, such as another expert
        window, size = [], 0
        for coming in self.order[self._place :]:
            size += coming.size
            if size > self.ahead:
                break
            window.append(coming)
        for stale in set(self._coming) - set(window):
            self._coming.pop(stale).drop()
        for coming in window:
            if coming not in self._coming and coming not in self._loaded:
                self._coming[coming] = self._load(coming)
        for loading in self._coming.values():
            loading.send()

    def read(self, slot: Slot) -> Read:
        """Return the function that loads parts of a slot's weight."""

        def read(start: int, stop: int) -> Callable[[], Tensor]:
            shape, dtype = (stop - start, *slot.empty.shape[1:]), slot.empty.dtype
            like = torch.empty(shape, dtype=dtype, device="meta")
            if self.is_rehearsing:  # an expert, because tall weights are never read in rehearsal
                like = torch.empty(shape[1:], dtype=dtype, device="meta")
                return lambda: hollow(like, self.device).unsqueeze(0)
            loading = self._loading(
                {slot.name: like},
                lambda name, out: self.weights.rows(name, start, stop, out),
            )

            def wait() -> Tensor:
                part = self._wait(loading)[slot.name]
                self.scales.note(slot.name, start, part, self.products)
                return part

            return wait

        return read

    def _begin_pass(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self._begun = time.perf_counter()
        return moved((args, kwargs), self.device)

    def _end_pass(self) -> None:
        if self._guest is None:
            self.release()
            self.pass_seconds = time.perf_counter() - self._begun

    def release(self) -> None:
        """Drop every weight and everything prepared ahead."""
        self._done = list(dict.fromkeys(self._done + self._loaded))
        self._retire()
        for loading in self._coming.values():
            loading.drop()
        self._coming.clear()
        for experts in self._experts:
            experts.forget()
        self.buffers.trim()
        self._place = 0

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
        stream._attach(self.grain)
        units = {unit.path: unit for unit in stream.units}
        stream.order = [units[unit.path] for unit in self.order]
        stream.plan, stream.ahead, stream.scales = self.plan, self.ahead, self.scales
        stream.widest, stream.waited, stream.pass_seconds = (
            self.widest,
            self.waited,
            self.pass_seconds,
        )
        stream.buffers.limit = self.buffers.limit
        return stream

    def close(self) -> None:
        """Drop every weight, remove the hooks and stop the threads."""
        self.release()
        self._detach()
        for slot in self.stacks:
            slot.module.__dict__.pop(slot.attribute, None)
        self.model.__dict__.pop("_rksp_stream", None)
        for pool in (self._pool, self.products):
            pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._threads)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bytes_of(output: object) -> int:
    tensor = first_tensor(output)
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
