"""The shape of a model, from a trainer's keys to the settings of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rksp.recipe_files.table.draft import Draft

_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_GPT2 = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def read_shape(draft: Draft, **keys: str) -> dict[str, Any]:
    """Read the sizes of a model; without depth, width and heads there is no target.

    Args:
        draft: The draft.
        keys: Keys of the file by the setting of transformers, separated by blanks.

    Returns:
        A whole number for each setting, or None; the heads also count as key-value heads if those
        are asked for and not given. Empty if there is no target.
    """
    sizes = {name: draft.count(*keys[name].split()) for name in _NEEDED}
    if None in sizes.values():
        draft.no_target("the file does not give depth, width and heads; name a TARGET.")
        return {}
    sizes |= {name: draft.count(*key.split()) for name, key in keys.items()}
    if "num_key_value_heads" in sizes and sizes["num_key_value_heads"] is None:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return {name: sizes[name] for name in keys}


def as_gpt2(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rename sizes as GPT-2's configuration has them; other settings stay."""
    return {_GPT2.get(name, name): value for name, value in settings.items()}
