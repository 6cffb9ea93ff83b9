"""Choose the transformers class for a configuration, and its attention implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.models.configuration import quiet
from rksp.models.heads import MAPPINGS, Choice, Task, choose

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class ChosenClass(Choice):
    """A transformers class for a configuration, which it builds."""

    @property
    def auto_class(self) -> Any:
        """The auto class that builds it."""
        import transformers

        return getattr(transformers, self.auto)

    @property
    def attention(self) -> str:
        """Return `sdpa`, which is faster and whose calls rksp can read, or `eager`.

        A model gets `eager` if it has no other implementation or caps its attention logits, which
        sdpa ignores.
        """
        kind = self.auto_class._model_mapping.get(type(self.config), None)
        kind = kind[0] if isinstance(kind, list | tuple) else kind
        parts = [self.config, getattr(self.config, "text_config", None)]
        capped = any(getattr(part, "attn_logit_softcapping", None) for part in parts)
        return "sdpa" if getattr(kind, "_supports_sdpa", True) and not capped else "eager"

    def make(self, *, trust_remote_code: bool = False) -> nn.Module:
        """Initialize the model randomly under the global generator."""
        try:
            with quiet():
                return self._make(self.attention, trust_remote_code)
        except ValueError as error:
            if "attention implementation" not in str(error):
                raise
            return self._make("eager", trust_remote_code)  # part of the model lacks sdpa

    def _make(self, attention: str, trust_remote_code: bool) -> nn.Module:
        import torch

        return self.auto_class.from_config(
            self.config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
            dtype=torch.float32,
        )

    def load(self, folder: Path) -> tuple[nn.Module, dict]:
        """Load the trained weights in a folder; return the model and what was missing."""
        import torch

        with quiet():
            return self.auto_class.from_pretrained(
                folder,
                config=self.config,
                attn_implementation=self.attention,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )


def choose_class(
    target: str,
    config: Any,
    architectures: Any,
    task: Task | None = None,
    *,
    has_weights: bool = False,
) -> ChosenClass:
    """Choose a class among those that transformers has; see `rksp.models.heads.choose`."""
    chosen = choose(
        target, config, architectures, transformers_heads, task, has_weights=has_weights
    )
    return ChosenClass(
        auto=chosen.auto,
        name=chosen.name,
        config=chosen.config,
        task=chosen.task,
        notes=chosen.notes,
    )


def transformers_heads(kind: str) -> Mapping[str, list[str]]:
    """Return the names of the classes that the installed transformers has for a model type."""
    from transformers.models.auto import modeling_auto

    found = {head: getattr(modeling_auto, table, {}).get(kind) for head, table in MAPPINGS.items()}
    return {
        head: list(names) if isinstance(names, list | tuple) else [names]
        for head, names in found.items()
        if names
    }
