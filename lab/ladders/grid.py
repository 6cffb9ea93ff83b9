"""Define grid designs: every combination of a few lists of values."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lab.ladders.pairs import LadderPairs
from lab.ladders.plan import MOST_LADDERS, LadderSpec, Plan, with_values
from lab.zoo import FAMILIES
from rksp.ground.errors import InputError, nearest
from rksp.ground.model import Strict
from rksp.ground.text import one_line
from rksp.recipe_files.parse.content import parse_file


class LadderGrid(Strict):
    """The ladders of a full grid.

    Attributes:
        name: Name of the plan.
        base: Fields of `LadderSpec` that all ladders share.
        grid: Values by field; `recipe.warmup_steps` reaches into a nested field. The first list
            varies slowest, so that a truncated plan is complete in its first lists.
    """

    name: str
    base: dict[str, Any]
    grid: dict[str, list[Any]]

    def expand(self) -> list[LadderSpec]:
        """Return the ladders in the order of the lists; the same plan gives the same ladders."""
        if math.prod(map(len, self.grid.values())) > MOST_LADDERS:
            raise InputError(f"The grid {self.name!r} has more than {MOST_LADDERS} ladders.")
        return [
            LadderSpec.model_validate(with_values(self.base, zip(self.grid, values, strict=True)))
            for values in itertools.product(*self.grid.values())
        ]


LadderPlan = Plan | LadderGrid | LadderPairs


# The key that only plans of one design have.
_DESIGNS: dict[str, Any] = {"grid": LadderGrid, "levers": LadderPairs}


def read_ladder_plan(path: Path) -> LadderPlan:
    """Read a plan: one with a `grid` is a grid, one with `levers` has pairs.

    Any other is a random design.

    Raises:
        InputError: The file is missing, is not a plan, or names an unknown family.
    """
    document = parse_file(path).data
    keys = document if isinstance(document, dict) else {}
    design = next((design for key, design in _DESIGNS.items() if key in keys), Plan)
    try:
        plan = design.model_validate(document)
        ladders = plan.expand()
    except InputError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the plan"
        raise InputError(
            f"The plan {path} is not valid: {one_line(where, 200)}: {first['msg']:.300}."
        ) from None
    except (ValueError, TypeError, OverflowError) as error:  # what NumPy cannot draw from
        raise InputError(f"The plan {path} cannot be drawn: {error!s:.200}.") from None
    for family in sorted({spec.family for spec in ladders} - set(FAMILIES)):
        raise InputError(
            f"The plan {path} names an unknown family {family!r}{nearest(family, FAMILIES)}"
        )
    return plan
