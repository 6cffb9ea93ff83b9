"""Trainers' names for the same optimizers, schedules and precisions, and for models: `models.toml`.

`shape_of` is for runs that start from random weights: a model type and the settings to change.
`hub_id_of` is for runs that start from a folder of downloaded weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rksp.ground.tables import packaged_toml, row_of
from rksp.models.names import published, published_like
from rksp.recipe.optimizers.table import optimizer_named
from rksp.recipe_files.table.spellings import meant_by

_SCHEDULES = (  # the first that the name matches, and what is lost by calling it that
    (r"stable_decay|wsd|trapez|warmup_stable", "wsd", ""),
    (r"restart", "cosine", "its restarts are left out"),
    (r"cosine", "cosine", ""),
    (r"^inv$", "inverse_sqrt", "the nearest shape"),
    (r"^warmuplr$", "inverse_sqrt", ""),  # ESPnet's; DeepSpeed's WarmupLR is constant
    (r"inv.*sq(ua)?rt|inv.*square_?root|noam|rsqrt", "inverse_sqrt", ""),
    (r"poly", "polynomial", ""),
    (r"exponential", "exponential", ""),
    (r"multi_?step|^step|steplr$", "step", ""),
    (r"warmupdecaylr|warmup_?annealing", "linear", ""),
    (r"WarmupLR|constant|none|plateau|identity", "constant", ""),
    (r"linear|tri_stage", "linear", ""),
)
_PRECISIONS = (
    (r"^fp8$|float8|^mx|fp4", "fp8"),
    (r"^(pure_bf16|bf16[-_]true|bf16[-_]pure)$", "bf16-pure"),
    (r"^(pure_fp16|fp16[-_]true|16[-_]true|fp16[-_]pure)$", "fp16-pure"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|^f16$|^16|half", "fp16"),
    (r"fp32|float32|^f32$|^32|tf32|full|fp64|float64|double", "fp32"),
)


# Trainers' words for the decay at the end of a wsd schedule.
DECAY_SHAPES = {"linear": "linear", "cosine": "cosine", "1-sqrt": "sqrt", "minus_sqrt": "sqrt"}


def objective_of(word: str) -> str | None:
    """Return the likeliest objective of an estimator, a stage or a task, in small letters."""
    return next(iter(meant_by({word})), None)


def optimizer_of(name: str) -> tuple[str | None, str]:
    """Return rksp's name for an optimizer, or None, and what the name does not convey."""
    spec, loss = optimizer_named(name)
    return (None if spec is None else spec.name), loss


def schedule_of(name: str) -> tuple[str | None, str]:
    """Return rksp's name for a schedule, or None, and what the name does not convey."""
    written = name.rsplit(".", 1)[-1].replace("-", "_")
    plain = "WarmupLR" if written == "WarmupLR" else written.lower()
    return next(
        ((schedule, loss) for pattern, schedule, loss in _SCHEDULES if re.search(pattern, plain)),
        (None, ""),
    )


def precision_of(name: str) -> str | None:
    """Return rksp's name for a precision, or None if it is unknown."""
    found = (ours for pattern, ours in _PRECISIONS if re.search(pattern, name.lower()))
    return next(found, None)


Shape = tuple[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class _Family:
    """Models of one type; the last columns of a row may be left out."""

    type: str
    columns: str
    models: Mapping[str, list[object]]
    shared: Mapping[str, object] = field(default_factory=dict)
    absent: str = ""


def _table(name: str) -> Any:
    return packaged_toml("rksp.recipe_files", "models.toml")[name]


@cache
def _shapes() -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for row in _table("families"):
        family = row_of(_Family, row, where="models.toml")
        shared = {**family.shared, **dict.fromkeys(family.absent.split())}
        for name, values in family.models.items():
            sizes = dict(zip(family.columns.split(), values, strict=False))
            found[name] = (family.type, sizes | shared)
    return found


def shape_of(name: str) -> Shape | None:
    """Look up model type and settings by a trainer's model name, or by its longest known prefix.

    A name that no trainer has of its own is that of a published model.
    """
    plain = name.lower().replace("-", "_").replace(":", "_").replace("/", "_")
    known = [key for key in _shapes() if plain == key or plain.startswith(f"{key}_")]
    return _shapes()[max(known, key=len)] if known else shape_published(plain.replace("_", "-"))


def shape_published(name: str) -> Shape | None:
    """Return model type and settings of a published model, to be trained from scratch."""
    row = published(name) or published_like(name)
    if row is None:
        return None
    return str(row.settings["model_type"]), {
        k: v for k, v in row.settings.items() if k != "model_type"
    }


def hub_id_of(folder: str) -> str | None:
    """Return the Hub id of the published model that a folder of weights is called like."""
    row = published_like(folder)
    return None if row is None else row.id
