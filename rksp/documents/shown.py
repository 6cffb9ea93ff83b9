"""Hold what a forward pass and the first gradient showed, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

LOGITS_NOT_FINITE = "the logits are not finite"
GRADIENT_NOT_FINITE = "the gradient is not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStats:
    """Statistics of one attention call on the first two sequences, over visible keys.

    Attributes:
        logit_std: Standard deviation over keys, averaged over queries and heads.
        max_logit: Largest absolute logit.
        entropy: H / ln(visible keys), averaged over queries and heads; in [0, 1].
        collapsed_heads: Number of heads with an entropy below 0.05.
    """

    logit_std: float
    max_logit: float
    entropy: float
    collapsed_heads: int
    block: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Scales of one block.

    Attributes:
        name: Module path.
        rms_in: RMS of the states entering the block.
        rms_out: RMS of the states leaving it.
        update_ratio: ‖y − x‖ / ‖x‖ over all states; None if the entering states are zero.
        absmax: Largest absolute entry of the leaving states; None if they are not finite.
        kurtosis: Mean fourth power over the squared mean square of the leaving entries (3 for
            Gaussian entries); large if few dimensions carry the stream.
    """

    name: str
    rms_in: float
    rms_out: float
    update_ratio: float | None
    absmax: float | None
    kurtosis: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStats:
    """Statistics of one router's softmax over all experts.

    Attributes:
        name: Module path.
        entropy: Mean entropy over ln E.
        logit_std: Standard deviation over experts, averaged over tokens.
        max_violation: (largest − mean) / mean of the top-1 load (MaxVio).
        dead_experts: Number of experts below a tenth of the mean load, over all choices of every
            token; None if the probe has too few tokens to tell.
    """

    name: str
    entropy: float
    logit_std: float
    max_violation: float
    dead_experts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStats:
    """Statistics of one forward pass; a quantity that was not measured is None.

    Attributes:
        loss: Cross-entropy in nats on the probe, with its labels; None without labels.
        uniform_loss: ln of the number of classes.
        logit_std: Standard deviation of the output logits over classes, averaged over positions.
        copied: Nats of `loss` that each position's own input token costs: the mean log-sum-exp of
            the logits less that without the input token's. Near zero unless the output layer is
            the embedding and the stream still carries it; None where no token goes in.
        blocks: Scales of every block.
        attention: Statistics of every attention call.
        routers: Statistics of every router.
        activation_absmax: Largest absolute module output.
        activation_name: Module path of that output.
        aligned_response: Geometric mean over linear layers of mean‖x‖₁ / RMS(Wx): the relative
            change of a layer's output per unit learning rate if every weight moves by the rate
            in the worst direction.
        not_measured: Reason for every quantity that was not measured.
        non_finite: The first module whose output held NaN or infinity; None if none did.
    """

    loss: float | None = None
    uniform_loss: float | None = None
    logit_std: float | None = None
    blocks: tuple[BlockStats, ...] = ()
    attention: tuple[AttentionStats, ...] = ()
    routers: tuple[RouterStats, ...] = ()
    activation_absmax: float | None = None
    activation_name: str | None = None
    aligned_response: float | None = None
    not_measured: dict[str, str] = field(default_factory=dict)
    non_finite: str | None = None
    copied: float | None = None

    @property
    def attention_logit_std(self) -> float | None:
        """Largest `logit_std` of the attention calls."""
        return max((call.logit_std for call in self.attention), default=None)

    @property
    def attention_entropy(self) -> float | None:
        """Lowest entropy of the attention calls; 1 is uniform."""
        return min((call.entropy for call in self.attention), default=None)

    @property
    def attention_collapsed_heads(self) -> int | None:
        """Number of collapsed heads over all attention calls."""
        return sum(call.collapsed_heads for call in self.attention) if self.attention else None

    @property
    def router_entropy(self) -> float | None:
        """Lowest entropy of the routers; 1 is uniform."""
        return min((router.entropy for router in self.routers), default=None)

    @property
    def router_max_violation(self) -> float | None:
        """Largest load violation of the routers."""
        return max((router.max_violation for router in self.routers), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProfile:
    """The first gradient of a model.

    Attributes:
        grad_norm: Euclidean norm of the gradient on the first batch.
        grad_rms: Root mean square of the gradient's entries.
        grad_max: Largest absolute entry of the gradient (against the range of fp16).
        reason: Why nothing could be measured, or None.
    """

    grad_norm: float | None = None
    grad_rms: float | None = None
    grad_max: float | None = None
    reason: str | None = None


NO_PASS, NO_GRADIENT = ForwardStats(), GradientProfile()  # of a model that nothing ran through


def profile_of_gradient(sizes: Sequence[tuple[float, float, int]]) -> GradientProfile:
    """Return the profile of a gradient alone.

    Args:
        sizes: Sum of squares, largest absolute entry and number of entries of every part.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.
    """
    norm = math.sqrt(sum(square for square, _, _ in sizes))
    if not math.isfinite(norm):
        return GradientProfile(reason=GRADIENT_NOT_FINITE)
    if norm == 0:
        return GradientProfile(reason="the gradient is zero")
    return GradientProfile(
        grad_norm=norm,
        grad_rms=norm / math.sqrt(sum(count for _, _, count in sizes)),
        grad_max=max(largest for _, largest, _ in sizes),
    )


_MOST = 0.5  # share of the blocks from which on what they do counts
_AT = {
    "pre": "a norm before each branch",
    "post": "a norm after each sum",
    "none": "no norm on the stream or its branches",
    None: "norms at places that rksp does not know",
}


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
        if self.norm is None or self.norm == "none":
            return self.norm or ""
        at = str(self.norm)
        if self.branch_norm > _MOST:
            at = "sandwich" if self.behind_norm > _MOST else "branch"
        norms = "layer" if self.centered > _MOST else "rms"
        # The norms of OLMo 2's branches and those of its queries and keys come together.
        has_qk = (self.qk_norm or 0.0) > _MOST and at == "pre"
        said = ["parallel"] * (self.parallel > _MOST) + ["qk"] * has_qk
        said += ["experts"] * (self.routed > _MOST) + ["scaled"] * self.scales_output
        return " ".join([at, norms, *said])

    def __str__(self) -> str:
        after = self.branch_norm > _MOST
        said = ["a norm after each branch"] if after else [_AT[self.norm]]
        said += ["attention beside feed-forward"] * (self.parallel > _MOST)
        said += ["normalized queries and keys"] * ((self.qk_norm or 0.0) > _MOST)
        return ", ".join(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one forward pass of one model showed.

    Attributes:
        forward: Statistics of the pass.
        chains: (path, number of blocks) of the residual stream; empty without such a stream.
        width: Width of the residual stream, 0 without one; of the last chain if there are several.
        states: States per block, before duplicates are removed; likewise.
        forward_passes: Cost in passes over the probe, including the detection on one sequence.
        notes: Facts about how the stream was read, a sentence each.
        placement: Where the blocks normalize; None where that could not be read.
    """

    forward: ForwardStats
    chains: tuple[tuple[str, int], ...]
    width: int
    states: int
    forward_passes: float
    notes: tuple[str, ...] = ()
    placement: Placement | None = None
