"""What a sweep asks before it starts a trial: how likely is this one to fail?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rksp.grid.base import Base, make_cell
from rksp.grid.cell import Cell, Options
from rksp.grid.evaluate import gather_cell

if TYPE_CHECKING:
    from rksp.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The answer about one trial.

    Attributes:
        prune: Whether P(failed) is at or above the bar; never where rksp cannot tell.
        verdict: `ok`, `risk`, `indeterminate` or `not assessed`.
        probability_failed: At the trial's rate; None where rksp cannot tell.
        safe_learning_rate: The largest rate that would be safe for it, or None.
        reason: One sentence.
    """

    prune: bool
    verdict: str
    probability_failed: float | None
    safe_learning_rate: float | None
    reason: str


@dataclass(slots=True, kw_only=True)
class RiskGate:
    """Judges trials by their parameters; every model is profiled once, not once a trial.

    Names are those of `rksp grid`: recipe fields and their short forms (`lr`, `warmup`, `wd`),
    `target`, `seed`, and settings of the model.

    Attributes:
        target: The model, unless trials name it.
        overrides: Settings of the model that no trial varies.
        recipe: Fields of the recipe that no trial varies.
        options: Evidence, states, the bar (`threshold`).
        ignore: Parameters that are neither recipe nor model.
        keep: Models held in memory at once.
        profiles: How many were made so far.
    """

    target: str | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    recipe: Mapping[str, object] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    ignore: tuple[str, ...] = ()
    keep: int = 2
    profiles: int = 0
    _profiled: OrderedDict[str, Evidence] = field(default_factory=OrderedDict)

    def look(self, parameters: Mapping[str, object]) -> Look:
        """Judges one trial before it costs anything.

        Raises:
            InputError: A parameter is neither recipe nor model, or its value cannot be used.
        """
        from rksp.pipeline import judge

        base = Base(target=self.target, overrides=self.overrides, recipe=self.recipe)
        point = {k: v for k, v in _flat(parameters).items() if k not in self.ignore}
        cell = make_cell(base, point, "the trial")
        options = self.options
        evaluation = judge(
            self._of(cell), cell.recipe, threshold=options.threshold, risk=options.risk
        )
        risk = evaluation.risk
        if risk is None:
            return Look(
                prune=False,
                verdict="not assessed",
                probability_failed=None,
                safe_learning_rate=None,
                reason=evaluation.risk_missing or "",
            )
        can_tell = risk.verdict != "indeterminate"
        return Look(
            prune=risk.verdict == "risk",
            verdict=risk.verdict.value,
            probability_failed=risk.failed.probability if can_tell and risk.failed else None,
            safe_learning_rate=risk.safe_learning_rate if can_tell else None,
            reason="; ".join(risk.reasons) or risk.counterfactual or "",
        )

    def _of(self, cell: Cell) -> Evidence:
        key = cell.init_key(self.options)
        if key not in self._profiled:
            found = gather_cell(cell.target, cell.overrides, cell.seed, self.options)
            self._profiled[key] = found
            self.profiles += 1
            while len(self._profiled) > self.keep:
                self._profiled.popitem(last=False)
        self._profiled.move_to_end(key)
        return self._profiled[key]


def _flat(parameters: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested spaces, as Ray Tune has them, by dotted names."""
    flat: dict[str, object] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
