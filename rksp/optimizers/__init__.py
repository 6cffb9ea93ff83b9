"""List and make the optimizers that a recipe can name; only making one needs torch."""

from rksp.optimizers.table import (
    OPTIMIZERS,
    Family,
    OptimizerSpec,
    make_optimizer,
    optimizer_named,
    optimizer_of_class,
    optimizer_spec,
)

__all__ = [
    "OPTIMIZERS",
    "Family",
    "OptimizerSpec",
    "make_optimizer",
    "optimizer_named",
    "optimizer_of_class",
    "optimizer_spec",
]
