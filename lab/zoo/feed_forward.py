"""Define the three feed-forward layers of the zoo: dense, mixture of experts, KAN."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.zoo.config import ZooConfig


class MLP(nn.Module):
    """Two matrices around GELU, or three around a SiLU gate (SwiGLU; Shazeer, 2020)."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate = (
            nn.Linear(width, inner, bias=config.bias) if config.activation == "swiglu" else None
        )
        self.up = nn.Linear(width, inner, bias=config.bias)
        self.inner_norm = nn.LayerNorm(inner) if config.has_inner_norms else nn.Identity()
        self.down = nn.Linear(inner, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map states `[..., width]` to `[..., width]`."""
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(self.inner_norm(inner))


class MixtureOfExperts(nn.Module):
    """Top-k softmax routing over `MLP` experts; for k > 1 the chosen weights sum to one.

    Every expert processes every token, and unrouted outputs get weight zero. This is exact, has a
    static shape (so replicas can be batched), and at the zoo's sizes is as fast as gathering.

    After a forward pass, `aux_loss` holds E Σ f_i P_i (Fedus et al., 2021, eq. 4) plus the mean
    squared log-partition (Zoph et al., 2022, eq. 5), each times its coefficient.
    """

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(MLP(config) for _ in range(config.num_experts))
        self.aux_loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map states `[..., width]` to `[..., width]`, and store `aux_loss`."""
        config = self.config
        logits = self.router(x).float()
        probabilities = logits.softmax(-1)
        kept, chosen = probabilities.topk(config.num_experts_per_tok, dim=-1)
        # A single expert keeps its probability, because otherwise no gradient reaches the router.
        if config.num_experts_per_tok > 1:
            kept = kept / kept.sum(-1, keepdim=True)
        weights = torch.zeros_like(probabilities).scatter(-1, chosen, kept)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)

        routed = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0)
        axes = tuple(range(probabilities.dim() - 1))
        load = routed.mean(axes) / config.num_experts_per_tok
        balance = config.num_experts * (load * probabilities.mean(axes)).sum()
        z_loss = logits.logsumexp(-1).square().mean()
        self.aux_loss = config.router_aux_loss_coef * balance + config.router_z_loss_coef * z_loss
        return (outputs * weights.unsqueeze(-2).to(outputs.dtype)).sum(-1)


class KANLayer(nn.Module):
    """A linear map of SiLU(x) plus a linear map of the B-spline basis of each input.

    The layer follows Liu et al. (2024), with one difference: inputs pass through tanh, so that they
    stay on the grid [-1, 1]. The paper moves the grid during training instead.
    """

    def __init__(self, inputs: int, outputs: int, *, grid: int, order: int) -> None:
        super().__init__()
        self.order = order
        step = 2.0 / grid
        knots = torch.arange(-order, grid + order + 1, dtype=torch.float32) * step - 1.0
        self.register_buffer("knots", knots, persistent=False)
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.spline = nn.Linear(inputs * (grid + order), outputs, bias=False)

    def basis(self, x: Tensor) -> Tensor:
        """Evaluate the B-splines at x, `[..., inputs]` → `[..., inputs, grid + order]`.

        This is the Cox–de Boor recursion; the values sum to one inside the grid.
        """
        t, x = cast(Tensor, self.knots), x.unsqueeze(-1)
        values = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            rising = (x - t[: -(k + 1)]) / (t[k:-1] - t[: -(k + 1)])
            falling = (t[k + 1 :] - x) / (t[k + 1 :] - t[1:-k])
            values = rising * values[..., :-1] + falling * values[..., 1:]
        return values

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., inputs]` to `[..., outputs]`."""
        return self.base(F.silu(x)) + self.spline(self.basis(torch.tanh(x)).flatten(-2))


class KAN(nn.Module):
    """Two KAN layers with the hidden width of a feed-forward layer of ratio one."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        width = config.hidden_size
        shape = {"grid": config.kan_grid, "order": config.kan_order}
        self.up = KANLayer(width, width, **shape)
        self.down = KANLayer(width, width, **shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map states `[..., width]` to `[..., width]`."""
        return self.down(self.up(x))


def feed_forward(config: ZooConfig) -> nn.Module:
    """Make the feed-forward layer that `config.feed_forward` names."""
    return {"mlp": MLP, "moe": MixtureOfExperts, "kan": KAN}[config.feed_forward](config)
