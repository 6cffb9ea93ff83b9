"""Put a recipe's adapters on a model, and read what a module shows of itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from rksp.ground.errors import InputError
from rksp.recipe import LOW_RANK, USUAL_RANK, Recipe
from rksp.recipe.start import Start

_FORMATS = {torch.float16: "fp16-pure", torch.bfloat16: "bf16-pure"}
_MOSTLY = 0.9  # of the parameters; fixed positions are frozen in models that train from scratch
_SAME = 1e-6
# What makes a kind of adapters of LoRA, by the names of `peft.LoraConfig`.
_KINDS: dict[str, dict[str, object]] = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "pissa": {"init_lora_weights": "pissa"},
}
_EVERY = "all-linear"  # peft's word for every linear layer but the head


def with_adapters(
    model: nn.Module, recipe: Recipe, *, seed: int, whole: Sequence[str] = ()
) -> nn.Module:
    """Freeze a model's weights and add the adapters of a recipe.

    Where the recipe has no rank it is `USUAL_RANK`, and alpha is the rank where it has no alpha.
    The targets are then those that peft knows for the type of the model, or every linear layer.

    Args:
        model: Any model; its modules are changed in place. QLoRA's base is not quantized.
        recipe: A recipe whose `peft` is in `LOW_RANK`.
        seed: Seed of the adapters; the state of the global generator is unchanged.
        whole: Modules that are trained whole beside the adapters, such as a fresh head.

    Returns:
        The model, of which only the adapters and `whole` require gradients, in training mode.

    Raises:
        InputError: peft is not installed, or no module has one of the names.
    """
    try:
        import peft
    except ImportError:
        raise InputError("Adapters need the peft library; pip install 'rksp[peft]'.") from None
    if recipe.peft not in LOW_RANK:
        raise InputError(
            f"rksp cannot build the adapters of --peft {recipe.peft}; it builds "
            f"{', '.join(LOW_RANK)}."
        )
    rank = recipe.lora_rank or USUAL_RANK
    kind = getattr(getattr(model, "config", None), "model_type", None)
    usual: dict[str, Any] = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    known = usual.get(str(kind), _EVERY)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=cast(int, recipe.lora_alpha or rank),  # peft divides, so a fraction will do
        target_modules=list(recipe.lora_targets) or known,
        lora_dropout=0.0,
        modules_to_save=list(whole) or None,
        **cast(Any, _KINDS.get(recipe.peft, {})),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # GPT-2 stores its matrices transposed; peft sees it, corrects itself and warns.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        warnings.filterwarnings("ignore", category=FutureWarning)  # what peft asks transformers
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(cast(Any, model), config).train()
        except ValueError as error:
            raise InputError(f"The adapters do not fit the model: {error!s:.200}") from None


def as_trained(model: nn.Module, recipe: Recipe, task: str, *, seed: int) -> nn.Module:
    """Return a model as a recipe trains it: as it is, or with adapters if it has none yet.

    A classifier's head is trained whole beside the adapters, as peft does for classifiers.

    Args:
        model: The model; adapters change its modules in place.
        recipe: How it is trained.
        task: What it predicts, as in `rksp.models.source.Task`.
        seed: Seed of the adapters.

    Returns:
        The model.

    Raises:
        InputError: As in `with_adapters`.
    """
    if recipe.peft == "none" or adapters_of(model) is not None:
        return model
    is_classifier = task.endswith("classification")
    return with_adapters(model, recipe, seed=seed, whole=heads_of(model) if is_classifier else ())


def heads_of(model: nn.Module) -> list[str]:
    """Return the names of the parts of a transformers model with weights outside of its body."""
    body = getattr(model, "base_model_prefix", "")
    parts = [
        name for name, part in model.named_children() if next(part.parameters(), None) is not None
    ]
    return [name for name in parts if name != body] if body else []


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


def weights_show(model: nn.Module, config: object | None) -> Start:
    """Return the start that weights in memory show.

    Gains of norms start as one constant and differ after training. Where no norm has gains, the
    name that a configuration was loaded under decides. A mostly frozen model was trained.
    """
    if is_partly_frozen(model):
        return Start(kind="stored", because="most of it is frozen")
    gains = [gain for module in model.modules() if (gain := _gain(module)) is not None]
    if gains:
        if any(float(gain.max() - gain.min()) > _SAME for gain in gains):
            return Start(kind="stored", because="the gains of its norms are not as at the start")
    elif getattr(config, "name_or_path", ""):
        return Start(kind="stored", because="its configuration was loaded under a name")
    return Start(kind="scratch", because="its weights look random")


def _gain(module: nn.Module) -> torch.Tensor | None:
    weight = getattr(module, "weight", None)
    if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter):
        return None
    return weight.detach().float() if weight.dim() == 1 and len(weight) > 1 else None
