"""How many experts a configuration says a model has."""

from __future__ import annotations

_COUNTS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)
_PARTS = ("text_config", "ffn_config")  # where the text model's own, and DBRX's counts stand


def experts(config: object | None) -> int | None:
    """The number of experts that a router chooses from; None for a dense model.

    Args:
        config: Of transformers, of the zoo, or any object with its settings.
    """
    if getattr(config, "feed_forward", "moe") != "moe":  # the zoo's dense members
        return None
    for part in (config, *(getattr(config, name, None) for name in _PARTS)):
        for name in _COUNTS:
            try:
                count = getattr(part, name, None)
            except RuntimeError:  # transformers: it differs by layer
                continue
            if isinstance(count, int) and not isinstance(count, bool) and count > 1:
                return count
    return None
