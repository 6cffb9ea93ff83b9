"""Compute the top singular triplets of many weights at once, warm-started from the last call.

`RKSP_KERNELS` decides what runs: `auto` (the default) and `reference` take plain torch, since no
GPU run has measured Triton to be faster yet; `triton` takes Triton, or raises.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rksp.ground.errors import InputError, nearest

MODES = ("auto", "reference", "triton")
COLD_ITERATIONS = 24
WARM_ITERATIONS = 2
_BLOCK = 4  # vectors iterated together, at most the smaller dimension of a weight
_PAD = 16  # the narrowest tile that a tensor core multiplies
_SEED = 0x726B7370  # of the first basis; the result depends on it only through its residual
_SAFE = (1e-12, 1e12)  # singular values whose squares keep all digits in float32
_STACK_BYTES = 1 << 26  # float32 copies of weights that are multiplied in one batch


Weights = Sequence[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSingular:
    """The leading singular triplet of each weight, in the order they were given.

    Attributes:
        sigma: Largest singular values, `[weights]` float32. Block power iteration never
            overestimates them, so a stable rank computed from them is too high, never too low.
        gap: Second over first singular value as the block sees it, `[weights]` float32; 0 for a
            block of one. Near 1 the vectors are not well defined.
        u: Left vectors, one `[m]` float32 tensor per weight.
        v: Right vectors, `[n]` float32 each; the sign follows the warm start.
        residual: `|W'W v - sigma^2 v| / sigma^2`, `[weights]` float32; accept below 1e-2.
        is_finite: Whether the products stayed finite, `[weights]` bool. If not, `sigma`, `gap`
            and `residual` are NaN, the vectors are zero, and the next call starts cold.
        state: Orthonormal bases `[n, block]` for the next call.
    """

    sigma: Tensor
    gap: Tensor
    u: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    residual: Tensor
    is_finite: Tensor
    state: tuple[Tensor, ...]


def top_singular(
    weights: Weights,
    state: Weights | None = None,
    *,
    iterations: int | None = None,
) -> TopSingular:
    """Compute top singular triplets by block power iteration with a final Rayleigh-Ritz step.

    Weights of equal shape and dtype are processed together. Each iteration computes `Y = W V`,
    `Z = W' Y` and orthonormalizes `Z`. The last one takes the triplet from the eigenvectors of
    `Y'Y` (Halko, Martinsson and Tropp, 2011, section 5); its residual costs no further product.

    Args:
        weights: Matrices `[m, n]`, floating, on one device.
        state: The state of the previous call for the same weights; None starts cold.
        iterations: Passes over each weight; None means 24 cold and 2 warm.

    Returns:
        The triplets and the state for the next call.

    Raises:
        InputError: A weight is not a matrix, empty or not floating, or the state does not match.
    """
    _check(weights, state, iterations)
    compute = top_singular_triton if takes_triton(weights) else top_singular_reference
    return compute(weights, state, iterations=iterations)


def takes_triton(weights: Weights) -> bool:
    """Decide whether the Triton program runs on these weights.

    Raises:
        InputError: `RKSP_KERNELS` is not a mode, or it is `triton` and Triton cannot run on them.
    """
    mode = os.environ.get("RKSP_KERNELS", "auto")
    if mode not in MODES:
        raise InputError(
            f"RKSP_KERNELS must be one of {', '.join(MODES)}, got {mode!r}{nearest(mode, MODES)}. "
            "Correct or unset it."
        )
    if mode != "triton" or not weights:
        return False
    if obstacle := _obstacle(weights):
        raise InputError(
            f"RKSP_KERNELS=triton, but top_singular cannot run in Triton: {obstacle}. "
            "Set RKSP_KERNELS=auto."
        )
    return True


def _obstacle(weights: Weights) -> str | None:
    if any(tensor.dtype == torch.float64 for tensor in weights):
        return "float64 tensors"
    if all(tensor.is_cuda for tensor in weights):
        # Looked up, not imported: a broken triton must not break a run on the CPU.
        return None if importlib.util.find_spec("triton") else "triton is not installed"
    if not all(tensor.device.type == "cpu" for tensor in weights):
        return "tensors on different devices or on one that is not CUDA"
    # Triton's interpreter runs programs on tensors of the CPU.
    return None if os.environ.get("TRITON_INTERPRET") == "1" else "tensors on the CPU"


class _Stacked:
    """Products with a group of weights that are copied to one float32 stack."""

    def __init__(self, weights: list[Tensor]) -> None:
        dtype = torch.float64 if weights[0].dtype == torch.float64 else torch.float32
        wide = [weight.to(dtype) for weight in weights]
        self._stack = torch.stack(wide) if len(wide) > 1 else wide[0][None]

    def __call__(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        left = self._stack @ basis.to(self._stack.dtype)
        return left, self._stack.mT @ left


class _Addressed:
    """Products with a group of weights that stay in place."""

    def __init__(self, weights: list[Tensor]) -> None:
        first = weights[0]
        strides = first.stride()
        self._weights = [w if w.stride() == strides else w.contiguous() for w in weights]
        if any(weight.stride() != strides for weight in self._weights):
            self._weights = [weight.contiguous() for weight in weights]
        self._addresses = torch.tensor(
            [weight.data_ptr() for weight in self._weights], dtype=torch.int64, device=first.device
        )

    def __call__(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        import triton.language as tl  # loaded only where it runs

        from rksp.kernels import programs

        kinds = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
        first = self._weights[0]
        m, n = first.shape
        count, _, width = basis.shape
        rows = 32
        blocks = -(-m // rows)
        left = torch.empty(count, m, width, dtype=torch.float32, device=first.device)
        partial = torch.empty(count, blocks, n, width, dtype=torch.float32, device=first.device)
        programs.power_pass[(count * blocks,)](
            self._addresses,
            basis.contiguous(),
            left,
            partial,
            m,
            n,
            *first.stride(),
            blocks,
            DTYPE=kinds[first.dtype],
            BLOCK=width,
            PAD=_PAD,
            BLOCK_M=rows,
            BLOCK_N=64,
        )
        return left, partial.sum(1)


@torch.no_grad()
def _grouped(
    products: type[_Stacked] | type[_Addressed],
    weights: Weights,
    state: Weights | None = None,
    *,
    iterations: int | None = None,
) -> TopSingular:
    if not weights:
        none = torch.empty(0)
        return TopSingular(
            sigma=none, gap=none, u=(), v=(), residual=none, is_finite=none.bool(), state=()
        )
    passes = iterations or (COLD_ITERATIONS if state is None else WARM_ITERATIONS)

    def found(members: list[int], group: list[Tensor]) -> list[tuple[Tensor, ...]]:
        kept = None if state is None else torch.stack([state[index] for index in members])
        return _iterate(products(group), _first_basis(group) if kept is None else kept, passes)

    results: list[tuple[Tensor, ...]] = [()] * len(weights)
    for members in _groups(weights):
        group = [weights[index] for index in members]
        for index, result in zip(members, found(members, group), strict=True):
            results[index] = result
    for index, sigma in enumerate(torch.stack([result[0] for result in results]).tolist()):
        if _SAFE[0] < sigma < _SAFE[1]:
            continue
        largest = float(weights[index].abs().amax())
        if 0 < largest < math.inf and not _SAFE[0] < largest < _SAFE[1]:
            # It left the range of float32: again, from a weight whose largest entry is one.
            unit, *others = found([index], [weights[index] / largest])[0]
            results[index] = (unit * largest, *others)
    sigma, gap, residual, is_finite, u, v, bases = zip(*results, strict=True)
    return TopSingular(
        sigma=torch.stack(sigma),
        gap=torch.stack(gap),
        u=u,
        v=v,
        residual=torch.stack(residual),
        is_finite=torch.stack(is_finite),
        state=bases,
    )


# In plain torch, on any device; float64 weights stay in float64.
top_singular_reference = partial(_grouped, _Stacked)
# In Triton, one launch for a group of weights, which are read in place.
top_singular_triton = partial(_grouped, _Addressed)


def _iterate(
    product: _Stacked | _Addressed, basis: Tensor, passes: int
) -> list[tuple[Tensor, ...]]:
    """Run `passes` products on `[group, n, block]` and split the result by weight."""
    previous = basis[..., 0]
    for last in [False] * (passes - 1) + [True]:
        left, right = product(basis.float())
        is_finite = torch.isfinite(right).all(-1).all(-1) & torch.isfinite(left).all(-1).all(-1)
        # The factorizations below reject NaN; with zeros the other weights of the group go on.
        left = torch.where(is_finite[:, None, None], left, torch.zeros_like(left)).double()
        right = torch.where(is_finite[:, None, None], right, torch.zeros_like(right)).double()
        if not last:
            basis = _orthonormal(right, basis)
    # Rayleigh-Ritz in float64: the Gram matrix squares the condition of the block.
    scale = left.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    values, rotation = torch.linalg.eigh((left / scale).mT @ (left / scale))
    values, rotation = values.flip(-1).clamp_min(0.0), rotation.flip(-1)
    sigma = values[:, 0].sqrt() * scale[:, 0, 0]
    second = values[:, 1] if values.shape[1] > 1 else torch.zeros_like(sigma)
    gap = (second / torch.where(values[:, 0] > 0, values[:, 0], 1.0)).sqrt()
    rotated = basis.double() @ rotation
    v = rotated[..., 0]
    sign = torch.where((v * previous.double()).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    safe = torch.where(sigma > 0, sigma, torch.ones_like(sigma))[:, None]
    u = (left @ rotation[..., :1])[..., 0] / safe
    image = (right @ rotation[..., :1])[..., 0] / safe
    residual = torch.linalg.vector_norm(
        image / safe - torch.where(safe == sigma[:, None], v, 0), dim=-1
    )
    bases = _orthonormal(right @ rotation, rotated)
    turned = torch.where((bases[..., 0] * v).sum(-1) < 0, -1.0, 1.0)[:, None, None]
    bases = bases * turned * sign[..., None]
    undefined = torch.full_like(sigma, float("nan"))
    sigma, gap, residual = (
        torch.where(is_finite, value, undefined).float() for value in (sigma, gap, residual)
    )
    kept = is_finite[:, None].double()
    u, v = (sign * u * kept).float(), (sign * v * kept).float()
    return list(zip(sigma, gap, residual, is_finite, u, v, bases.float(), strict=True))


def _orthonormal(image: Tensor, fallback: Tensor) -> Tensor:
    """Return orthonormal columns that span `image`; `fallback` for a weight whose image is zero."""
    scale = image.abs().amax((-2, -1), keepdim=True)
    image = torch.where(scale > 0, image / torch.where(scale > 0, scale, 1.0), fallback.double())
    basis: Tensor = torch.linalg.qr(image).Q
    return basis


def _first_basis(group: list[Tensor]) -> Tensor:
    m, n = group[0].shape
    draw = np.random.Generator(np.random.Philox(_SEED)).standard_normal  # the same on every device
    start = torch.from_numpy(draw((n, min(_BLOCK, m, n)), np.float32)).to(group[0].device)
    basis: Tensor = torch.linalg.qr(start).Q
    return basis.expand(len(group), -1, -1)


def _groups(weights: Weights) -> list[list[int]]:
    open_groups: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    groups: list[list[int]] = []
    for index, weight in enumerate(weights):
        key = (weight.shape, weight.dtype)
        group = open_groups.get(key)
        if group is None or (len(group) + 1) * weight.numel() * 4 > _STACK_BYTES:
            group = open_groups[key] = []
            groups.append(group)
        group.append(index)
    return groups


def _check(weights: Weights, state: Weights | None, iterations: int | None) -> None:
    for weight in weights:
        if weight.ndim != 2 or not weight.is_floating_point() or weight.numel() == 0:
            raise InputError(
                f"top_singular needs floating matrices that are not empty, got "
                f"{list(weight.shape)} {weight.dtype}. Leave out vectors and embeddings of "
                "size zero."
            )
    if iterations is not None and iterations < 1:
        raise InputError(f"top_singular needs at least one iteration, got {iterations}. Use 2.")
    if state is not None:
        wanted = [(w.shape[1], min(_BLOCK, *w.shape)) for w in weights]
        given = [tuple(basis.shape) for basis in state]
        if wanted != given:
            raise InputError(
                "the state belongs to other weights: its shapes differ from "
                f"those of the {len(wanted)} weights. Pass state=None to start cold."
            )
