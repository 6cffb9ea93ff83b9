"""The optimizers that a recipe can name. The table needs no torch; making one does."""

from rksp.optimizers.table import (
    OPTIMIZERS,
    Family,
    OptimizerSpec,
    make_optimizer,
    optimizer_named,
    optimizer_spec,
)

__all__ = [
    "OPTIMIZERS",
    "Family",
    "OptimizerSpec",
    "make_optimizer",
    "optimizer_named",
    "optimizer_spec",
]
