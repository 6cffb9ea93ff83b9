"""Compute the entropy of a router's choice, and the load of its experts."""

from __future__ import annotations

import torch
from torch import Tensor

from rksp.ground.errors import InputError


def router_entropy(logits: Tensor, *, is_sigmoid: bool = False) -> Tensor:
    """Compute the entropy of the router's probabilities of each token.

    Args:
        logits: `[..., experts]`, floating, before any top-k; -inf masks an expert.
        is_sigmoid: Whether p is `sigmoid(z)` divided by its sum over the experts (DeepSeek-V3)
            instead of `softmax(z)`.

    Returns:
        `-sum p ln p` in nats, `[...]` float32; NaN for a token with NaN, +inf or only -inf.

    Raises:
        InputError: There is no expert, or the logits are not floating.
    """
    scores, is_good = _scores(logits)
    if is_sigmoid:  # the softmax of ln sigmoid(z) is sigmoid(z) / sum sigmoid(z)
        scores = torch.nn.functional.logsigmoid(scores)
    logs = torch.log_softmax(scores, -1)  # shifted by the maximum, so a common offset costs nothing
    probabilities = logs.exp()
    # 0 times -inf is NaN, so the term of a masked expert is replaced before the product.
    entropy = -(probabilities * torch.where(probabilities > 0, logs, 0.0)).sum(-1)
    return torch.where(is_good, entropy, float("nan")).float().reshape(logits.shape[:-1])


def expert_load(logits: Tensor, top_k: int = 1) -> Tensor:
    """Count the tokens that choose each expert among their `top_k`.

    Args:
        logits: As in `router_entropy`. A token that it could not read chooses nothing.
        top_k: Experts chosen per token; of equal logits the lower index is chosen.

    Returns:
        `[experts]` int64.

    Raises:
        InputError: As in `router_entropy`, or `top_k` is out of range.
    """
    scores, is_good = _scores(logits)
    experts = scores.shape[-1]
    if not 1 <= top_k <= experts:
        raise InputError(
            f"top_k must be between 1 and the {experts} experts, got {top_k}. "
            "Use the model's num_experts_per_tok."
        )
    ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen = (ordered[:, :top_k] > float("-inf")) & is_good[:, None]
    load = torch.zeros(experts, dtype=torch.int64, device=logits.device)
    return load.scatter_add(0, order[:, :top_k].reshape(-1), chosen.reshape(-1).long())


def _scores(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits as `[tokens, experts]`, zero where a token is unreadable, and which are."""
    if logits.ndim < 1 or not logits.is_floating_point() or logits.shape[-1] == 0:
        raise InputError(
            f"A router needs floating logits [..., experts], got {list(logits.shape)} "
            f"{logits.dtype}. Pass its output before top-k."
        )
    scores = logits.reshape(-1, logits.shape[-1])
    if scores.dtype != torch.float64:
        scores = scores.float()
    is_good = torch.isfinite(scores.amax(-1)) & ~torch.isnan(scores).any(-1)
    return torch.where(is_good[:, None], scores, torch.zeros_like(scores)), is_good
