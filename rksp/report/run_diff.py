"""Compare two runs, each a report or a run file, and say what each difference moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rksp.documents.options import MeasureOptions
from rksp.documents.score import DiffReport, EffectReport, ScoreReport
from rksp.ground.budgets import reading
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.text import one_line
from rksp.recipe import Recipe
from rksp.report.diff import compare, figures_of
from rksp.report.finish import finished
from rksp.report.gate import Gate
from rksp.report.score.result import Result
from rksp.run import Question, Run, is_run_file

_CONFIG = MeasureOptions(evidence="config")
_LOST = (
    "the report names no model that rksp can read again, so it does not know what each difference "
    "moves; give the report's run file"
)
MODEL, ALL = "the model", "all together"  # names of effects beside the fields of the recipe


def diff(
    a: str | Path | Result | ScoreReport,
    b: str | Path | Result | ScoreReport,
    *,
    fail_on: str | Sequence[str] = "never",
) -> DiffReport:
    """Compare two runs: which fields differ, where each stands, and what each difference moves.

    Two reports are compared as they are. Beside a run file, a report's own run is asked again from
    its configuration, as the file is, and each difference is put into `a` alone.

    Args:
        a: A result of `rksp.score`, a stored report, or a trainer's run file.
        b: The same.
        fail_on: What fails the gate among what is new or worse: `error`, `warning` or `never`.

    Returns:
        The document that `rksp diff` writes; its numbers are probabilities and learning rates.

    Raises:
        InputError: A file cannot be read, or describes no model.
        ArtifactError: A file is neither a report nor a run file.
    """
    old, new = (_Side.of(one) for one in (a, b))
    more: dict[str, Any] = {}
    if old.question is not None or new.question is not None:
        old, new = old.asked_again(), new.asked_again()
        more = {"target": (old.name, new.name)}
    changed = compare(old.report, new.report)
    if more:
        more["effects"] = list(_effects(old, new, changed.settings))
        more["notes"] = [*changed.notes, *(_LOST for one in (old, new) if one.question is None)]
    gate = Gate.parse(fail_on).judge(new.report, changed)
    return DiffReport.of(changed, gate=gate, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two; `question` is None where there is only a report."""

    name: str
    report: ScoreReport
    question: Question | None = None

    @classmethod
    def of(cls, given: str | Path | Result | ScoreReport) -> _Side:
        report = given.report if isinstance(given, Result) else given
        if isinstance(report, ScoreReport):
            return cls(name=report.target.name, report=report)
        name = str(report)
        if not is_run_file(name):
            return cls(name=name, report=_stored(Path(name)))
        with reading(f"the run file {one_line(name, 200)}"):
            run = Run.read(name, {})
        return cls.asked(name, run)

    @classmethod
    def asked(cls, name: str, run: Run) -> _Side:
        from rksp.models.resolve import resolve  # no report needs it

        with reading(f"the model {one_line(run.target, 200)}"):
            source = resolve(run.target, overrides=run.overrides, counts=False)
        question = Question.of(run, source).audited()[0]
        report = question.reported([question.evaluated(_CONFIG)])
        report = finished(report, question.run, Gate.parse("never"))[0]
        return cls(name=name, report=report, question=question)

    def asked_again(self) -> _Side:
        """Return the side with a question where the report names a model that is still the same."""
        if self.question is not None:
            return self
        target = self.report.target
        run = Run.typed(target.name, self.report.recipe.model_dump())
        run = replace(run, starts_trained=target.starts_trained)
        try:
            again = _Side.asked(self.name, run)
        except InputError:
            return self
        if again.report.target.config_hash != target.config_hash:
            return self
        kept = {name: getattr(self.report, name) for name in ("recipe_places", "recipe_origins")}
        return replace(again, report=again.report.model_copy(update=kept))


def _stored(file: Path) -> ScoreReport:
    try:
        return ScoreReport.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ArtifactError(
            f"{file} is neither a report of rksp score nor a run file that rksp reads."
        ) from None


def _effects(old: _Side, new: _Side, settings: Collection[str]) -> Iterator[EffectReport]:
    """Yield what each difference moves in the old run, then all; nothing without both questions."""
    if old.question is None or new.question is None:
        return
    before, after = figures_of(old.report), figures_of(new.report)
    changes = [name for name in settings if name in Recipe.model_fields]
    changes += [MODEL] if set(settings) - Recipe.model_fields.keys() else []
    for name in changes:
        try:
            asked = _with(old.question, new.question, name)
            found, why = figures_of(asked.reported([asked.evaluated(_CONFIG)])), ""
        except InputError as error:
            found, why = dict.fromkeys(before), str(error)
        yield EffectReport(name=name, numbers={k: (before[k], found[k]) for k in before}, why=why)
    if len(changes) > 1:
        yield EffectReport(name=ALL, numbers={k: (before[k], after[k]) for k in before})


def _with(old: Question, new: Question, name: str) -> Question:
    """Return the old question with one field of the new one.

    Raises:
        InputError: The field cannot be combined with the others.
    """
    if name == MODEL:
        return replace(old, source=new.source)
    fields = dict(old.run.recipe) | {name: getattr(new.run.recipe, name)}
    origins = {**old.run.origins, name: new.run.origins[name]}
    return replace(old, run=replace(old.run, recipe=Recipe.parse(fields), origins=origins))
