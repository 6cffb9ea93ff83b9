"""The residual stream, block by block: what a forward pass hands to the spectra."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTransition:
    """The states of one token set before and after one block.

    Attributes:
        layer: Position of the block in its chain, from zero.
        name: The block's module path, such as `model.layers.3`.
        x: States entering the block, `[states, width]`, any float dtype.
        y: States leaving it, same shape; row i of `x` and `y` belong to the same token.
        sequence: Index of the sequence each state came from, `[states]` int64.
    """

    layer: int
    name: str
    x: Tensor
    y: Tensor
    sequence: Tensor
