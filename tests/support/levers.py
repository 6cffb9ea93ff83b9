"""A table of levers with known sizes, in place of the one that is fitted."""

from __future__ import annotations

from rksp.classifiers.levers.effects import LeverSize, LeverTable


def lever_size(shift: float, **fields: object) -> LeverSize:
    """Return a sound size: shift in decades, known in four families, at no price."""
    families = dict.fromkeys(("gpt2", "llama", "olmo2", "zoo_rmsnorm"), shift)
    given: dict[str, object] = {
        **{"shift": shift, "low": shift / 2, "high": 1.5 * shift, "best": 0.0},
        **{"holds": 1.0, "misses": 0.1, "covered": 1.0, "loss": 0.0, "cost": 1.0},
        **{
            "failing": 8,
            "saved": 4,
            "failed": 4,
            "restored": 4,
            "pairs": 4,
            "models": 4,
            "families": families,
        },
        **{"bounds": 0, "stopped": 0, "pooled": False},
    }
    return LeverSize.model_validate(given | fields)


def lever_table(**shifts: float | LeverSize) -> LeverTable:
    """Return a table of decoders; a number is the shift of a sound lever."""
    sizes = {
        name: lever_size(value) if isinstance(value, float) else value
        for name, value in shifts.items()
    }
    return LeverTable(ladders=4, digest="0", sizes={"decoder": sizes})
