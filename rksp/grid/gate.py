"""Judge a sweep's trial before it starts: how likely is it to fail?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rksp.grid.cell import Base, Cell, Options, make_cell
from rksp.grid.evaluate import ask
from rksp.recipe_files.columns import flat
from rksp.run import Question

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

    prune: bool = False
    verdict: str
    probability_failed: float | None = None
    start_here: float | None = None
    do_not_exceed: float | None = None
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
    _profiled: OrderedDict[str, tuple[Question, Evidence]] = field(default_factory=OrderedDict)

    def look(self, parameters: Mapping[str, object]) -> Look:
        """Judge one trial before it costs anything.

        Args:
            parameters: By name; nested ones, as Ray Tune and Hydra have them, by dotted names.

        Raises:
            InputError: A parameter is neither recipe nor model, or its value cannot be used.
        """
        base = Base(target=self.target, overrides=self.overrides, recipe=self.recipe)
        point = {k: v for k, v in flat(parameters).items() if k not in self.ignore}
        cell = make_cell(base, point, "the trial")
        question, evidence = self._of(cell)
        question = replace(question, run=replace(question.run, recipe=cell.recipe))
        evaluation = question.judged(evidence, with_details=False)
        risk = evaluation.risk
        if risk is None:
            return Look(verdict="not assessed", reason=evaluation.risk_missing or "")
        reason = "; ".join(risk.reasons) or risk.counterfactual or ""
        if risk.verdict == "cannot tell":
            return Look(verdict="cannot tell", reason=reason)
        return Look(
            prune=risk.verdict == "risk",
            verdict=risk.verdict.value,
            probability_failed=risk.probability_failed,
            start_here=risk.start_here,
            do_not_exceed=risk.do_not_exceed,
            reason=reason,
        )

    def _of(self, cell: Cell) -> tuple[Question, Evidence]:
        key = cell.init_key(self.options)
        if key not in self._profiled:
            about = (cell.target, cell.overrides, cell.seed, self.options, cell.recipe)
            self._profiled[key] = ask(*about, starts_trained=cell.starts_trained)
            self.profiles += 1
            while len(self._profiled) > self.keep:
                self._profiled.popitem(last=False)
        self._profiled.move_to_end(key)
        return self._profiled[key]
