"""Read what a module says about itself: number format, adapters, and whether it is trained."""

from __future__ import annotations

import torch
from torch import nn

_FORMATS = {torch.float16: "fp16-pure", torch.bfloat16: "bf16-pure"}
_MOSTLY = 0.9  # of the parameters; fixed positions are frozen in models that train from scratch
_SAME = 1e-6


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wraps, or the module itself."""
    return getattr(model, "_orig_mod", model)


def precision_of(model: nn.Module) -> str | None:
    """Return the precision, in a recipe's words, if all trained parameters are in half of it."""
    kinds = {p.dtype for p in model.parameters() if p.requires_grad}
    return _FORMATS.get(kinds.pop()) if len(kinds) == 1 else None


def adapters_of(model: nn.Module) -> str | None:
    """Return the kind of the adapters that are trained, in a recipe's words; None without any."""
    if any("lora_" in name for name, p in model.named_parameters() if p.requires_grad):
        return "lora"
    return "other" if any(kind.__name__ == "PeftModel" for kind in type(model).__mro__) else None


def trained_share(model: nn.Module) -> float:
    """Return the share of the parameters that are trained; the others are frozen."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, is_trained in sizes if is_trained) / sum(size for size, _ in sizes)


def is_partly_frozen(model: nn.Module) -> bool:
    """Tell whether more than a tenth of the parameters are not trained."""
    return trained_share(model) < _MOSTLY


def is_trained(model: nn.Module, config: object | None) -> bool:
    """Tell whether weights were trained before.

    Gains of norms start as one constant and differ after training. Where no norm has gains, the
    name that a configuration was loaded under decides. A mostly frozen model was trained.
    """
    if is_partly_frozen(model):
        return True
    gains = [gain for module in model.modules() if (gain := _gain(module)) is not None]
    if gains:
        return any(float(gain.max() - gain.min()) > _SAME for gain in gains)
    return bool(getattr(config, "name_or_path", ""))


def _gain(module: nn.Module) -> torch.Tensor | None:
    """Return the gains of a norm."""
    weight = getattr(module, "weight", None)
    if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter):
        return None
    return weight.detach().float() if weight.dim() == 1 and len(weight) > 1 else None
