"""The comparison of two runs: what became of each issue, and what each difference moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rksp.documents.options import MeasureOptions
from rksp.documents.score import (
    ComparisonReport,
    DiffReport,
    EffectReport,
    ScoreReport,
)
from rksp.documents.terms import Gate, Terms
from rksp.ground.budgets import TABLE, reading
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import read_limited
from rksp.ground.text import one_line
from rksp.question.compare import RATES, compare, figures_of
from rksp.question.gate import judge
from rksp.question.question import Question
from rksp.question.run import Run, is_run_file
from rksp.recipe import Recipe
from rksp.report import blocks as page
from rksp.report.score.result import Result
from rksp.report.words import states

_CONFIG = MeasureOptions(evidence="config")
_OPEN = Terms(fail_on=["never"])
_LOST = (
    "the report names no model that rksp can read again, so it does not know what each difference "
    "moves; give the report's run file"
)
MODEL, ALL = "the model", "all together"  # names of effects beside the fields of the recipe
_DIGITS = 12  # of a digest
_RATE = "learning_rate"  # in which the edge is stated, so it moves none


def diff(
    a: str | Path | Result | ScoreReport,
    b: str | Path | Result | ScoreReport,
    *,
    fail_on: str | Sequence[str] = "never",
) -> DiffReport:
    """Compare two runs: which fields differ, where each stands, and what each difference moves.

        >>> import rksp
        >>> sides = [rksp.score("gpt2", lr=lr, evidence="config") for lr in (1e-4, 3e-1)]
        >>> rksp.diff(*sides).verdict
        ('ok', 'risk')

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
    more: dict[str, object] = {}
    if old.question is not None or new.question is not None:
        old, new = old.asked_again(), new.asked_again()
        more = {"target": (old.name, new.name)}
    changed = compare(old.report, new.report)
    if more:
        lost = (_LOST for one in (old, new) if one.question is None)
        effects = list(_effects(old, new, changed.settings))
        more |= {"effects": effects, "notes": [*changed.notes, *lost]}
    gate = judge(Gate.parse(fail_on), new.report, changed)
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
        question = Question.of(run, source, _OPEN).audited()[0]
        return cls(name=name, report=question.answer([_CONFIG]), question=question)

    def asked_again(self) -> _Side:
        """Return the side with a question where the report names a model that is still the same."""
        if self.question is not None:
            return self
        target = self.report.target
        run = Run.typed(target.name, self.report.recipe.model_dump())
        run = replace(run, said=None if target.start.is_scratch else target.start)
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
        return ScoreReport.model_validate_json(read_limited(file, TABLE))
    except ValueError:
        raise ArtifactError(
            f"{file} is neither a report of rksp score nor a run file that rksp reads."
        ) from None


def _effects(old: _Side, new: _Side, settings: Collection[str]) -> Iterator[EffectReport]:
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
    if name == MODEL:
        return replace(old, source=new.source)
    fields = dict(old.run.recipe) | {name: getattr(new.run.recipe, name)}
    origins = {**old.run.origins, name: new.run.origins[name]}
    return replace(old, run=replace(old.run, recipe=Recipe.parse(fields), origins=origins))


def blocks(report: DiffReport) -> list[page.Block]:
    """Return the page of a comparison."""
    old, new = report.verdict
    title = page.Title(eyebrow="rksp diff", name=" → ".join(dict.fromkeys(report.target)), about="")
    moved = f"still {new}" if old == new else f"{old} → {new}"
    said = page.Verdict(verdict=new, headline=f"{moved}: {states(report.changes)}")
    number = page.Numbers(report)
    return [title, said, *changed_blocks(report, number), *_moved(report, number)]


def _moved(report: DiffReport, number: page.Numbers) -> list[page.Block]:
    if not report.effects:
        return []
    head = ["With only this changed", *(name.capitalize() for name in report.effects[0].numbers)]
    rows: page.Rows = [
        [effect.name, *(_step(number, f"effects/{at}/numbers/{name}") for name in effect.numbers)]
        for at, effect in enumerate(report.effects)
        if not effect.why
    ]
    why = [f"{one.name} cannot be changed alone: {one.why}" for one in report.effects if one.why]
    from rksp.classifiers.levers.fields import edge_effect  # numpy, which no stored report needs

    fields = [n for one in report.effects if (n := one.name) in {*Recipe.model_fields} - {_RATE}]
    why += [f"{name} {edge_effect(name)}" for name in fields]
    shown: list[page.Block] = [page.Table(head, rows), *([page.Notes(why)] if why else [])]
    return [page.Section("What each difference moves", shown)]


def _step(number: page.Numbers, path: str) -> page.Words:
    old, new = (_figure(number, path, at) for at in "01")
    return "unchanged" if old == new else (old, " → ", new)


def _figure(number: page.Numbers, path: str, at: str) -> page.Number | str:
    """Write a probability in percent, and S, E and X with two digits, as every page does."""
    name = path.rpartition("/")[2]
    form = page.PERCENT if name == "P(failed)" else ""
    return number(f"{path}/{at}", form, 2 if name in RATES else 3)


def changed_blocks(changed: ComparisonReport, number: page.Numbers) -> list[page.Block]:
    """Return the issues that changed, then numbers and settings, then doubts.

    Args:
        changed: The comparison.
        number: Writes its numbers.
    """
    rows: page.Rows = [
        [one.state, one.code, one.message, "", one.layer]
        for one in changed.changes
        if one.state != "unchanged"
    ]
    figures: page.Rows = [
        [name, *(_figure(number, f"numbers/{name}", n) for n in "01")] for name in changed.numbers
    ]
    pairs = [row for row in figures if row[1] != row[2]]
    for name, values in changed.settings.items():
        said = [x and x[:_DIGITS] for x in values] if name == "config" else values
        stands = (f" ({at})" if at else "" for at in changed.places.get(name, (None, None)))
        pairs.append(
            [name, *(f"{x or page.MISSING}{at}" for x, at in zip(said, stands, strict=True))]
        )
    found: list[page.Block] = []
    if rows:
        head = ("", "Check", "Message", "Fix", "Module")
        found.append(page.Table(head, rows, look="items"))
    if pairs:
        found.append(page.Table(("Setting", "Old", "New"), pairs))
    return [*found, page.Notes(changed.notes)] if changed.notes else found
