"""The weights of a stream: drawn by their recipes or read, begun ahead of use, noted as they pass.

They are drawn whole or in part, with the same bits in any order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rksp.ground.errors import InputError
from rksp.models.checkpoint import check_finite, find_weights
from rksp.models.streaming.recording import (
    PIECE,
    Filling,
    Step,
    piece_seed,
    put_parameters,
    record_model,
)
from rksp.models.streaming.units import Read, Slot, Unit, hollow, run_all

Job = Callable[[], object]


class Weights(Protocol):
    """The source of a streamed model's weights."""

    def jobs(self, name: str, out: Tensor, start: int | None = None) -> list[Job]:
        """Return the jobs that fill `out` with a weight; they may run in any order.

        With `start`, `out` is as many entries of the weight's first dimension from there on.
        """
        ...

    def can_slice(self, name: str) -> bool:
        """Tell whether a part is cheaper than the whole."""
        ...

    def __contains__(self, name: str) -> bool: ...


class InitialWeights:
    """A random initialization, drawn on demand.

    Args:
        recipes: Fillings by name, from `record`.
        seed: Seed of the initialization.
    """

    def __init__(self, recipes: dict[str, Filling], seed: int) -> None:
        self.recipes, self.seed = recipes, seed

    def __contains__(self, name: str) -> bool:
        return name in self.recipes

    def can_slice(self, name: str) -> bool:
        """Tell whether any part of a weight can be drawn alone."""
        return all(step.is_entrywise for step in self.recipes[name].steps)

    def jobs(self, name: str, out: Tensor, start: int | None = None) -> list[Job]:
        """Return the jobs that fill `out` with a weight or some rows of it, one per piece."""
        recipe = self.recipes[name]
        if start is None and not self.can_slice(name):
            return [partial(self._replay, recipe, out)]
        first = (start or 0) * math.prod(recipe.shape[1:])
        numbers = range(first // PIECE, -(-(first + out.numel()) // PIECE))
        return [partial(self._piece, recipe, out.view(-1), first, n) for n in numbers]

    @torch.no_grad()
    def _piece(self, recipe: Filling, flat: Tensor, start: int, number: int) -> None:
        low, high = number * PIECE, min((number + 1) * PIECE, recipe.numel)
        inside = max(low, start), min(high, start + flat.numel())
        here = flat[inside[0] - start : inside[1] - start]
        # Only whole pieces can be drawn; part of a piece is drawn into another tensor and cut.
        piece = here if inside == (low, high) else flat.new_empty(high - low)
        for step in recipe.steps:
            _apply(step, piece, self.seed, step.first + number)
        if piece is not here:
            here.copy_(piece[inside[0] - low : inside[1] - low])

    @torch.no_grad()
    def _replay(self, recipe: Filling, out: Tensor) -> None:
        for step in recipe.steps:
            if step.view is None and step.pieces > 1:
                flat = out.view(-1)
                for number in range(step.pieces):
                    part = flat[number * PIECE : (number + 1) * PIECE]
                    _apply(step, part, self.seed, step.first + number)
            else:
                view = out if step.view is None else out.as_strided(*step.view)
                _apply(step, view, self.seed, step.first)


def _apply(step: Step, target: Tensor, seed: int, number: int) -> None:
    kwargs = step.kwargs
    if step.pieces:
        generator = torch.Generator(target.device).manual_seed(piece_seed(seed, number))
        kwargs = {**kwargs, "generator": generator}
    method = getattr(target, step.operation, None) or partial(
        getattr(nn.init, step.operation), target
    )
    method(*step.args, **kwargs)


def fill(weights: Weights, name: str, like: Tensor) -> Tensor:
    """Return one whole weight in a new CPU tensor of the shape and dtype of `like`."""
    out = torch.empty(like.shape, dtype=like.dtype)
    for job in weights.jobs(name, out):
        job()
    return out


def build_whole(construct: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build the model in memory with the same bits as streaming.

    Args:
        construct: Builds a transformers model; called once.
        seed: Seed of the initialization.

    Returns:
        The model.

    Raises:
        NotCovered: As in `rksp.models.streaming.recording.record`.
    """
    model, recipes = record_model(construct, seed)
    weights = InitialWeights(recipes, seed)
    filled: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        value = fill(weights, name, parameter)
        filled[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
    put_parameters(model, filled)
    fill_buffers(model, weights)
    return model


def fill_buffers(model: nn.Module, weights: Weights) -> None:
    """Fill the buffers that a checkpoint holds, or that were too large for the skeleton."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            full = f"{path}.{name}" if path else name
            if buffer is not None and full in weights:
                module._buffers[name] = fill(weights, full, buffer)


@dataclass(slots=True)
class _Source:
    converter: Any | None = None
    first: str = ""  # the first weight that the converter yields; it names the others after it
    keys: dict[str, list[str]] = field(default_factory=dict)


class CheckpointWeights:
    """The weights of a checkpoint folder.

    Args:
        folder: Folder of safetensors files, with their index if there are several.
        model: A skeleton of the model.

    Raises:
        InputError: A file is missing or damaged, or a weight is missing; the message names it.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder = folder
        self._model = model
        self._handles: dict[Path, Any] = {}
        self._places: dict[str, Path] = {}
        for file in find_weights(folder):
            self._handles[file] = safe_open(file, framework="pt")
            self._places |= dict.fromkeys(self._handles[file].keys(), file)
        self._sources = _sources(model, sorted(self._places, key=_natural))
        self._use_other_names()

    def _use_other_names(self) -> None:
        """Find shared weights, which may be stored under any of their names; check the others."""
        names: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        for first, *others in names.values():
            stored = next((name for name in (first, *others) if name in self._sources), None)
            if stored is None:
                raise InputError(f"The weights in {self.folder} lack {first}.")
            self._sources[first] = self._sources[stored]

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def can_slice(self, name: str) -> bool:
        """Tell whether parts of a weight can be read alone."""
        source = self._sources[name]
        count = self._model.get_parameter(name).shape[0]
        if source.converter is None:
            return True
        kinds = {type(operation).__name__ for operation in source.converter.operations}
        return kinds <= {"MergeModulelist", "Concatenate"} and all(
            len(keys) == count for keys in source.keys.values()
        )

    def jobs(self, name: str, out: Tensor, start: int | None = None) -> list[Job]:
        """Return the one job that fills a tensor with a weight, or with some rows of it."""
        rows = None if start is None else slice(start, start + len(out))
        return [lambda: self._fill(name, out, self._value(name, rows))]

    @torch.no_grad()
    def _fill(self, name: str, out: Tensor, value: Tensor) -> None:
        if value.shape != out.shape:
            raise InputError(f"The weights in {self.folder} have another shape for {name}.")
        out.copy_(value)
        check_finite({name: out}, str(self.folder))

    def _value(self, name: str, rows: slice | None = None) -> Tensor:
        source = self._sources[name]
        if source.converter is None:
            return self._read(source.first, rows)
        converter = copy.deepcopy(source.converter)
        for pattern, keys in source.keys.items():
            for key in keys[rows or slice(None)]:
                converter.add_tensor(source.first, pattern, pattern, self._read(key))
        found = converter.convert(source.first, model=self._model, config=self._model.config)
        value: Tensor | list[Tensor] = found[name]
        return value[0] if isinstance(value, list) else value

    def _read(self, key: str, rows: slice | None = None) -> Tensor:
        file = self._places[key]
        try:
            handle = self._handles[file]
            got: Tensor = handle.get_tensor(key) if rows is None else handle.get_slice(key)[rows]
            return got
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read at {key} ({error}); copy it again.") from error


def _sources(model: Any, keys: list[str]) -> dict[str, _Source]:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {p: converter for converter in converters for p in converter.source_patterns}
    prefix, wanted = model.base_model_prefix, model.state_dict()
    found: dict[str, _Source] = {}
    for key in keys:
        name, pattern = rename_source_key(key, renamings, converters, prefix, wanted)
        if name not in wanted and key in wanted:
            name, pattern = rename_source_key(key, [], [], prefix, wanted)
        if name not in wanted:
            continue  # a head that this model does not have
        if pattern is None:
            found.setdefault(name, _Source(first=key))
            continue
        converter = by_pattern[pattern]
        source = found.setdefault(name, _Source(converter=converter, first=name))
        source.keys.setdefault(pattern, []).append(key)
        for target in converter.target_patterns[1:]:
            found.setdefault(name.replace(converter.target_patterns[0], target), source)
    return found


def _natural(key: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `experts.2` before `experts.10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]


_CHUNK = 1 << 20  # entries summed in float32 at once: a relative error of 1e-6


class Loading:
    """Tensors by name, which jobs in a pool fill.

    Args:
        weights: Where they come from.
        shapes: Objects with the shape and dtype of each tensor, by name.
        pool: Runs the jobs.
        start: As in `Weights.jobs`.
    """

    def __init__(
        self,
        weights: Weights,
        shapes: Mapping[str, Tensor],
        pool: Executor,
        start: int | None = None,
    ) -> None:
        self._tensors = {n: torch.empty_like(like, device="cpu") for n, like in shapes.items()}
        jobs = [
            job for n, tensor in self._tensors.items() for job in weights.jobs(n, tensor, start)
        ]
        self._futures = [pool.submit(job) for job in jobs]

    def wait(self) -> dict[str, Tensor]:
        """Return the filled tensors; raise the error of a failed job."""
        for future in self._futures:
            future.result()
        return self._tensors

    def drop(self) -> None:
        """Cancel the jobs that have not started."""
        for future in self._futures:
            future.cancel()


class Scales:
    """Root mean squares of the matrices that a pass has loaded.

    For an embedding that is never whole, only the neighborhood of looked-up rows counts.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, tuple[float, int]]] = {}

    def note(self, name: str, start: int, part: Tensor, pool: ThreadPoolExecutor) -> None:
        """Add the rows of a weight from `start` on; each range counts once."""
        if part.dim() == 2 and part.is_floating_point():
            ranges = self._sums.setdefault(name, {})
            if start not in ranges:
                ranges[start] = square_sum(part, pool), part.numel()

    def rms(self, name: str) -> float | None:
        """Return the RMS of the entries seen; None if none were."""
        ranges = self._sums.get(name)
        if not ranges:
            return None
        return math.sqrt(sum(s for s, _ in ranges.values()) / sum(n for _, n in ranges.values()))


def root_mean_square(weight: Tensor) -> float:
    """Compute the RMS of all entries of a weight."""
    return math.sqrt(square_sum(weight.detach()) / weight.numel())


def as_real(values: Tensor) -> Tensor:
    """View a complex tensor as pairs of real numbers, as torch's optimizers do; others as is."""
    return torch.view_as_real(values) if values.is_complex() else values


@torch.no_grad()
def square_sum(weight: Tensor, pool: ThreadPoolExecutor | None = None) -> float:
    """Compute the sum of squares; it is the same for any number of threads."""
    flat = as_real(weight).reshape(-1)
    edges = pairwise([*range(0, len(flat), _CHUNK), len(flat)])

    def part(start: int, stop: int) -> float:
        values = flat[start:stop].float()
        return float(values.dot(values))

    jobs = [partial(part, *ends) for ends in edges]
    return sum([job() for job in jobs] if pool is None else run_all(pool, jobs))


class Supply:
    """Gives units their weights, in the order that a rehearsal found.

    Args:
        weights: Where the weights come from.
        workers: Threads that prepare weights, and as many for products.

    Attributes:
        order: Units as they are used in a pass.
        ahead: Bytes that may be prepared ahead of use.
        held: Units whose modules hold their weights now.
        is_hollow: Weights have no memory, as in a rehearsal.
        scales: Facts of the weights that have passed by.
        products: Threads that multiply.
        loads: Threads that prepare weights.
    """

    products: ThreadPoolExecutor
    loads: ThreadPoolExecutor

    def __init__(self, weights: Weights, workers: int) -> None:
        self.weights, self.workers = weights, workers
        self.order: list[Unit] = []
        self.ahead = 0
        self.held: list[Unit] = []
        self.is_hollow = False
        self.scales = Scales()
        self._coming: dict[Unit, Loading] = {}
        self._place = 0

    def open(self) -> None:
        """Start the threads."""
        self.products = ThreadPoolExecutor(self.workers, "rksp-products")
        self.loads = ThreadPoolExecutor(self.workers, "rksp-weights")

    def fetch(self, unit: Unit) -> dict[str, Tensor]:
        """Return the weights of a unit; start loading those of the units after it."""
        loading = self._coming.pop(unit, None) or self._load(unit.slots)
        self._advance(unit)
        tensors = loading.wait()
        for name, tensor in tensors.items():
            self.scales.note(name, 0, tensor, self.products)
        return tensors

    def begin(self, slot: Slot) -> Callable[[], Tensor]:
        """Start to load one whole weight; return the function that waits for it."""
        loading = self._load([slot])
        return lambda: loading.wait()[slot.name]

    def read(self, slot: Slot) -> Read:
        """Return the function that loads parts of a slot's weight."""

        def read(start: int, stop: int) -> Callable[[], Tensor]:
            shape = (stop - start, *slot.empty.shape[1:])
            if self.is_hollow:  # an expert, because tall weights are never read in rehearsal
                shape = shape[1:]
            like = torch.empty(shape, dtype=slot.empty.dtype, device="meta")
            if self.is_hollow:
                return lambda: hollow(like).unsqueeze(0)
            loading = Loading(self.weights, {slot.name: like}, self.loads, start)

            def wait() -> Tensor:
                part = loading.wait()[slot.name]
                self.scales.note(slot.name, start, part, self.products)
                return part

            return wait

        return read

    def _load(self, slots: Sequence[Slot]) -> Loading:
        return Loading(self.weights, {slot.name: slot.empty for slot in slots}, self.loads)

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
            if coming not in self._coming and coming not in self.held:
                self._coming[coming] = self._load(coming.slots)

    def rest(self) -> None:
        """Drop what was prepared; the next pass starts anew."""
        for loading in self._coming.values():
            loading.drop()
        self._coming.clear()
        self._place = 0

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self.loads, self.products):
            pool.shutdown(wait=True, cancel_futures=True)
