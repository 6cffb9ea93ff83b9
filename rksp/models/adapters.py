"""Put a recipe's adapters on a model with the peft library."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from rksp.ground.errors import InputError
from rksp.recipe import Recipe


def with_adapters(
    model: nn.Module, recipe: Recipe, *, seed: int, whole: Sequence[str] = ()
) -> nn.Module:
    """Freeze a model's weights and add the LoRA adapters of a recipe.

    Args:
        model: A transformers model; its modules are changed in place.
        recipe: A recipe with `peft` "lora", a rank, an alpha and the targets.
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
    config = peft.LoraConfig(
        r=cast(int, recipe.lora_rank),
        lora_alpha=cast(int, recipe.lora_alpha),  # peft divides, so a fraction will do
        target_modules=list(recipe.lora_targets),
        lora_dropout=0.0,
        modules_to_save=list(whole) or None,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # GPT-2 stores its matrices transposed; peft sees it, corrects itself and warns.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, config).train()
        except ValueError as error:
            raise InputError(f"The adapters do not fit the model: {error!s:.200}") from None
