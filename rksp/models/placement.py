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

    @property
    def kind(self) -> dict[str, bool]:
        """What most blocks do, as fields of `EdgeInputs`."""
        shown = {"is_parallel": self.parallel, "normalizes_branches": self.branch_norm}
        shown |= {} if self.qk_norm is None else {"normalizes_qk": self.qk_norm}
        return {name: share > _MOST for name, share in shown.items()}

    def __str__(self) -> str:
        kind = self.kind
        said = ["a norm after each branch"] if kind["normalizes_branches"] else [_AT[self.norm]]
        said += ["attention beside feed-forward"] * kind["is_parallel"]
        said += ["normalized queries and keys"] * kind.get("normalizes_qk", False)
        return ", ".join(said)


_MOST = 0.5  # share of the blocks from which on what they do counts
_AT = {
    "pre": "a norm before each branch",
    "post": "a norm after each sum",
    "none": "no norm on the stream or its branches",
    None: "norms at places that rksp does not know",
}
