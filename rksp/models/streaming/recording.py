"""Record what a model's own `_init_weights` does to each weight, without any weight in memory.

The calls run over the skeleton, children before parents, in the order of transformers. An operation
on a parameter costs nothing on the meta device and is recorded. Intermediate values (Mamba's time
steps, for example) are small and real; their seed is that of the module's path. The record can then
be replayed for any part of any weight, in any order, on any number of threads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.models.configuration import refusals

_LARGE = 1 << 20  # entries; larger tensors are created on the meta device
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


class _SmallOnly(TorchFunctionMode):
    """Creates large tensors without storage, and fills empty small ones with NaN."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") in (None, "cpu", torch.device("cpu")):
            if _entries(func, args, kwargs) >= _LARGE:
                return func(*args, **kwargs | {"device": "meta"})
            made = func(*args, **kwargs)
            if func is torch.empty and made.is_floating_point():
                made.fill_(math.nan)
            return made
        return func(*args, **kwargs)


def _entries(func: object, args: Any, kwargs: dict[str, Any]) -> int:
    size = kwargs.get("size", args[:1] if func is torch.full else args)
    if len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    return math.prod(int(length) for length in size)


def make_skeleton(make: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Run a constructor without allocating the weights.

    The values that the constructor computes (rotary frequencies, masks) are computed; its draws
    follow the seed. Weights that the constructor shares are shared. Weights that `tie_weights`
    would share are not shared yet, because transformers initializes each before it ties them. The
    state of the global generator is unchanged.

    Args:
        make: Builds a transformers model; called once.
        seed: Seed of the constructor's draws.

    Returns:
        The model with its parameters on the meta device, and the values that the constructor itself
        gave to small parameters, by name.
    """
    from transformers.initialization import no_init_weights

    with torch.random.fork_rng(devices=[]), no_init_weights(), _SmallOnly(), torch.no_grad():
        torch.manual_seed(seed_of(seed, "constructor"))
        model = make()
    given: dict[str, Tensor] = {}
    empty: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if not value.is_meta and not (value.is_floating_point() and value.isnan().any()):
            given[name] = value
        empty[id(parameter)] = nn.Parameter(
            torch.empty_like(value, device="meta"), requires_grad=parameter.requires_grad
        )
    put_parameters(model, empty)
    return model.eval(), given


def put_parameters(model: nn.Module, values: dict[int, nn.Parameter]) -> None:
    """Replace parameters, wherever they occur, by those under their identities."""
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                module._parameters[name] = values.get(id(held), held)


def share_weights(model: nn.Module) -> None:
    """Tie the weights that the configuration ties, such as the output layer to the embedding."""
    if hasattr(model, "tie_weights"):
        cast(Any, model).tie_weights()


# Replayed as a whole, because they depend on values or mix entries.
_WHOLE = ("trunc_normal_", "orthogonal_", "sparse_", "dirac_", "eye_")
_SMALL = 1 << 20  # most entries of a weight that may be real during recording
_RANDOM = frozenset({"normal_", "uniform_", "trunc_normal_", "orthogonal_", "sparse_"})
_BY_PIECE = frozenset({"normal_", "uniform_", "trunc_normal_"})
_OVERWRITING = frozenset({"normal_", "uniform_", "zero_", "fill_", "copy_", *_WHOLE})
# Operations on single entries, so that a part can be done alone.
_ENTRYWISE = frozenset(
    {"zero_", "fill_", "mul_", "add_", "sub_", "div_", "clamp_", "erfinv_", "exp_", "log_", "neg_"}
    | _BY_PIECE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One in-place operation.

    Attributes:
        operation: Name of the tensor method, or of the function of `torch.nn.init`.
        args: Its further positional arguments: numbers, or small real tensors.
        kwargs: Its further keyword arguments, likewise.
        view: (size, stride, offset) of the part it works on; None for the whole weight.
        first: Number, within the model, of its first random piece.
        pieces: Number of random pieces it draws.
    """

    operation: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    first: int = 0
    pieces: int = 0

    @property
    def is_entrywise(self) -> bool:
        """Whether the operation can be applied to a part of the weight alone."""
        tensors = [a for a in (*self.args, *self.kwargs.values()) if isinstance(a, Tensor)]
        return (
            self.view is None
            and self.operation in _ENTRYWISE
            and all(tensor.dim() == 0 for tensor in tensors)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How one weight is filled: its steps in order; the first writes the whole weight."""

    shape: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class _Notebook(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped
    """Records every in-place operation on the weights; other operations run."""

    def __init__(self, names: dict[int, str], shapes: dict[str, torch.Size]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        self.names, self.shapes = names, shapes
        self.steps: dict[str, list[Step]] = {name: [] for name in shapes}
        self.unclear: dict[str, str] = {}
        # Results such as weight / 2, which some models copy back into the weight.
        self.derived: dict[int, tuple[Tensor, str, list[Step]]] = {}

    def name_of(self, tensor: object) -> str | None:
        if not isinstance(tensor, Tensor) or not tensor.is_meta:
            return None
        return self.names.get(tensor.untyped_storage()._cdata)

    def note(
        self, tensor: Tensor, operation: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        name = definite(self.name_of(tensor))
        values = (*args, *kwargs.values())
        is_whole = tensor.shape == self.shapes[name] and tensor.is_contiguous()
        if any(isinstance(value, Tensor) and value.is_meta for value in values):
            first = args[0] if args else None
            key = first.untyped_storage()._cdata if isinstance(first, Tensor) else -1
            source = self.derived.get(key)
            if operation == "copy_" and is_whole and source is not None and source[1] == name:
                self.steps[name] = list(source[2])
            else:
                self.unclear[name] = f"{operation} from other weights"
            return
        view = None
        if not is_whole:
            view = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        held = tuple(v.clone() if isinstance(v, Tensor) else v for v in args)
        step = Step(operation=operation, args=held, kwargs=kwargs, view=view)
        if is_whole and operation in _OVERWRITING:
            self.steps[name].clear()  # it overwrites all earlier steps
            self.unclear.pop(name, None)
        self.steps[name].append(step)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value, argument in zip(args, func._schema.arguments, strict=False):
            alias = argument.alias_info
            name = self.name_of(value)
            if alias is None or not alias.is_write or name is None:
                continue
            operation = func._schema.name.removeprefix("aten::")
            if value is not args[0] or not operation.endswith("_"):
                self.unclear[name] = operation
            else:
                kept = {k: v for k, v in kwargs.items() if k != "generator"}
                self.note(value, operation, args[1:], kept)
        result = func(*args, **kwargs)
        self.derive(func, args, kwargs, result)
        return result

    def derive(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow a weight multiplied, divided, increased or decreased by a number."""
        operation = func._schema.name.removeprefix("aten::")
        name = self.name_of(args[0]) if args else None
        if operation not in ("mul", "div", "add", "sub") or name is None:
            return
        number = args[1] if len(args) == 2 and not kwargs else None
        if isinstance(number, int | float) and args[0].shape == self.shapes[name]:
            step = Step(operation=f"{operation}_", args=(number,), kwargs={}, view=None)
            key = result.untyped_storage()._cdata
            self.derived[key] = (result, name, [*self.steps[name], step])


@contextmanager
def _functions_noted(notebook: _Notebook) -> Iterator[None]:
    """Record whole functions of `torch.nn.init` that need values to be followed."""
    from transformers import initialization

    table: Any = initialization.TORCH_INIT_FUNCTIONS
    originals = {name: table[name] for name in _WHOLE if name in table}

    def noted(operation: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(tensor: Tensor, *args: object, **kwargs: object) -> Tensor:
            if notebook.name_of(tensor) is None:
                return original(tensor, *args, **kwargs)
            kept = {k: v for k, v in kwargs.items() if k != "generator"}
            notebook.note(tensor, operation, args, kept)
            return tensor

        return call

    try:
        for name, original in originals.items():
            table[name] = noted(name, original)
        with initialization.guard_torch_init_functions(), notebook:
            yield
    finally:
        table.update(originals)


def record_model(
    construct: Callable[[], nn.Module], seed: int
) -> tuple[nn.Module, dict[str, Filling]]:
    """Make a skeleton with its weights shared correctly, and the recipe of every weight.

    Args:
        construct: Builds a transformers model; called once.
        seed: Seed of the initialization.

    Returns:
        The skeleton, and the fillings by name.

    Raises:
        NotCovered: As in `record`.
    """
    model, given = make_skeleton(construct, seed)
    recipes = record(model, given, seed)
    share_weights(model)
    kept = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return model, {name: recipe for name, recipe in recipes.items() if name in kept}


def record(model: nn.Module, given: dict[str, Tensor], seed: int) -> dict[str, Filling]:
    """Record the recipe of every parameter, and of every buffer that has no value yet.

    Args:
        model: A skeleton from `make_skeleton`; its small buffers get their values here.
        given: Values that its constructor gave to parameters, for those that `_init_weights` skips.
        seed: Seed of intermediate values.

    Returns:
        The fillings by name.

    Raises:
        NotCovered: The model has no `_init_weights`, leaves a weight without value, or computes one
            weight from another.
    """
    notebook, real = _note_all(model, seed, {})
    if lacking := _lacking(notebook, given):
        # Some initializers compute on the device of the weight, or from its values.
        small = {name: shape for name, shape in lacking.items() if shape.numel() <= _SMALL}
        notebook, real = _note_all(model, seed, small)
        given = given | real
        lacking = _lacking(notebook, given)
        lacking |= {name: value.shape for name, value in real.items() if value.isnan().any()}
        if lacking:
            raise NotCovered(
                f"{type(model).__name__} does not initialize {next(iter(lacking))} independently "
                "of the other weights; use --stream never."
            )
    recipes: dict[str, Filling] = {}
    number = 0
    for name, tensor in _empty(model).items():
        steps = notebook.steps.get(name, [])
        if not _is_filled(steps):
            steps = [Step(operation="copy_", args=(given[name],), kwargs={}, view=None), *steps]
        numbered = []
        for step in steps:
            pieces = _pieces(step, tensor.numel())
            numbered.append(replace(step, first=number, pieces=pieces))
            number += pieces
        recipes[name] = Filling(shape=tuple(tensor.shape), steps=tuple(numbered))
    return recipes


def _empty(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors without values yet: parameters, and buffers too large to build."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_meta}
    return dict(model.named_parameters()) | buffers


def _note_all(
    model: nn.Module, seed: int, small: dict[str, torch.Size]
) -> tuple[_Notebook, dict[str, Tensor]]:
    """Run every initializer; weights in `small` are real meanwhile, and their values returned."""
    empty = _empty(model)
    real = {name: torch.full(shape, math.nan) for name, shape in small.items()}
    noted = {name: tensor for name, tensor in empty.items() if name not in small}
    names = {tensor.untyped_storage()._cdata: name for name, tensor in noted.items()}
    notebook = _Notebook(names, {name: tensor.shape for name, tensor in noted.items()})
    paths = {module: path for path, module in model.named_modules()}
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        _replaced(model, real),
        _functions_noted(notebook),
    ):
        for owner, module in _children_first(model):
            # Not `torch.manual_seed`: it goes on to every other device, which takes 6 ms.
            torch.default_generator.manual_seed(seed_of(seed, paths[module]))
            try:
                cast(Any, owner)._init_weights(module)
            except refusals() as error:
                raise NotCovered(
                    f"{type(model).__name__} initializes {paths[module] or 'itself'} in a way that "
                    f"needs its values ({type(error).__name__}); use --stream never."
                ) from error
    return notebook, real


@contextmanager
def _replaced(model: nn.Module, real: dict[str, Tensor]) -> Iterator[None]:
    empty = dict(model.named_parameters())
    standins = {name: nn.Parameter(value) for name, value in real.items()}
    try:
        put_parameters(model, {id(empty[name]): standin for name, standin in standins.items()})
        yield
    finally:
        put_parameters(model, {id(standin): empty[name] for name, standin in standins.items()})


def _lacking(notebook: _Notebook, given: dict[str, Tensor]) -> dict[str, torch.Size]:
    known = {name for name, value in given.items() if not value.isnan().any()}
    known |= {name for name, steps in notebook.steps.items() if _is_filled(steps)}
    known -= notebook.unclear.keys()
    return {name: shape for name, shape in notebook.shapes.items() if name not in known}


def _is_filled(steps: list[Step]) -> bool:
    return bool(steps) and steps[0].view is None and steps[0].operation in _OVERWRITING


def _pieces(step: Step, numel: int) -> int:
    if step.operation not in _RANDOM:
        return 0
    return -(-numel // PIECE) if step.view is None and step.operation in _BY_PIECE else 1


def _children_first(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield every module once with the transformers model that initializes it, children first.

    GPT-2 relies on this order: its blocks overwrite the initial values of their projections.
    """
    if not hasattr(model, "_init_weights"):
        raise NotCovered(
            f"{type(model).__name__} has no _init_weights, so its weights cannot be drawn one by "
            "one; use --stream never."
        )
    seen: set[int] = set()

    def walk(owner: nn.Module, module: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        for child in module.children():
            yield from walk(child if hasattr(child, "_init_weights") else owner, child)
        yield owner, module

    return walk(model, model)


PIECE = 1 << 20  # entries drawn from one generator: 7 ms on one core, 4 MB


def seed_of(seed: int, place: str) -> int:
    """Derive a seed below 2⁶³ for one place, such as a module path."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def piece_seed(seed: int, number: int) -> int:
    """Derive the seed of one piece of a model's weights from its number in the model.

    torch's CPU generator uses only 32 bits, so hashes would collide: a model of 405 billion
    parameters has 390,000 pieces, and 18 pairs would be equal. Consecutive numbers never are.
    """
    return (seed_of(seed, "weights") + number) & 0xFFFFFFFF
