"""Where the blocks of a measured model normalize, as numbers that need no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the blocks of a model do, read off one forward pass, with or without a configuration.

    Attributes:
        norm: Where they normalize: before a branch, after the sum, or nowhere; None where it is
            none of these, or they differ.
        branch_norm: Share of the branches that a norm follows before the sum.
        parallel: Share of the blocks in which attention and feed-forward read the same state.
        qk_norm: Share of the attending blocks that normalize queries and keys; None without one.
        read, blocks: Number of blocks that could be read, and of all.
    """

    norm: Literal["pre", "post", "none"] | None
    branch_norm: float
    parallel: float
    qk_norm: float | None
    read: int
    blocks: int
