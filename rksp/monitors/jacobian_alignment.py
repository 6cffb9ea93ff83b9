"""Jacobian alignment: whether a block stretches states where the one before it did."""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.moment import Moment, Phase
from rksp.monitors.base import Monitor, Reading

_ITERATIONS = 8
_SEED = 0x6A61636F
_CACHES = ("past_key_value", "past_key_values", "layer_past", "use_cache")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class JacobianAlignment(Monitor):
    """|v_1(J_{l+1})ᵀ u_1(J_l)| of neighboring blocks: `jacobian_alignment` (arXiv 2602.01734).

    J_l is the Jacobian of block l at the first sequence of the micro-batch, in evaluation mode,
    without caches and without hooks that are not torch's own (the run's hooks count the run's
    passes). u_1 and v_1 are its first singular vectors by 8 rounds of power iteration, reverse
    derivatives exact, forward ones central differences: grouped and fused kernels know no others.
    In [0, 1]. With ‖J‖ ≥ M and alignment ≥ a everywhere, the product of the Jacobians grows like
    (aM)^L: `jacobian_growth` of the whole model is median ‖J‖ × median a, dangerous above 1. About
    40 forward passes of one sequence, hence rare.

    Args:
        iterations: Rounds.
    """

    name = "jacobian-alignment"
    phase = Phase.GRADIENT
    default_every = 2000
    quantities = ("jacobian_alignment", "jacobian_growth")
    source = "MSign, arXiv 2602.01734"

    def __init__(
        self, *, every: PositiveInt | None = None, iterations: PositiveInt = _ITERATIONS
    ) -> None:
        super().__init__(every=every)
        self.iterations = iterations

    def bind(self, model: nn.Module) -> str | None:
        self._blocks = block_paths(model)
        self._inputs: dict[str, tuple[tuple, dict]] = {}
        return None if len(self._blocks) > 1 else "no list of at least two blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._inputs = {}
        return [
            model.get_submodule(path).register_forward_pre_hook(self._hook(path), with_kwargs=True)
            for path in self._blocks
        ]

    def read(self, moment: Moment) -> list[Reading]:
        inputs, self._inputs = self._inputs, {}
        triplets = []
        for path in self._blocks:
            if path in inputs:
                block = moment.model.get_submodule(path)
                with _as_found(block), torch.no_grad():
                    found = self._leading(_as_function(block, *inputs[path]))
                triplets.append((path, *found))
        if not all(math.isfinite(sigma) for _, sigma, _, _ in triplets):
            return []  # the states are not finite, which another monitor says
        readings, step = [], moment.step
        for (_, _, u, _), (path, sigma, _, v) in pairwise(triplets):
            if u.shape != v.shape:
                continue  # another stack: a decoder after an encoder
            value = float((u * v).sum().abs())
            detail = {"sigma": sigma, "product": sigma * value}
            readings.append(self.reading("jacobian_alignment", step, value, layer=path, **detail))
        if readings:
            norm = statistics.median(sigma for _, sigma, _, _ in triplets)
            align = statistics.median(reading.value for reading in readings)
            detail = {"norm": norm, "alignment": align}
            readings.append(self.reading("jacobian_growth", step, norm * align, **detail))
        return readings

    def _hook(self, path: str):
        def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
            state = first_tensor((args, kwargs))
            if state is None or path in self._inputs:
                return
            kept = {k: v for k, v in kwargs.items() if k not in _CACHES}
            self._inputs[path] = _first_sequence((args, kept), len(state))

        return before

    def _leading(self, probe: tuple[Callable[[Tensor], Tensor], Tensor]):
        """σ_1, u_1 and v_1 of the Jacobian of a function at a state."""
        function, state = probe
        generator = torch.Generator().manual_seed(_SEED)
        v = torch.randn(state.shape, generator=generator, dtype=torch.float64).to(state)
        v = v / v.norm()
        _, pull = torch.func.vjp(function, state)
        for _ in range(self.iterations):
            u = _pushed(function, state, v)
            (v,) = pull(u / u.norm().clamp(min=1e-30))
            v = v / v.norm().clamp(min=1e-30)
        u = _pushed(function, state, v)
        sigma = float(u.norm())
        return sigma, u / max(sigma, 1e-30), v


def _pushed(function: Callable[[Tensor], Tensor], state: Tensor, tangent: Tensor) -> Tensor:
    """J v for a unit vector, by a step that balances rounding and curvature: ε^⅓ ‖state‖."""
    step = torch.finfo(state.dtype).eps ** (1 / 3) * float(state.norm())
    ahead, behind = function(state + step * tangent), function(state - step * tangent)
    return (ahead - behind) / (2 * step)


def _as_function(block: nn.Module, args: tuple, kwargs: dict):
    """The block as a function of its first tensor, and that tensor."""
    place = next((i for i, value in enumerate(args) if isinstance(value, Tensor)), None)
    if place is not None:

        def function(state: Tensor) -> Tensor:
            return first_tensor(block(*args[:place], state, *args[place + 1 :], **kwargs))

        return function, args[place]
    name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))

    def named(state: Tensor) -> Tensor:
        return first_tensor(block(*args, **(kwargs | {name: state})))

    return named, kwargs[name]


def _first_sequence(value: object, size: int) -> object:
    """Copies of every tensor in nested arguments, cut to the first sequence; no caches.

    A cache of keys, wherever it stands, is full after the pass: a block that ran again would add
    to what the run still needs, and attend to every key twice.
    """
    if _is_cache(value):
        return None
    if isinstance(value, Tensor):
        has_batch = value.dim() > 1 and len(value) == size
        return (value[:1] if has_batch else value).detach().clone()
    if isinstance(value, dict):
        return {key: _first_sequence(item, size) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_first_sequence(item, size) for item in value)
    return value


def _belongs_to_torch(hook: object) -> bool:
    return (getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")


def _is_cache(value: object) -> bool:
    """Whether this is a cache of transformers, told by its ancestors' names."""
    return any(kind.__name__ == "Cache" for kind in type(value).__mro__)


@contextmanager
def _as_found(block: nn.Module) -> Iterator[None]:
    """Evaluation mode and torch's own hooks alone inside; afterwards every attribute is as it was.

    Hooks of torch stay since shards are gathered and weights parametrized in them.
    """
    before = [(module, dict(module.__dict__)) for module in block.modules()]
    try:
        block.eval()
        for module, attributes in before:
            for name in _HOOKS:
                kept = (
                    (i, hook) for i, hook in attributes[name].items() if _belongs_to_torch(hook)
                )
                module.__dict__[name] = OrderedDict(kept)
        yield
    finally:
        for module, attributes in before:
            module.__dict__.clear()
            module.__dict__.update(attributes)
