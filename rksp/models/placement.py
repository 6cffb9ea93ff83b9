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
        behind_norm: Share of the branches that read the stream through a norm.
        branch_norm: Share of the branches that a norm follows before the sum.
        centered: Share of the norms that take the mean away first, as LayerNorm does.
        parallel: Share of the blocks in which attention and feed-forward read the same state.
        routed: Share of the blocks that choose among experts.
        scales_output: A number multiplies the logits, or what they are made from, as in μP.
        qk_norm: Share of the attending blocks that normalize queries and keys; None without one.
        read, blocks: Number of blocks that could be read, and of all.
    """

    norm: Literal["pre", "post", "none"] | None
    behind_norm: float = 1.0
    branch_norm: float
    centered: float = 1.0
    parallel: float
    routed: float = 0.0
    scales_output: bool = False
    qk_norm: float | None
    read: int
    blocks: int

    @property
    def kind(self) -> dict[str, bool]:
        """What most blocks do, as fields of `EdgeInputs`."""
        shown = {"is_parallel": self.parallel, "normalizes_branches": self.branch_norm}
        shown |= {} if self.qk_norm is None else {"normalizes_qk": self.qk_norm}
        return {name: share > _MOST for name, share in shown.items()}

    @property
    def design(self) -> str:
        """The kind of block in words, by which families of the lab are alike; "" for any other."""
        kind = self.kind
        if self.norm is None or self.norm == "none":
            return self.norm or ""
        at = str(self.norm)
        if kind["normalizes_branches"]:
            at = "sandwich" if self.behind_norm > _MOST else "branch"
        norms = "layer" if self.centered > _MOST else "rms"
        # The norms of OLMo 2's branches and those of its queries and keys come together.
        has_qk = kind.get("normalizes_qk", False) and at == "pre"
        said = ["parallel"] * kind["is_parallel"] + ["qk"] * has_qk
        said += ["experts"] * (self.routed > _MOST) + ["scaled"] * self.scales_output
        return " ".join([at, norms, *said])

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
