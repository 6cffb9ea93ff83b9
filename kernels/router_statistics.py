"""Compute the load and the entropy of a router from one read of its logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.kernels import dispatch

_MAX_EXPERTS = 2048  # a row of experts must fit one tile of the program


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatistics:
    """Statistics of router probabilities over all experts.

    Attributes:
        entropy: `-sum p ln p` in nats, `[...]` float32.
        load: Number of tokens that chose each expert among their `top_k`, `[experts]` int64.
    """

    entropy: Tensor
    load: Tensor


def router_statistics(
    logits: Tensor, top_k: int = 1, *, is_sigmoid: bool = False
) -> RouterStatistics:
    """Compute entropy and load of router logits.

    Args:
        logits: `[..., experts]`, floating, before any top-k; -inf masks an expert.
        top_k: Experts chosen per token; of equal logits the lower index is chosen.
        is_sigmoid: Whether p is `sigmoid(z)` divided by its sum over the experts (DeepSeek-V3)
            instead of `softmax(z)`.

    Returns:
        The statistics. A token with NaN, +inf or only -inf has the entropy NaN and adds nothing to
        the load.

    Raises:
        InputError: There is no expert, the logits are not floating, or `top_k` is out of range.
    """
    if logits.ndim < 1 or not logits.is_floating_point() or logits.shape[-1] == 0:
        raise InputError(
            f"router_statistics needs floating logits [..., experts], got {list(logits.shape)} "
            f"{logits.dtype}. Pass the router's output before top-k."
        )
    if not 1 <= top_k <= logits.shape[-1]:
        raise InputError(
            f"top_k must be between 1 and the {logits.shape[-1]} experts, got {top_k}. "
            "Use the model's num_experts_per_tok."
        )
    limit = f"more than {_MAX_EXPERTS} experts" if logits.shape[-1] > _MAX_EXPERTS else None
    if dispatch.takes_triton("router_statistics", logits, limit=limit):
        return router_statistics_triton(logits, top_k, is_sigmoid=is_sigmoid)
    return router_statistics_reference(logits, top_k, is_sigmoid=is_sigmoid)


def router_statistics_reference(
    logits: Tensor, top_k: int = 1, *, is_sigmoid: bool = False
) -> RouterStatistics:
    """Compute `router_statistics` in plain torch, on any device; differentiable."""
    experts = logits.shape[-1]
    scores = logits.reshape(-1, experts)
    if scores.dtype != torch.float64:
        scores = scores.float()
    if is_sigmoid:
        # The softmax of ln sigmoid(z) is sigmoid(z) / sum sigmoid(z).
        scores = torch.nn.functional.logsigmoid(scores)
    is_good = torch.isfinite(scores.amax(-1)) & ~torch.isnan(scores).any(-1)
    if is_sigmoid:
        is_good = is_good & (logits.reshape(-1, experts) != float("inf")).all(-1)
    scores = torch.where(is_good[:, None], scores, torch.zeros_like(scores))
    logs = torch.log_softmax(scores, -1)  # shifted by the maximum, so a common offset costs nothing
    probabilities = logs.exp()
    # 0 times -inf is NaN, so the term of a masked expert is replaced before the product.
    shifted = torch.where(probabilities > 0, logs, 0.0)
    entropy = -(probabilities * shifted).sum(-1)
    ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen = (ordered[:, :top_k] > float("-inf")) & is_good[:, None]
    load = torch.zeros(experts, dtype=torch.int64, device=logits.device)
    load = load.scatter_add(0, order[:, :top_k].reshape(-1), chosen.reshape(-1).long())
    entropy = torch.where(is_good, entropy, float("nan")).float().reshape(logits.shape[:-1])
    return RouterStatistics(entropy=entropy, load=load)


def router_statistics_triton(
    logits: Tensor, top_k: int = 1, *, is_sigmoid: bool = False
) -> RouterStatistics:
    """Compute `router_statistics` in Triton with one read of the logits, for up to 2048 experts."""
    from rksp.kernels import programs  # triton is loaded only where it runs

    flat = logits.reshape(-1, logits.shape[-1])
    tokens, experts = flat.shape
    pad = max(2, 1 << (experts - 1).bit_length())
    rows = max(1, min(64, 4096 // pad))
    blocks = -(-tokens // rows)
    entropy = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    load = torch.empty(blocks, experts, dtype=torch.int32, device=logits.device)
    if tokens:
        programs.router_statistics[(blocks,)](
            flat,
            entropy,
            load,
            tokens,
            experts,
            *flat.stride(),
            TOP_K=top_k,
            SIGMOID=is_sigmoid,
            PAD=pad,
            BLOCK_M=rows,
        )
    return RouterStatistics(entropy=entropy.reshape(logits.shape[:-1]), load=load.sum(0))
