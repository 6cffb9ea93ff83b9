"""Estimate width and depth for a model that has no chain of blocks."""

from __future__ import annotations

import statistics

from torch import nn

_BLOCK = 12  # weights of a transformer's block in squares of its width (Kaplan et al., 2020, §2.1)


def equivalent_shape(model: nn.Module) -> tuple[int, int]:
    """Return the width and number of blocks of a transformer with about the same matrices.

    The width is the median of the smaller side of each matrix; a convolution's filters are rows.
    The number of blocks is the total number of weights over twelve squares of the width. Embeddings
    do not count.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in embeddings]
    sides = [min(len(p), p[0].numel()) for p in matrices if len(p)]
    width = max(1, round(statistics.median(sides or [1])))
    return width, max(1, round(sum(p.numel() for p in matrices) / (_BLOCK * width**2)))
