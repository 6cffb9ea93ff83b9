"""Read the number of experts from a configuration."""

from __future__ import annotations

_COUNTS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)
_PARTS = ("text_config", "ffn_config")  # hold the text model's counts, and DBRX's


def experts(config: object | None) -> int | None:
    """Return the number of experts that a router chooses from; None for a dense model.

    Args:
        config: A configuration of transformers or of the zoo, or any object with its settings.
    """
    if getattr(config, "feed_forward", "moe") != "moe":  # the zoo's dense members
        return None
    for part in (config, *(getattr(config, name, None) for name in _PARTS)):
        for name in _COUNTS:
            try:
                count = getattr(part, name, None)
            except RuntimeError:  # raised by transformers if the count differs by layer
                continue
            if isinstance(count, int) and not isinstance(count, bool) and count > 1:
                return count
    return None
