"""Define grid designs: every combination of a few lists of values."""

from __future__ import annotations

import itertools
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rksp.errors import InputError, nearest
from rksp.lab.plan import LadderSpec, Plan
from rksp.models.zoo import FAMILIES


class LadderGrid(BaseModel):
    """The ladders of a full grid.

    Attributes:
        name: Name of the plan.
        base: Fields of `LadderSpec` that all ladders share.
        grid: Values by field; `recipe.warmup_steps` reaches into a nested field. The first list
            varies slowest, so that a truncated plan is complete in its first lists.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    base: dict[str, object]
    grid: dict[str, list[object]]

    def expand(self) -> list[LadderSpec]:
        """Return the ladders in the order of the lists; the same plan gives the same ladders."""
        return [
            LadderSpec.model_validate(self._fields(values))
            for values in itertools.product(*self.grid.values())
        ]

    def _fields(self, values: tuple[object, ...]) -> dict[str, object]:
        fields = {k: dict(v) if isinstance(v, dict) else v for k, v in self.base.items()}
        for name, value in zip(self.grid, values, strict=True):
            outer, _, inner = name.partition(".")
            if inner:
                fields[outer] = {**fields.get(outer, {}), inner: value}
            else:
                fields[outer] = value
        return fields


def read_ladder_plan(path: Path) -> Plan | LadderGrid:
    """Read a plan of either design: one with a `grid` is a grid, any other is random.

    Raises:
        InputError: The file is missing, is not a plan, or names an unknown family.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or "grid" not in document:
            return Plan.read(path)
        plan = LadderGrid.model_validate(document)
        ladders = plan.expand()
    except OSError as error:
        raise InputError(f"The plan {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValidationError) as error:
        first = str(error).splitlines()
        raise InputError(f"The plan {path} is not valid: {' '.join(first[:3])}") from None
    for family in {spec.family for spec in ladders} - set(FAMILIES):
        raise InputError(
            f"The plan {path} names an unknown family {family!r}{nearest(family, FAMILIES)}"
        )
    return plan
