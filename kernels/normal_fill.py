"""Fill tensors with random values that depend only on the seed and the element's number.

Element `i` of a fill takes 32 bits from Philox-4x32-10 (Salmon et al., 2011, "Parallel random
numbers: as easy as 1, 2, 3"): block `(offset + i) // 4`, word `(offset + i) % 4`, key = seed. A
model may therefore be filled in any order, in any pieces and on any device. The words are bitwise
equal everywhere. The normals differ only as far as the float32 logarithm, sine and cosine of two
devices differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.kernels import dispatch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
# Blocks per chunk. On a CPU the temporaries stay in its cache, and every operation stays below the
# size at which torch uses several threads (32768 elements; 2048 for log, sine and cosine, so numpy
# computes those). With four threads on a busy four-core machine, a fill took two hundred times as
# long as with one thread. Other devices do better with larger chunks.
_CHUNK = {"cpu": 6144}
_CHUNK_ELSEWHERE = 1 << 22


def philox(counters: Tensor, seed: int, *, high: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the four words of each Philox-4x32-10 block in 64-bit integer arithmetic.

    Args:
        counters: The low 64 bits of each counter, int64, any shape.
        seed: The 64-bit key.
        high: The high 64 bits of every counter.

    Returns:
        Four int64 tensors of the shape of `counters`, each in `[0, 2**32)`.
    """
    if counters.device.type != "cpu":
        return _rounds(counters, torch.full_like(counters, 0), seed, high)
    # On one core numpy's unsigned arithmetic took 29 ns a block, and torch's int64 took 75.
    words = counters.contiguous().numpy().view(np.uint64)
    a, b, c, d = _rounds(words, np.zeros_like(words), seed, high)
    as_tensor = lambda word: torch.from_numpy(word.view(np.int64))
    return as_tensor(a), as_tensor(b), as_tensor(c), as_tensor(d)


def _rounds(counters, zero, seed: int, high: int):
    """Run ten rounds on uint64 arrays or int64 tensors; a signed product wraps to the same bits."""
    a, b = counters & _MASK, (counters >> 32) & _MASK
    c, d = zero + (high & _MASK), zero + ((high >> 32) & _MASK)
    first, second = seed & _MASK, seed >> 32
    for _ in range(10):
        even, odd = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        # The masks remove the sign bits that the shift of a tensor copies down.
        a, c = odd >> 32, even >> 32
        a &= _MASK
        a ^= b
        a ^= first
        c &= _MASK
        c ^= d
        c ^= second
        odd &= _MASK
        even &= _MASK
        b, d = odd, even
        first, second = (first + _WEYL[0]) & _MASK, (second + _WEYL[1]) & _MASK
    return a, b, c, d


def box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Make two independent standard normals from two words (Box and Muller, 1958).

    Radius and angle use 23 bits plus half a step each, exact in float32. The radius is never
    infinite, so no value is larger than 5.77.

    Args:
        first: Words, int64 in `[0, 2**32)`.
        second: Words of the same shape.

    Returns:
        Two float32 tensors of that shape.
    """
    radius = _apply("sqrt", _apply("log", _unit(first)).mul_(-2.0))
    angle = _unit(second).sub_(0.5).mul_(2 * math.pi)
    return _apply("cos", angle.clone()).mul_(radius), _apply("sin", angle).mul_(radius)


def _apply(function: str, values: Tensor) -> Tensor:
    """Apply `log`, `sqrt`, `cos` or `sin` in place; numpy computes it on a CPU, see `_CHUNK`."""
    if values.device.type != "cpu":
        return getattr(torch, function)(values, out=values)
    flat = values.numpy()
    getattr(np, function)(flat, out=flat)
    return values


def _unit(words: Tensor) -> Tensor:
    """Convert words to float32 in `(0, 1)`, on the centers of 2^23 equal intervals."""
    return (words >> 9).int().float().add_(0.5).mul_(2.0**-23)


def normal_fill(
    target: Tensor | Sequence[int], seed: int, offset: int = 0, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    """Fill `target` with `mean + std * z`, where z is standard normal, from a counter.

    Args:
        target: A floating tensor, filled in place in the order of its indices for any strides, or
            the shape of a new float32 tensor on the CPU.
        seed: Key of the stream, in `[0, 2**64)`.
        offset: Number of the first element, in `[0, 2**63)`. Fills that share a seed and do not
            overlap in `offset ... offset + numel` are independent.
        mean: Mean of the values.
        std: Standard deviation, not negative.

    Returns:
        The filled tensor. A part filled alone equals that part of the whole tensor.

    Raises:
        InputError: Seed, offset or std is out of range, or the tensor is not floating.
    """
    target = _target(target, seed, offset)
    if std < 0:
        raise InputError(f"std of a normal fill must not be negative, got {std}. Drop the sign.")
    with torch.no_grad():
        if dispatch.choose("normal_fill", target).implementation == "triton":
            return normal_fill_triton(target, seed, offset, mean, std)
        return normal_fill_reference(target, seed, offset, mean, std)


def normal_fill_reference(
    target: Tensor, seed: int, offset: int = 0, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    """Compute `normal_fill` in plain torch, on any device; float64 targets hold float32 values."""
    return _fill(target, seed, offset, lambda words: _affine(_normals(words), mean, std))


def normal_fill_triton(
    target: Tensor, seed: int, offset: int = 0, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    """Compute `normal_fill` in Triton with a single write of the tensor."""
    from rksp.kernels import programs  # triton is loaded only where it runs

    count = target.numel()
    if count == 0:
        return target
    out = target if target.is_contiguous() else torch.empty_like(target).contiguous()
    blocks = (offset + count - 1) // 4 - offset // 4 + 1
    size = 256
    # The key is a signed 64-bit argument; the program reads its bits.
    key = seed - 2**64 if seed >= 2**63 else seed
    programs.normal_fill[(-(-blocks // size),)](
        out, count, offset // 4, offset % 4, key, float(mean), float(std), BLOCK=size
    )
    return target if out is target else target.copy_(out)


def uniform_fill(
    target: Tensor | Sequence[int], seed: int, offset: int = 0, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """Fill `target` with uniform values in `(low, high)`, in plain torch on any device.

    Arguments, result and errors are those of `normal_fill`. Each element uses 23 bits of one word.
    """
    target = _target(target, seed, offset)
    with torch.no_grad():
        return _fill(
            target, seed, offset, lambda words: _uniforms(words).mul_(high - low).add_(low)
        )


def truncated_normal_fill(
    target: Tensor | Sequence[int],
    seed: int,
    offset: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    low: float = -2.0,
    high: float = 2.0,
) -> Tensor:
    """Fill `target` with normals conditioned on `low < z < high`, by the inverse distribution.

    Args:
        target: As in `normal_fill`.
        seed: Key of the stream, as in `normal_fill`.
        offset: Number of the first element, as in `normal_fill`.
        mean: Mean before truncation.
        std: Standard deviation before truncation.
        low: Lower bound in standard deviations from the mean. `torch.nn.init.trunc_normal_` gives
            its bounds in the units of the values instead.
        high: Upper bound, likewise.
            of the values instead.

    Returns:
        The filled tensor, in plain torch on any device.

    Raises:
        InputError: As in `normal_fill`, or `low` is not below `high`.
    """
    target = _target(target, seed, offset)
    if not low < high or std < 0:
        raise InputError(
            f"a truncated normal needs low < high and std >= 0, got low={low}, high={high}, "
            f"std={std}. Correct the bounds."
        )
    below, above = (math.erf(bound / math.sqrt(2.0)) for bound in (low, high))

    def values(words: Tensor) -> Tensor:
        # float64, because float32 rounds arguments of erfinv to ±1 and loses the tail.
        at = _uniforms(words).double().mul_(above - below).add_(below)
        normal = torch.erfinv(at).mul_(math.sqrt(2.0)).clamp_(low, high)
        return _affine(normal, mean, std)

    with torch.no_grad():
        return _fill(target, seed, offset, values)


def _target(target: Tensor | Sequence[int], seed: int, offset: int) -> Tensor:
    if not 0 <= seed < 2**64:
        raise InputError(f"a seed must be in [0, 2**64), got {seed}. Choose another one.")
    if not isinstance(target, Tensor):
        target = torch.empty(tuple(target), dtype=torch.float32)
    if not target.is_floating_point():
        raise InputError(
            f"random fills need a floating tensor, got {target.dtype}. Convert it first."
        )
    if not 0 <= offset < 2**63 - target.numel():
        raise InputError(
            f"offset must be in [0, 2**63 - numel), got {offset}. Number the elements from zero."
        )
    return target


def _affine(values: Tensor, mean: float, std: float) -> Tensor:
    return values.mul_(std).add_(mean)


def _normals(words: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    pairs = (*box_muller(words[0], words[1]), *box_muller(words[2], words[3]))
    return torch.stack(pairs, dim=-1)


def _uniforms(words: Iterable[Tensor]) -> Tensor:
    return torch.stack([_unit(word) for word in words], dim=-1)


def _fill(target: Tensor, seed: int, offset: int, values: Callable[..., Tensor]) -> Tensor:
    """Write `values(words)`, four per block, over `target`."""
    count = target.numel()
    flat = target.detach().contiguous().view(-1)
    size = _CHUNK.get(target.device.type, _CHUNK_ELSEWHERE)
    end = (offset + count - 1) // 4 + 1 if count else 0
    for first in range(offset // 4, end, size):
        counters = torch.arange(
            first, min(first + size, end), dtype=torch.int64, device=target.device
        )
        piece = values(philox(counters, seed)).view(-1)
        start = first * 4 - offset  # negative where the first block begins before the target
        skip, stop = max(0, -start), min(piece.numel(), count - start)
        flat[start + skip : start + stop].copy_(piece[skip:stop])
    return target if target.is_contiguous() else target.copy_(flat.view(target.shape))
