"""Seeing every fused attention call for the length of a step."""

from __future__ import annotations

from rksp.measure.attention_stats import Look, _FusedAttention


class AttentionTap(_FusedAttention):
    """Calls `look(query, key, mask, is_causal, scale)` from when it is made until `remove`.

    Stands among the handles that `arm` returns. Function modes leave a stack from its top, so
    several may be removed in any order as long as no pass runs in between.
    """

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self.__enter__()

    def remove(self) -> None:
        """As a hook's handle."""
        self.__exit__(None, None, None)
