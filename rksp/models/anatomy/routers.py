"""Find the routers of mixtures of experts, and compute their logits from states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.anatomy.weight_view import at_least_float, gathered

_ROUTER_NAMES = ("gate", "router", "wg")  # but not `gate_proj` of a gated feed-forward layer
_TOP_K = ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "k")
_SIGMOID_TYPES = ("Llama4", "DeepseekV3", "Glm4Moe", "Dots1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Router:
    """A mixture-of-experts layer's router.

    The states that it scores are the first tensor of the block's call. It is best to recompute the
    logits from them in float32, because the output of routers differs between models and releases.

    Attributes:
        path: Path of the module that holds the weight.
        block: That layer.
        weight: `[experts, width]`.
        bias: Bias of the logits, `[experts]`, or None.
        top_k: Experts chosen per token.
        is_sigmoid: Whether scores are sigmoids instead of a softmax (DeepSeek-V3, Llama 4).
        correction: Buffer added to scores only for the choice (auxiliary-loss-free balance), or
            None.
    """

    path: str
    block: nn.Module
    weight: nn.Parameter
    bias: nn.Parameter | None
    top_k: int
    is_sigmoid: bool
    correction: Tensor | None = None

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Compute logits `[tokens, experts]` of states `[..., width]`, at least float32."""
        rows = at_least_float(states.detach().flatten(0, -2))
        bias = None if self.bias is None else gathered(self.bias).to(rows.dtype)
        return nn.functional.linear(rows, self.rows().to(rows.dtype), bias)

    def rows(self) -> Tensor:
        """Return the weight `[experts, width]`, detached, at least float32, from all shards."""
        return at_least_float(gathered(self.weight))


def find_routers(model: nn.Module) -> Iterator[Router]:
    """Yield the routers of a model, recognized by their names and by the experts beside them."""
    for path, block in model.named_modules():
        experts = _expert_count(block)
        for name in _ROUTER_NAMES if experts else ():
            child = getattr(block, name, None)
            for holder_name, holder in _with_weight(child) if isinstance(child, nn.Module) else ():
                if holder.weight.shape[0] != experts:
                    continue
                prefix = f"{path}." if path else ""
                yield Router(
                    path=f"{prefix}{name}" + (f".{holder_name}" if holder_name else ""),
                    block=block,
                    weight=holder.weight,
                    bias=getattr(holder, "bias", None),
                    top_k=min(_top_k(definite(child), block), experts),
                    is_sigmoid=_is_sigmoid(definite(child), block),
                    correction=_correction(definite(child), block),
                )
                break


def _with_weight(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, inner in module.named_modules():
        weight = getattr(inner, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 2:
            yield name, inner


def _expert_count(block: nn.Module) -> int:
    """Count the experts beside a router; 0 if there are none."""
    for name, child in block.named_children():
        if name in _ROUTER_NAMES:
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and "expert" in name:
            return len(child)
        counts = {p.shape[0] for p in child.parameters(recurse=False) if p.dim() == 3}
        if len(counts) == 1:
            return counts.pop()
        if "expert" in name and isinstance(count := getattr(child, "num_experts", None), int):
            return count  # DBRX stores all experts in one matrix
    return 0


def _top_k(*places: nn.Module) -> int:
    named = (*places, *(getattr(place, "config", None) for place in places))
    for place in named:
        for name in _TOP_K:
            if isinstance(value := getattr(place, name, None), int) and value > 0:
                return value
    return 1


def _is_sigmoid(*places: nn.Module) -> bool:
    if any(type(place).__name__.startswith(_SIGMOID_TYPES) for place in places):
        return True
    named = (*places, *(getattr(place, "config", None) for place in places))
    functions = (getattr(place, "scoring_func", None) for place in named)
    return any(function == "sigmoid" for function in functions)


def _correction(*places: nn.Module) -> Tensor | None:
    found = (getattr(place, "e_score_correction_bias", None) for place in places)
    return next((value for value in found if isinstance(value, Tensor)), None)
