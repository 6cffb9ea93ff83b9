"""Judge a sweep's trial before it starts: how likely is it to fail?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rksp.grid.cell import Base, Cell, Options, make_cell
from rksp.grid.evaluate import gather_cell

if TYPE_CHECKING:
    from rksp.assessment.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The answer about one trial.

    Attributes:
        prune: True if P(failed) is at or above the bar; False where rksp cannot tell.
        verdict: `ok`, `caution`, `risk`, `cannot tell` or `not assessed`.
        probability_failed: P(failed) at the trial's rate; None where rksp cannot tell.
        start_here: The rate of the least expected loss, or None.
        do_not_exceed: The rate below which few edges lie, or None.
        reason: One sentence.
    """

    prune: bool
    verdict: str
    probability_failed: float | None
    start_here: float | None
    do_not_exceed: float | None
    reason: str

    @property
    def why(self) -> str:
        """P(failed), where it is known, and the reason."""
        chance = self.probability_failed
        return self.reason if chance is None else f"P(failed) is {chance:.0%}. {self.reason}"


@dataclass(slots=True, kw_only=True)
class RiskGate:
    """Judges trials by their parameters; profiles every model once, not once a trial.

    Names are those of `rksp grid`: recipe fields and their short forms (`lr`, `warmup`, `wd`),
    `target`, `seed`, and settings of the model.

    Attributes:
        target: The model, unless trials name it.
        overrides: Settings of the model that no trial varies.
        recipe: Fields of the recipe that no trial varies.
        options: Evidence, states and the bar (`threshold`); by default the evidence is the
            configuration, which costs milliseconds a trial.
        ignore: Parameters that are neither recipe nor model.
        keep: The number of models held in memory at once.
        profiles: The number of profiles made so far.
    """

    target: str | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    recipe: Mapping[str, object] = field(default_factory=dict)
    options: Options = field(default_factory=lambda: Options(evidence="config"))
    ignore: tuple[str, ...] = ()
    keep: int = 2
    profiles: int = 0
    _profiled: OrderedDict[str, Evidence] = field(default_factory=OrderedDict)

    def look(self, parameters: Mapping[str, object]) -> Look:
        """Judge one trial before it costs anything.

        Raises:
            InputError: A parameter is neither recipe nor model, or its value cannot be used.
        """
        from rksp.assessment.pipeline import judge

        base = Base(target=self.target, overrides=self.overrides, recipe=self.recipe)
        point = {k: v for k, v in _flat(parameters).items() if k not in self.ignore}
        cell = make_cell(base, point, "the trial")
        options = self.options
        evaluation = judge(
            self._of(cell),
            cell.recipe,
            threshold=options.threshold,
            risk=options.risk,
            with_details=False,
        )
        risk = evaluation.risk
        if risk is None:
            return Look(
                prune=False,
                verdict="not assessed",
                probability_failed=None,
                start_here=None,
                do_not_exceed=None,
                reason=evaluation.risk_missing or "",
            )
        can_tell = risk.verdict != "cannot tell"
        return Look(
            prune=risk.verdict == "risk",
            verdict=risk.verdict.value,
            probability_failed=risk.probability_failed if can_tell else None,
            start_here=risk.start_here if can_tell else None,
            do_not_exceed=risk.do_not_exceed if can_tell else None,
            reason="; ".join(risk.reasons) or risk.counterfactual or "",
        )

    def _of(self, cell: Cell) -> Evidence:
        key = cell.init_key(self.options)
        if key not in self._profiled:
            found = gather_cell(
                cell.target,
                cell.overrides,
                cell.seed,
                self.options,
                starts_trained=cell.starts_trained,
            )
            self._profiled[key] = found
            self.profiles += 1
            while len(self._profiled) > self.keep:
                self._profiled.popitem(last=False)
        self._profiled.move_to_end(key)
        return self._profiled[key]


def _flat(parameters: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested search spaces, as Ray Tune has them, to dotted names."""
    flat: dict[str, object] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
