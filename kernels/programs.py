"""Hold the Triton program. Only its launcher imports this file, so triton loads only where used.

Sums over many programs are written as partial sums, and torch reduces them, never with atomics; so
the same input gives the same bytes. The types of a program are Triton's own.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power_pass(
    addresses,
    basis,
    left,
    partial,
    m,
    n,
    stride_m,
    stride_n,
    blocks,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute `Y = W V` for a block of rows of one matrix, then that block's share of `W' Y`.

    The second loop reads rows that the first loop has left in the L2 cache.
    """
    which = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    weight = tl.load(addresses + which).to(tl.pointer_type(DTYPE))
    at_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    at_b = tl.arange(0, PAD)
    in_b = at_b[None, :] < BLOCK
    in_m = at_m[:, None] < m
    basis += which * n * BLOCK
    product = tl.zeros((BLOCK_M, PAD), tl.float32)
    for first in range(0, n, BLOCK_N):
        at_n = (first + tl.arange(0, BLOCK_N)).to(tl.int64)
        rows = tl.load(
            weight + at_m[:, None] * stride_m + at_n[None, :] * stride_n,
            mask=in_m & (at_n[None, :] < n),
            other=0.0,
        ).to(tl.float32)
        vectors = tl.load(
            basis + at_n[:, None] * BLOCK + at_b[None, :],
            mask=(at_n[:, None] < n) & in_b,
            other=0.0,
        )
        product = tl.dot(rows, vectors, product, input_precision="tf32x3")
    tl.store(left + (which * m + at_m[:, None]) * BLOCK + at_b[None, :], product, mask=in_m & in_b)
    partial += (which * blocks + block) * n * BLOCK
    for first in range(0, n, BLOCK_N):
        at_n = (first + tl.arange(0, BLOCK_N)).to(tl.int64)
        rows = tl.load(
            weight + at_m[:, None] * stride_m + at_n[None, :] * stride_n,
            mask=in_m & (at_n[None, :] < n),
            other=0.0,
        ).to(tl.float32)
        share = tl.dot(tl.trans(rows), product, input_precision="tf32x3")
        tl.store(
            partial + at_n[:, None] * BLOCK + at_b[None, :], share, mask=(at_n[:, None] < n) & in_b
        )
