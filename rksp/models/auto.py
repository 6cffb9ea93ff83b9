"""Build the transformers class that was chosen for a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.models.configuration import quiet
from rksp.models.heads import MAPPINGS, Choice

if TYPE_CHECKING:
    from torch import nn


def make(chosen: Choice, *, trust_remote_code: bool = False) -> nn.Module:
    """Initialize a chosen class randomly under the global generator."""
    try:
        with quiet():
            return _make(chosen, _attention(chosen), trust_remote_code)
    except ValueError as error:
        if "attention implementation" not in str(error):
            raise
        return _make(chosen, "eager", trust_remote_code)  # part of the model lacks sdpa


def _make(chosen: Choice, attention: str, trust_remote_code: bool) -> nn.Module:
    import torch

    return _auto_class(chosen).from_config(
        chosen.config,
        attn_implementation=attention,
        trust_remote_code=trust_remote_code,
        dtype=torch.float32,
    )


def load(chosen: Choice, folder: Path) -> tuple[nn.Module, dict]:
    """Load the trained weights in a folder; return the model and what was missing."""
    import torch

    with quiet():
        return _auto_class(chosen).from_pretrained(
            folder,
            config=chosen.config,
            attn_implementation=_attention(chosen),
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )


def _auto_class(chosen: Choice) -> Any:
    import transformers

    return getattr(transformers, chosen.auto)


def _attention(chosen: Choice) -> str:
    """Return `sdpa`, which is faster and whose calls rksp can read, or `eager`.

    A model gets `eager` if it has no other implementation or caps its attention logits, which sdpa
    ignores.
    """
    kind = _auto_class(chosen)._model_mapping.get(type(chosen.config), None)
    kind = kind[0] if isinstance(kind, list | tuple) else kind
    parts = [chosen.config, getattr(chosen.config, "text_config", None)]
    capped = any(getattr(part, "attn_logit_softcapping", None) for part in parts)
    return "sdpa" if getattr(kind, "_supports_sdpa", True) and not capped else "eager"


def transformers_heads(kind: str) -> Mapping[str, list[str]]:
    """Return the names of the classes that the installed transformers has for a model type."""
    from transformers.models.auto import modeling_auto

    found = {head: getattr(modeling_auto, table, {}).get(kind) for head, table in MAPPINGS.items()}
    return {
        head: list(names) if isinstance(names, list | tuple) else [names]
        for head, names in found.items()
        if names
    }
