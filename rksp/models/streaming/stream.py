"""Run passes whose weights are loaded just before their use and dropped right after.

A rehearsal without weights finds how a model can be streamed, and what that takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, cast

import torch
from torch import Tensor, nn

from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.kernels.wide_output import UnmadeOutputs
from rksp.models.anatomy.chains import Chain, find_chains, first_tensor
from rksp.models.configuration import refusals, refused
from rksp.models.source import ModelSource
from rksp.models.streaming.memory import ACTIVATIONS, free_memory, readable, resident_memory
from rksp.models.streaming.recording import make_skeleton, record_model, share_weights
from rksp.models.streaming.units import (
    GRAINS,
    Begin,
    Experts,
    Grain,
    HollowProducts,
    Result,
    Rows,
    Slot,
    SplitProducts,
    Unit,
    bytes_of,
    hollow,
    is_stack,
    is_tall,
    slice_size,
    slots_of,
    units_of,
)
from rksp.models.streaming.weights import (
    CheckpointWeights,
    InitialWeights,
    Supply,
    Weights,
    fill_buffers,
)

AHEAD = 256 * 2**20  # bytes prepared while a unit computes, unless one unit is larger
_PER_STATE = 40  # bytes per entry of a block's states while its spectrum is fitted
_SCRATCH = 12  # outputs of the widest module that statistics take and the allocator keeps, ...
_MOST_SCRATCH = 400 * 10**6  # ... but no more bytes: larger blocks go back to the system
_OVERHEAD = 50 * 10**6  # bytes for threads and BLAS buffers; a tenth is lost between allocations
# What a forward pass keeps for the backward pass, as a share of the inputs and outputs of all
# products (1.13 of Llama). The factors of all gradients are 0.9 to 1.03 of these.
_GRAPH = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a pass takes, in bytes.

    Attributes:
        peak: Predicted peak of the process; the estimate is high rather than low.
        weights: The largest sum of weights in use and in preparation.
        ahead: Weights to prepare ahead of use.
    """

    peak: int
    weights: int
    ahead: int


class Stream:
    """Hooks on a skeleton that give its modules their weights only while they run.

    A rehearsal with weights that have no memory finds the order of the modules. It also finds
    whether a module's weights are used only while it runs; if not, whole blocks are loaded. Use the
    stream as a context manager: leaving it drops every weight and stops the threads, and what the
    rehearsal found is there when it is entered again. torch gets one thread and large products are
    split here, because the result must not depend on the number of threads.

    Args:
        model: A skeleton; its buffers have values.
        weights: The source of the weights.
        workers: Threads that prepare weights, and as many that multiply by them; the result does
            not depend on their number.
        ahead: Bytes prepared ahead of use; 0 prepares nothing ahead. Default the larger of a
            quarter of a gigabyte and the largest unit of a block, or less if memory is short.
        max_memory: Bytes; a pass that needs more is refused after its rehearsal.
        target: Name of the model in messages.
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
    ) -> None:
        self.model, self.weights, self.workers = model, weights, workers
        self.max_memory, self.target = max_memory, target
        self.plan: MemoryPlan | None = None  # of the pass that was rehearsed
        self.gradient_batch: Batch | None = None  # of a gradient that is to follow the pass
        self.slots = slots_of(model)
        self.empty = {slot.name: slot.empty for slot in self.slots}  # without memory, by name
        can_slice = [slot for slot in self.slots if weights.can_slice(slot.name)]
        self.stacks = tuple(slot for slot in can_slice if is_stack(slot))
        self.tall = tuple(slot for slot in can_slice if is_tall(slot))
        self.asked_ahead = ahead
        self.supply = Supply(weights, workers)
        self.supply.ahead = ahead or 0
        self.widest = self.logits = 0
        self._done: list[Unit] = []
        self._experts: list[Experts] = []
        self._hooks = ExitStack()
        self._tape: Any = None  # a `gradients.Tape`, whose module imports this one
        self._threads: int | None = None  # of torch, before the stream was entered
        self.split_flops = 0  # FLOP of products split over threads
        if self.stacks and hasattr(model, "set_experts_implementation"):
            cast(Any, model).set_experts_implementation("eager")  # it reads experts one by one
        self.divide("module")

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return bytes_of(self.slots)

    def shape(self, name: str, index: int | None) -> tuple[int, ...]:
        """Return the shape of a weight, or of one expert of a stack."""
        shape = tuple(self.empty[name].shape)
        return shape if index is None else shape[1:]

    def describe(self) -> str:
        """Describe how the weights were held; the phrase does not depend on the threads."""
        experts = ", experts one by one" if self.stacks else ""
        tall = ", large matrices by rows" if self.tall else ""
        return f"streamed {GRAINS[self.grain]}{experts}{tall}"

    def divide(self, grain: Grain) -> None:
        """Load the weights of each module that holds some together, or those of whole blocks."""
        sliced = {*self.stacks, *self.tall}
        whole = [slot for slot in self.slots if slot not in sliced]
        self.grain, self.units = grain, units_of(self.model, whole, grain)
        self._hooks.close()
        if self._threads is not None:
            self._attach()

    def _attach(self) -> None:
        for unit in self.units:
            before = unit.module.register_forward_pre_hook(partial(self._enter, unit))
            after = unit.module.register_forward_hook(partial(self._leave, unit))
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)
        last = self.model.register_forward_hook(lambda *_: self.release())
        self._hooks.callback(last.remove)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Split products with large weights over as many threads as prepare weights."""
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

    def _enter(self, unit: Unit, *_: object) -> None:
        self._retire()
        if self.supply.is_hollow:
            self.supply.order.append(unit)
            tensors: Mapping[str, Tensor] = {slot.name: hollow(slot.empty) for slot in unit.slots}
        else:
            tensors = self.supply.fetch(unit)
        for slot in unit.slots:
            if self._tape is not None:
                weight = self._tape.lend(slot, tensors[slot.name])
            else:
                # A weight requires a gradient as it does in memory: torch chooses by this between
                # products that round differently, even if no gradient is taken. If one is taken,
                # the graph would keep every weight.
                is_asked = slot.empty.requires_grad and not torch.is_grad_enabled()
                weight = nn.Parameter(tensors[slot.name], requires_grad=is_asked)
            slot.module._parameters[slot.attribute] = weight
        self.supply.held.append(unit)

    @contextmanager
    def visited_by(self, tape: object) -> Iterator[None]:
        """Let a tape give modules their weights inside."""
        self.release()
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None
            self.release()

    def _give_expert(self, slot: Slot, index: int, begin: Begin) -> Tensor | None:
        return None if self._tape is None else self._tape.expert(slot, index, begin)

    def _leave(self, unit: Unit, module: nn.Module, args: object, output: object) -> None:
        if self.supply.is_hollow and module is not self.model:
            tensor = first_tensor(output)
            size = 0 if tensor is None else tensor.nbytes
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

    def release(self) -> None:
        """Drop every weight and everything prepared ahead."""
        self._done = list(dict.fromkeys(self._done + self.supply.held))
        self._retire()
        for experts in self._experts:
            experts.forget()
        self.supply.rest()

    def __enter__(self) -> Stream:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.supply.open()
        for slot in self.stacks:
            read = self.supply.read(slot)
            experts = Experts(slot, read, self._give_expert, lambda: bool(self.supply.ahead))
            # In the instance's dictionary it hides the parameter, which stays registered.
            slot.module.__dict__[slot.attribute] = experts
            self._experts.append(experts)
        cast(Any, self.model)._rksp_stream = self
        self._attach()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
        self._hooks.close()
        self._experts.clear()
        for slot in self.stacks:
            slot.module.__dict__.pop(slot.attribute, None)
        self.model.__dict__.pop("_rksp_stream", None)
        self.supply.close()
        torch.set_num_threads(definite(self._threads))
        self._threads = None


def _plan(stream: Stream, sequences: int, entries: int) -> MemoryPlan:
    """Predict the peak of a pass, after a rehearsal; if memory is short, less is prepared ahead."""
    inner = max((unit.size for unit in stream.units if unit.is_in_list), default=0)
    wished = max(AHEAD, inner) if stream.asked_ahead is None else stream.asked_ahead
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    order = stream.supply.order
    widest, logits = stream.widest * sequences, stream.logits * sequences
    always = sum(unit.size for unit in order if not unit.path) + 2 * _slice_size(stream)
    activations = ACTIVATIONS * widest + min(_SCRATCH * widest, _MOST_SCRATCH) + 3 * logits // 2
    spectra = _PER_STATE * entries * (stream.workers + 1)
    for ahead in (wished, inner, wished // 4, 0):
        weights = _held(order, ahead) + always
        peak = resident_memory() + _OVERHEAD + int(1.1 * (weights + activations + spectra))
        if peak <= limit:
            return MemoryPlan(peak=peak, weights=weights, ahead=ahead)
    raise InputError(
        f"{stream.target} needs {readable(peak)} of memory even when streamed "
        f"({readable(weights)} of it weights), more than {readable(limit)}; "
        f"give --max-memory {math.ceil(peak / 1e6)}MB if there is as much, use fewer "
        "threads or --snapshots, or build nothing: --evidence config."
    )


def _held(order: Sequence[Unit], ahead: int) -> int:
    """Return the bytes of the largest unit with those after it that are prepared meanwhile."""
    held = 0
    for place, unit in enumerate(order):
        sizes = accumulate(coming.size for coming in order[place + 1 :])
        held = max(held, unit.size + max(takewhile(lambda size: size <= ahead, sizes), default=0))
    return held


def gradient_peak(stream: Stream, same: Batch) -> int:
    """Predict the bytes of a rehearsed stream's gradient, which keeps the states around weights."""
    config, tokens = getattr(stream.model, "config", None), definite(same.labels).numel()
    chosen = getattr(config, "num_experts_per_tok", None) or 2
    kept = 0
    for slot in {slot.name: slot for slot in stream.slots}.values():
        shape = slot.empty.shape
        if len(shape) == 2 and not isinstance(slot.module, nn.Embedding):
            kept += tokens * sum(shape)
        elif len(shape) == 3 and slot in stream.stacks:
            kept += tokens * min(chosen, shape[0]) * sum(shape[1:])
        elif len(shape) > 2:
            kept += slot.empty.numel()
    logits = 4 * 3 * tokens * (getattr(config, "vocab_size", None) or 0)
    weights = 2 * definite(stream.plan).weights  # what multiplies takes as much again
    return resident_memory() + _OVERHEAD + int(1.1 * (weights + logits + _GRAPH * 4 * kept))


def check_gradient(stream: Stream, same: Batch) -> None:
    """Refuse the gradient of a batch that will not fit, before the pass that precedes it.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    peak, passes = gradient_peak(stream, same), definite(stream.plan).peak
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    if peak > limit:
        raise InputError(
            f"The gradient of {stream.target} needs {readable(peak)} of memory even when streamed, "
            f"more than {readable(limit)}; --evidence forward needs {readable(passes)} and fits, "
            f"or give --max-memory {math.ceil(peak / 1e6)}MB if there is as much."
        )


def _slice_size(stream: Stream) -> int:
    """Return the bytes that are loaded at a time of the weights that are not loaded whole."""
    together: dict[nn.Module, int] = {}  # both stacks of a module are in use at once
    for slot in stream.stacks:
        together[slot.module] = together.get(slot.module, 0) + slice_size(slot)
    return max((*together.values(), *map(slice_size, stream.tall)), default=0)


def rehearse(
    stream: Stream, run: Callable[[], Result], *, sequences: int = 1, entries: int = 0
) -> Result:
    """Call `run` in a rehearsal, with the finest grain that the model supports.

    Args:
        stream: Not begun yet.
        run: Runs the model on one sequence.
        sequences: Number of sequences of the pass that will follow.
        entries: States times width of that pass.

    Returns:
        The result of `run`.

    Raises:
        InputError: The pass would not fit in memory, or the gradient that is to follow it.
        NotCovered: The model uses weights outside of the modules that hold them.
    """
    failure: Exception | None = None
    for _ in _attempts(stream):
        try:
            with stream.rehearsal():
                result = run()
            break
        except NotCovered:
            raise
        except (InputError, RuntimeError, NotImplementedError, TypeError) as error:
            failure = failure or error
    else:
        text = " ".join(str(failure).split())[:200]
        raise NotCovered(
            f"{type(stream.model).__name__} cannot be streamed: it uses weights outside of the "
            f"modules that hold them ({text}); use --stream never."
        ) from failure
    stream.plan = _plan(stream, sequences, entries)
    stream.supply.ahead = stream.plan.ahead
    if stream.gradient_batch is not None:
        check_gradient(stream, stream.gradient_batch)
    return result


def _attempts(stream: Stream) -> Iterator[None]:
    """Try coarser and coarser grains: matrices by rows, whole, by block, the rest at once."""
    stream.divide("module")
    yield
    stream.tall = ()
    for grain in GRAINS:
        stream.divide(grain)
        yield


def locate_chains(
    model: nn.Module, run: Callable[[], object], path: str | None, sequences: int, states: int
) -> tuple[Chain, ...]:
    """Find the chains as `find_chains` does; a streamed model is rehearsed for it.

    Args:
        model: The model.
        run: Runs the model on one sequence.
        path: As in `find_chains`.
        sequences: Number of sequences of the pass that will follow, to predict its memory.
        states: Number of states of that pass.

    Returns:
        The chains.
    """
    stream: Stream | None = getattr(model, "_rksp_stream", None)
    if stream is None:
        return find_chains(model, run, path=path)
    width = getattr(getattr(model, "config", None), "hidden_size", 0)
    find = partial(find_chains, model, run, path=path)
    return rehearse(stream, find, sequences=sequences, entries=states * int(width or 0))


def computing(model: nn.Module) -> AbstractContextManager[object]:
    """Return the context for a pass: what computes large products, streamed or in memory."""
    stream: Stream | None = getattr(model, "_rksp_stream", None)
    return UnmadeOutputs() if stream is None else stream.computing()


def open_stream(
    source: ModelSource,
    seed: int | None = None,
    *,
    workers: int = 1,
    max_memory: int | None = None,
) -> Stream:
    """Open a model whose weights are loaded while it runs; use it as a context manager.

    Args:
        source: A source of a transformers model.
        seed: Seed of the random initialization, default the source's own; a checkpoint ignores it.
        workers: Threads that prepare weights; the result does not depend on their number.
        max_memory: Bytes; a pass that needs more is refused before it starts. Default the free
            memory.

    Returns:
        The stream.

    Raises:
        NotCovered: The model's weights cannot be drawn one by one.
        InputError: The configuration is inconsistent, or a file of the checkpoint is missing or
            damaged.
    """
    seed = source.seed if seed is None else seed
    try:
        if source.start.is_stored:
            model, _ = make_skeleton(definite(source.construct_empty), seed)
            share_weights(model)
            weights: Weights = CheckpointWeights(definite(source.folder), model)
        else:
            model, recipes = record_model(definite(source.construct_empty), seed)
            weights = InitialWeights(recipes, seed)
        fill_buffers(model, weights)
    except refusals() as error:
        raise refused(source.target, error) from error
    return Stream(model, weights, workers=workers, max_memory=max_memory, target=source.target)
