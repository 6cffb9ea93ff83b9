"""Hold the Triton programs. Only the launchers import this file, so triton loads only where used.

Two rules hold in all programs. Sums over many programs are written as partial sums, and torch
reduces them in float64, never with atomics; so the same input gives the same bytes. In Triton's
interpreter (`INTERPRET`), bfloat16 is widened first, because the interpreter would compute with its
bits as integers. The types of a program are Triton's own.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def symmetric_product(
    a,
    out,
    m,
    n,
    alpha,
    beta,
    stride_ab,
    stride_am,
    stride_an,
    ADD: tl.constexpr,
    INTERPRET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute one tile of `alpha A + beta A A'` on or below the diagonal; store it mirrored too."""
    tiles_n = tl.cdiv(m, BLOCK_N)
    tiles = tl.cdiv(m, BLOCK_M) * tiles_n
    # int64: a stack of 320 matrices of 2560 x 3072 passes 2^31 elements.
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    tile_m = tile // tiles_n
    tile_n = tile % tiles_n
    if (tile_m + 1) * BLOCK_M > tile_n * BLOCK_N:
        a += batch * stride_ab
        out += batch * m * m
        at_m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        at_n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for first in range(0, n, BLOCK_K):
            depth = (first + tl.arange(0, BLOCK_K)).to(tl.int64)
            left = tl.load(
                a + at_m * stride_am + depth[None, :] * stride_an,
                mask=(at_m < m) & (depth[None, :] < n),
                other=0.0,
            )
            right = tl.load(
                a + at_n * stride_am + depth[:, None] * stride_an,
                mask=(at_n < m) & (depth[:, None] < n),
                other=0.0,
            )
            if INTERPRET:
                left = left.to(tl.float32)
                right = right.to(tl.float32)
            total = tl.dot(left, right, total, input_precision="tf32x3")
        lower = (at_m < m) & (at_n < m) & (at_m >= at_n)
        total = beta * total
        if ADD:
            own = tl.load(a + at_m * stride_am + at_n * stride_an, mask=lower, other=0.0)
            total += alpha * own.to(tl.float32)
        total = total.to(out.dtype.element_ty)
        tl.store(out + at_m * m + at_n, total, mask=lower)
        tl.store(out + at_n * m + at_m, total, mask=lower)


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


@triton.jit
def row_cosine(
    x,
    vectors,
    moments,
    counts,
    histogram,
    rows,
    width,
    stride_xn,
    stride_xd,
    low,
    high,
    VECTORS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute partial moments, counts and histogram of the cosines of rows with unit vectors."""
    program = tl.program_id(0).to(tl.int64)
    row = program * BLOCK_M + tl.arange(0, BLOCK_M)
    which = tl.arange(0, PAD)
    dots = tl.zeros((BLOCK_M, PAD), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    for first in range(0, width, BLOCK_K):
        depth = (first + tl.arange(0, BLOCK_K)).to(tl.int64)
        tile = tl.load(
            x + row[:, None] * stride_xn + depth[None, :] * stride_xd,
            mask=(row[:, None] < rows) & (depth[None, :] < width),
            other=0.0,
        ).to(tl.float32)
        units = tl.load(
            vectors + which[None, :] * width + depth[:, None],
            mask=(which[None, :] < VECTORS) & (depth[:, None] < width),
            other=0.0,
        )
        squares += tl.sum(tile * tile, axis=1)
        dots = tl.dot(tile, units, dots, input_precision="tf32x3")
    # A NaN fails both comparisons, so such a row is not counted either.
    valid = (row < rows) & (squares >= low) & (squares <= high)
    norms = tl.sqrt(tl.where(valid, squares, 1.0))
    cosines = tl.where(valid[:, None], dots, 0.0) / norms[:, None]
    cosines = tl.minimum(tl.maximum(cosines, -1.0), 1.0)
    inside = which < VECTORS
    out = moments + program * 2 * VECTORS + which
    tl.store(out, tl.sum(cosines, axis=0), mask=inside)
    tl.store(out + VECTORS, tl.sum(cosines * cosines, axis=0), mask=inside)
    out = counts + program * 3 * VECTORS + which
    tl.store(out, tl.sum((cosines > 0).to(tl.int32), axis=0), mask=inside)
    tl.store(out + VECTORS, tl.sum((cosines < 0).to(tl.int32), axis=0), mask=inside)
    tl.store(out + 2 * VECTORS, tl.sum(valid.to(tl.int32), axis=0), mask=inside)
    for vector in tl.static_range(VECTORS):
        own = tl.sum(tl.where(which[None, :] == vector, cosines, 0.0), axis=1)
        bins = tl.minimum(((own + 1.0) * 32.0).to(tl.int32), 63)
        # Rows that are not valid go to bin 64 of 128; the store below drops it.
        tally = tl.histogram(tl.where(valid, bins, 64), 128)
        at = tl.arange(0, 128)
        tl.store(histogram + (program * VECTORS + vector) * 64 + at, tally, mask=at < 64)


@triton.jit
def router_statistics(
    logits,
    entropies,
    load,
    tokens,
    experts,
    stride_t,
    stride_e,
    TOP_K: tl.constexpr,
    SIGMOID: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute the entropy of each token, and how often each expert is chosen."""
    program = tl.program_id(0).to(tl.int64)
    token = program * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.arange(0, PAD)
    inside = (token[:, None] < tokens) & (expert[None, :] < experts)
    scores = tl.load(
        logits + token[:, None] * stride_t + expert[None, :] * stride_e,
        mask=inside,
        other=float("-inf"),
    ).to(tl.float32)
    unreadable = (scores != scores) | (scores == float("inf"))
    if SIGMOID:
        # The softmax of log sigmoid is the sigmoid divided by the sum of sigmoids. A masked expert
        # (-inf) is handled apart, because |-inf| - inf is NaN.
        finite = tl.where(scores == float("-inf"), 0.0, scores)
        soft = tl.minimum(finite, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(finite)))
        scores = tl.where(scores == float("-inf"), scores, soft)
    largest = tl.max(tl.where(unreadable, float("-inf"), scores), axis=1)
    bad = (tl.sum(unreadable.to(tl.int32), axis=1) > 0) | (largest == float("-inf"))
    good = (token < tokens) & (bad == 0)
    scores = tl.where(good[:, None], scores, tl.where(expert[None, :] == 0, 0.0, float("-inf")))
    largest = tl.where(good, largest, 0.0)
    shifted = scores - largest[:, None]
    weights = tl.exp(shifted)
    total = tl.sum(weights, axis=1)
    shares = weights / total[:, None]
    entropy = tl.log(total) - tl.sum(shares * tl.where(weights > 0, shifted, 0.0), axis=1)
    remaining = scores
    chosen = tl.zeros((PAD,), tl.int32)
    # The loop is not unrolled: eight copies of the argmax took ptxas half a minute.
    for _ in range(0, TOP_K):
        best = tl.argmax(remaining, axis=1)
        picked = (expert[None, :] == best[:, None]) & (remaining > float("-inf"))
        chosen += tl.sum((picked & good[:, None]).to(tl.int32), axis=0)
        remaining = tl.where(picked, float("-inf"), remaining)
    tl.store(entropies + token, tl.where(good, entropy, float("nan")), mask=token < tokens)
    tl.store(load + program * experts + expert, chosen, mask=expert < experts)
