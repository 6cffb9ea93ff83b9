"""Jacobian alignment: does a block stretch states in the direction in which the last one did?"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.model import definite
from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

_SEED = 0x6A61636F
_BLOCK = 4
_KEPT = 8  # Ritz vectors that survive a restart
_ACCURACY = 3e-3  # of the vectors' angle, which is about the residual over 1 − (σ_2/σ_1)²
_SMALL = 1e-3  # of the mean norm of a state; smaller tokens count as this large

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Triplet:
    """The first singular triplet.

    Attributes:
        sigma: σ_1, never overestimated except by rounding.
        u: Unit vector in the shape of the output.
        v: Unit vector in the shape of the state.
        gap: σ_2 / σ_1; if it is near 1, the vectors mean little.
        residual: ‖Jᵀu − σ v‖ / σ.
        rounds: Number of rounds.
    """

    sigma: float
    u: Tensor
    v: Tensor
    gap: float
    residual: float
    rounds: int


def leading_triplet(function: Function, state: Tensor, *, rounds: int) -> Triplet:
    """Return the first singular triplet of the Jacobian of a function at a state.

    The method is block Krylov with thick restarts (Golub, Luk and Overton, 1981; Baglama and
    Reichel, 2005). Each round multiplies four new directions with J and computes the singular value
    decomposition of J on all kept directions (at most twelve). It then multiplies the four leading
    left vectors with Jᵀ and continues with the residuals Jᵀu − σv.

    Args:
        function: A function of a state that returns its shape; run without a graph.
        state: `[batch, tokens, width]` or any other shape with features last.
        rounds: The largest number of rounds.
    """
    generator = torch.Generator().manual_seed(_SEED)
    block = min(_BLOCK, state.numel())
    fresh = torch.randn(state.numel(), block, generator=generator, dtype=torch.float64).to(state)
    pull: Any = torch.func.vjp(function, state)[1]
    basis = state.new_zeros(state.numel(), 0)
    images = None
    for number in range(1, rounds + 1):
        fresh = _orthonormal(fresh, basis)
        pushed = [_pushed(function, state, column.view_as(state)) for column in fresh.T]
        new = torch.stack([image.flatten() for image in pushed], dim=-1)
        shape = pushed[0].shape
        basis = torch.cat([basis, fresh], -1)
        images = new if images is None else torch.cat([images, new], -1)
        if not bool(torch.isfinite(images).all()):
            none = float("nan")
            return Triplet(sigma=none, u=new, v=fresh, gap=none, residual=none, rounds=number)
        sigma, left, right = _ritz(basis, images)
        first = float(sigma[0])
        gap = float(sigma[1]) / first if first and len(sigma) > 1 else 0.0
        pulled = torch.stack([pull(u.view(shape))[0].flatten() for u in left[:, :block].T], dim=-1)
        leftover = pulled - right[:, :block] * sigma[:block].to(pulled)
        residual = float(leftover[:, 0].norm()) / max(first, 1e-30)
        if residual <= _ACCURACY * (1 - gap**2) or basis.shape[1] + block > len(basis):
            break
        basis = right[:, :_KEPT]
        images = left[:, :_KEPT] * sigma[:_KEPT].to(left)
        fresh = leftover
    return Triplet(
        sigma=first,
        u=left[:, 0].view(shape),
        v=right[:, 0].view_as(state),
        gap=gap,
        residual=residual,
        rounds=number,
    )


def _ritz(basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return singular values (descending, float64), left and right vectors of J on a basis."""
    double = images.double()
    energy, turn = torch.linalg.eigh(double.mT @ double)
    energy, turn = energy.flip(0), turn.flip(1)
    sigma = energy.clamp(min=0).sqrt()
    left = (double @ turn) / sigma.clamp(min=1e-30)
    return sigma, left.to(images), (basis.double() @ turn).to(basis)


def _orthonormal(fresh: Tensor, basis: Tensor) -> Tensor:
    """Return orthonormal columns that span `fresh` outside `basis`; two passes are enough."""
    fresh = fresh / fresh.norm(dim=0).clamp(min=1e-30)
    for _ in range(2):
        fresh = torch.linalg.qr(fresh - basis @ (basis.mT @ fresh)).Q
    return fresh


def _pushed(function: Function, state: Tensor, tangent: Tensor) -> Tensor:
    """Return J v for a unit vector, by central differences.

    No token moves by more than ε^⅓ of its own norm, which balances rounding and curvature. Norm
    layers make a block curve on the scale of a token, and a leading direction may act on one token.
    """
    sizes = state.norm(dim=-1)
    sizes = sizes.clamp(min=_SMALL * float(sizes.square().mean().sqrt()))
    reach = float((tangent.norm(dim=-1) / sizes.clamp(min=1e-30)).max())
    step = torch.finfo(state.dtype).eps ** (1 / 3) / max(reach, 1e-30)
    ahead, behind = function(state + step * tangent), function(state - step * tangent)
    return (ahead - behind) / (2 * step)


_ITERATIONS = 12
_POSITIONS = 64
_EXACT = 1e-3  # by how much a block's output may change when later positions are cut off
_UNTRUSTED = 0.1  # above this residual the vectors mean nothing
_Inputs = tuple[tuple, dict]  # a block's arguments, by position and by name
_NOT_SHORTENED = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)
_CACHES = ("past_key_value", "past_key_values", "layer_past", "use_cache")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class JacobianAlignment(Monitor):
    """|v_1(J_{l+1})ᵀ u_1(J_l)| of neighboring blocks: `jacobian_alignment` (arXiv 2602.01734).

    J_l is the Jacobian of block l at the first sequence of the micro-batch, in evaluation mode,
    without caches and without hooks other than torch's own (the run's hooks count the run's
    passes). If no position of any block depends on later ones, as under causal masks, J_l is that
    of the first `positions` positions; a forward pass of each block tests it. u_1 and v_1 are its
    first singular vectors by a block Krylov method: four vectors a round, and a Rayleigh–Ritz step
    over the twelve kept, until the residual ‖Jᵀu − σv‖ / σ is small compared with the gap to σ_2.
    Reverse derivatives are exact. Forward derivatives are central differences, because grouped and
    fused kernels have no others. The detail gives the larger
    `residual` of the two blocks and their larger `gap` σ_2/σ_1; if it is near 1, the directions
    mean little. A pair with a residual above 0.1 has no reading; `pairs` of the whole model counts
    those that have one.

    The value is in [0, 1]. With ‖J‖ ≥ M and alignment ≥ a everywhere, the product of the Jacobians
    grows like (aM)^L: `jacobian_growth` of the whole model is median ‖J‖ × median a, dangerous
    above 1. A round costs about 20 forward passes of these positions, so readings are rare.

    Args:
        every: Steps between two readings.
        iterations: The largest number of rounds per block.
        positions: The largest number of positions, if no position depends on later ones.
    """

    name = "jacobian-alignment"
    phase = Phase.GRADIENT
    default_every = 2000
    quantities = ("jacobian_alignment", "jacobian_growth")
    source = "MSign, arXiv 2602.01734"

    def __init__(
        self,
        *,
        every: PositiveInt | None = None,
        iterations: PositiveInt = _ITERATIONS,
        positions: PositiveInt = _POSITIONS,
    ) -> None:
        super().__init__(every=every)
        self.iterations, self.positions = iterations, positions

    def bind(self, model: nn.Module) -> str | None:
        """Find the blocks."""
        self._blocks = block_paths(model)
        self._inputs: dict[str, _Inputs] = {}
        return None if len(self._blocks) > 1 else "no list of at least two blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Capture the inputs of every block."""
        self._inputs = {}
        return [
            model.get_submodule(path).register_forward_pre_hook(self._hook(path), with_kwargs=True)
            for path in self._blocks
        ]

    def read(self, moment: Moment) -> list[Reading]:
        """Return the alignment of every pair of neighbors and the growth of the whole model."""
        inputs = {path: self._inputs[path] for path in self._blocks if path in self._inputs}
        self._inputs = {}
        blocks = {path: moment.model.get_submodule(path) for path in inputs}
        first = {path: _first_positions(inputs[path], self.positions) for path in inputs}
        with ExitStack() as stack, torch.no_grad():
            for block in blocks.values():
                stack.enter_context(_as_found(block))
            if not any(_depends_on_later(blocks[p], inputs[p], first[p]) for p in blocks):
                inputs = first
            found = [
                (path, leading_triplet(*_as_function(block, *inputs[path]), rounds=self.iterations))
                for path, block in blocks.items()
            ]
        if not all(math.isfinite(triplet.sigma) for _, triplet in found):
            return []  # another monitor reports states that are not finite
        readings, step = [], moment.step
        for (_, left), (path, right) in pairwise(found):
            if left.u.shape != right.v.shape:
                continue  # another stack: a decoder after an encoder
            if max(left.residual, right.residual) > _UNTRUSTED:
                continue  # a router's choice changed within a difference step
            value = min(1.0, float((left.u * right.v).sum().abs()))
            detail: dict[str, Any] = {"sigma": right.sigma, "product": right.sigma * value}
            detail |= {"gap": max(left.gap, right.gap)}
            detail |= {"residual": max(left.residual, right.residual)}
            readings.append(self.reading("jacobian_alignment", step, value, layer=path, **detail))
        if readings:
            norm = statistics.median(triplet.sigma for _, triplet in found)
            align = statistics.median(reading.value for reading in readings)
            detail = {"norm": norm, "alignment": align, "pairs": float(len(readings))}
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


def _depends_on_later(block: nn.Module, whole: _Inputs, first: _Inputs) -> bool:
    """Return whether the output at the first positions changes if the later ones are cut off.

    It counts as changed if the block cannot run without them.
    """
    if first is whole:
        return False
    function, state = _as_function(block, *whole)
    short, start = _as_function(block, *first)
    try:
        expected, found = function(state)[:, : start.shape[1]], short(start)
    except _NOT_SHORTENED:
        return True
    return expected.shape != found.shape or not bool(
        (found - expected).norm() <= _EXACT * expected.norm()
    )


def _first_positions(inputs: _Inputs, positions: int) -> _Inputs:
    """Cut the first tensor's second dimension, and all dimensions of that length elsewhere."""
    state = first_tensor(inputs)
    if definite(state).dim() != 3 or definite(state).shape[1] <= positions:
        return inputs

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            places = (1,) if value.shape == definite(state).shape else range(value.dim())
            for place in places:
                if value.shape[place] == definite(state).shape[1]:
                    value = value.narrow(place, 0, positions)
            return value
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items()}
        return type(value)(map(cut, value)) if isinstance(value, tuple | list) else value

    return cut(inputs)


def _as_function(block: nn.Module, args: tuple, kwargs: dict):
    """Return the block as a function of its first tensor, and that tensor."""
    place = next((i for i, value in enumerate(args) if isinstance(value, Tensor)), None)
    if place is not None:

        def function(state: Tensor) -> Tensor:
            return definite(first_tensor(block(*args[:place], state, *args[place + 1 :], **kwargs)))

        return function, args[place]
    name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))

    def named(state: Tensor) -> Tensor:
        return definite(first_tensor(block(*args, **(kwargs | {name: state}))))

    return named, kwargs[name]


def _first_sequence(value: Any, size: int) -> Any:
    """Copy every tensor in nested arguments, cut to the first sequence and without caches.

    A cache of keys is full after the pass. A block that ran again would add to a cache that the run
    still needs, and would attend to every key twice.
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


def _belongs_to_torch(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")


def _is_cache(value: Any) -> bool:
    """Return whether this is a cache of transformers, by its ancestors' names."""
    return any(kind.__name__ == "Cache" for kind in type(value).__mro__)


@contextmanager
def _as_found(block: nn.Module) -> Iterator[None]:
    """Use evaluation mode and torch's own hooks alone inside, and restore every attribute.

    Torch's hooks stay because they gather shards and parametrize weights.
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
