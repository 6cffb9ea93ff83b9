"""What became of runs that are over, and why: the answer of `rksp why`."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rksp.calls.score import score
from rksp.documents.confirm import WatchReport
from rksp.documents.own_runs import CourseReport, RateReport, RunsReport
from rksp.ground.errors import InputError, RkspError, check_kind
from rksp.ground.factory import refuse_factory
from rksp.ground.files import read_head
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.models.resolve import resolve
from rksp.models.source import ModelSource
from rksp.own_runs.course import Fate
from rksp.own_runs.history import History, history_of
from rksp.own_runs.interpret import Words, is_bookkeeping
from rksp.own_runs.metrics import is_rate
from rksp.own_runs.registry import READERS, read_raw_runs
from rksp.own_runs.run import Curve, RawRun
from rksp.own_runs.scorecard import history_report, scorecard
from rksp.own_runs.story import Story, checkpoints_of, course_of
from rksp.question.gate import deciding
from rksp.question.run import Run, is_run_file
from rksp.recipe import Recipe
from rksp.recipe.start import decide_start

_EARLY = 100  # steps: at the first value of a later one a model has learned
_LEARNED = 0.6  # of a guess: no run from random weights is below it by then
_MOST_POINTS = 400  # of a curve in the document
_MOST_FINDINGS = 5
_ROUNDED = 1.01  # a logged rate may be rounded
_MOST_BESIDE = 40  # files of a folder that may be the run's own
_MOST_DIFFERENT = 6
_HEAD, _RUN = 64, b'{"kind": "run"'  # how a run begins in the log of a watch


def why(
    paths: str | Path | Sequence[str | Path],
    target: str | ModelSource | None = None,
    recipe: Recipe | Mapping[str, object] | str | Path | None = None,
    *,
    metric: str | None = None,
) -> RunsReport:
    r"""Say what became of past runs: whether they failed, when, what moved first, and why.

    Args:
        paths: Logs, and folders of them; see the README of `rksp.own_runs` for the formats.
        target: The model that the runs trained, as for `rksp.score`; by default what the runs or
            a run file beside them say.
        recipe: Fields of `rksp.Recipe` that the runs do not say, or the run file that made them.
        metric: The curve to judge, by its name in the log.

    Raises:
        InputError: A path holds no run that can be read.

    Example:
        >>> import rksp, pathlib
        >>> log = pathlib.Path("train.log")
        >>> _ = log.write_text("".join(f"step {n}: loss {4 - n / 50}\n" for n in range(100)))
        >>> rksp.why(log).verdict
        'fine'
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else paths
    raws = read_raw_runs([Path(one) for one in files])
    stories = []
    for raw in (one for one in raws if one.curves):
        with contextlib.suppress(InputError):
            stories.append(course_of(raw, metric))
    is_one = len(raws) == len(stories) == 1
    question = _Question.of(stories[0] if is_one else None, target, recipe)
    history = _history(raws, question, metric, may_fail=bool(stories))
    told = None if history is None else history_report(history)
    rate = question.rate(stories[0]) if is_one else None
    courses = [_course_report(story, rate, _watched(story)) for story in stories]
    return RunsReport(
        verdict=_verdict(courses if is_one else [], history),
        target=question.name,
        recipe=question.recipe,
        history=told,
        scorecard=None if told is None else scorecard(told),
        courses=courses,
        rate=rate,
        advice=list(_advice(stories[0], courses[0], rate)) if is_one else [],
        differences=list(_differences(stories)),
    ).finite()


def is_read(path: Path) -> bool:
    """Tell whether a file's name and first bytes are those of a log that `why` reads."""
    return any(reader.matches(path) for reader in READERS)


def _history(
    raws: Sequence[RawRun], question: _Question, metric: str | None, *, may_fail: bool
) -> History | None:
    if len(raws) == 1 and may_fail:
        return None
    try:
        return history_of(raws, question.source, question.recipe, metric=metric)
    except InputError:
        if may_fail:
            return None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The model and the recipe of the runs, as far as they were given or stand beside the log."""

    source: ModelSource | None = None  # where somebody names one
    recipe: Recipe  # of what the runs do not say
    told_by: str = ""  # what said the recipe, for people

    @property
    def name(self) -> str | None:
        """The model's name, as it was given."""
        return None if self.source is None else self.source.target

    @classmethod
    def of(cls, story: Story | None, target: object, recipe: object) -> _Question:
        """Return the question as it was given, or of one run as it stands beside its log."""
        if isinstance(recipe, str | os.PathLike):
            run = Run.read(str(getattr(target, "target", target or "")), {}, file=Path(recipe))
            named = definite(run.read_file).target
            if target is None and named is not None:  # the run file describes its model
                refuse_factory(named.name, recipe)
                run = replace(run, target=named.name, overrides=named.overrides)
            return cls._of_run(run, str(recipe), target)
        fields = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else recipe
        check_kind("recipe", fields, Mapping | None, "a Recipe, a mapping of its fields, or a path")
        if target is not None or fields:
            known = fields if isinstance(fields, Mapping) else {}
            asked = Run.typed(str(getattr(target, "target", target or "")), known)
            return cls._of_run(asked, "given", target)
        found = None if story is None else next(_beside(story), None)
        return found or cls(recipe=Recipe.parse({}))

    @classmethod
    def _of_run(cls, run: Run, told_by: str, target: object = None) -> _Question:
        if isinstance(target, ModelSource):
            source: ModelSource | None = target
        elif run.target:
            source = run.started(resolve(run.target, overrides=run.overrides, counts=False))
        else:
            source = None
        return cls(source=source, recipe=run.recipe, told_by=told_by)

    def rate(self, story: Story) -> RateReport | None:
        """Return what rksp says of the run's rate; None where it knows no model."""
        rate = _peak(story) or self.recipe.learning_rate
        if self.source is None:
            return None
        fields, steps = self.recipe.model_dump(exclude_unset=True), story.raw.said.get("max_steps")
        if isinstance(steps, int) and steps >= 1:  # how many the run was to have, by its log
            fields["max_steps"] = steps
        source = _started(self.source, story)
        try:
            answer = score(source, recipe=fields, lr=rate, evidence="config")
        except RkspError:
            return None
        start = "from scratch" if source.start.is_scratch else "from trained weights"
        risk = deciding(answer.report).risk
        known = {
            name: getattr(risk, name, None)  # some kinds of answers have no rate
            for name in ("start_here", "do_not_exceed", "likely_edge", "probability_failed")
        }
        worst = [f"{one.code} {one.message}" for one in answer.findings if one.level != "note"]
        return RateReport(
            recipe_from=f"{self.told_by}; {start}",
            learning_rate=rate,
            findings=worst[:_MOST_FINDINGS],
            **known,
        )


def _started(source: ModelSource, story: Story) -> ModelSource:
    """Return the model with the start that the first loss shows: far below a guess, it was trained.

    A value from later than step 100 shows nothing.
    """
    size = Declared(source.config, source.task).vocabulary
    loss, guess = story.course.first, math.log(size or 1)
    if story.curve.steps[0] > _EARLY or not loss < _LEARNED * guess:
        return source
    return replace(source, start=decide_start(source.start, loss=loss, guess=guess))


def _beside(story: Story) -> Iterator[_Question]:
    """Yield what says the recipe of a run: its own settings, then run files beside its log."""
    with contextlib.suppress(RkspError):
        fields, target, overrides = Words(None).settings(story.raw)
        if target is not None:
            refuse_factory(target, story.raw.file)
            run = replace(Run.typed(target, fields), overrides=overrides)
            yield _Question._of_run(run, "the run's own settings")
    folder = story.raw.file.parent
    for place in (folder, folder.parent):
        for file in sorted(place.iterdir())[:_MOST_BESIDE]:
            with contextlib.suppress(RkspError):
                if file != story.raw.file and file.is_file() and is_run_file(str(file)):
                    found = _Question._of_run(Run.read(str(file), {}), str(file))
                    if _reaches(found.recipe, story):
                        yield found


def _reaches(recipe: Recipe, story: Story) -> bool:
    """Tell whether a recipe can be a run's: no schedule passes the rate that its file states."""
    stated, seen = recipe.learning_rate, _peak(story)
    return stated is None or seen is None or seen <= _ROUNDED * stated


def _peak(story: Story) -> float | None:
    if story.rate is not None:
        return float(story.rate.values.max()) or None
    for name, value in story.raw.said.items():
        if is_rate(name) and isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def _verdict(courses: Sequence[CourseReport], history: History | None) -> str:
    if not courses:
        return "doubtful" if history is not None and history.doubt else "read"
    fate = Fate(courses[0].outcome)
    known = {Fate.UNTOLD: "cannot tell", Fate.CRASHED: "cannot tell", Fate.ALARMED: "alarmed"}
    return known.get(fate, "failed" if fate.is_failure else "fine")


def _watched(story: Story) -> WatchReport | None:
    """Return what `rksp watch` tells of a run whose log it wrote; None of all others."""
    with contextlib.suppress(RkspError):
        if story.raw.file.suffix == ".jsonl" and read_head(story.raw.file, _HEAD).startswith(_RUN):
            from rksp.confirm.watched import watched_run  # it imports torch

            return watched_run(story.raw.file)
    return None


def _course_report(
    story: Story, rate: RateReport | None, watched: WatchReport | None
) -> CourseReport:
    found = story.course
    fate = found.fate
    if watched is not None and not fate.is_failure:
        has_alarms, has_raised = watched.alarms or watched.causes, "raised" in watched.ended
        fate = Fate.ALARMED if has_alarms else Fate.CRASHED if has_raised else fate
    of_held_out = found.fate is Fate.OVERFIT
    judged = definite(story.held_out) if of_held_out else story.curve
    at_onset = None
    if story.rate is not None and found.onset is not None:
        at_onset = float(np.interp(found.onset, story.rate.steps, story.rate.values))
    return CourseReport(
        name=story.raw.name,
        file=str(story.raw.file),
        metric=definite(story.held_out_name) if of_held_out else story.metric,
        records=len(judged.values),
        outcome=fate.value,
        first_value=found.first,
        final_value=found.last,
        final_step=found.last_step,
        best_value=found.best,
        best_step=found.best_step,
        level=found.level,
        ended=found.ended,
        onset_step=found.onset,
        first_mover=found.moved_first,
        lead_steps=found.lead,
        learning_rate=_peak(story) if rate is None else rate.learning_rate,
        rate_at_onset=at_onset,
        told=list(_told(story, watched)),
        loss=_thinned(story.curve),
        held_out=_thinned(story.held_out),
        grad_norm=_thinned(story.grad_norm),
    )


def _thinned(curve: Curve | None) -> list[tuple[float, float | None]]:
    """Return at most 400 points of a curve: of each stretch the lowest and the highest."""
    if curve is None:
        return []
    steps, values = curve.steps, curve.values
    keep = np.arange(len(values))
    if len(values) > _MOST_POINTS:
        stretches = np.array_split(keep, _MOST_POINTS // 2)
        finite = np.where(np.isfinite(values), values, np.inf)
        ends = [(s[finite[s].argmin()], s[finite[s].argmax()]) for s in stretches]
        keep = np.unique(np.array([*ends, (0, len(values) - 1)]))
    return [(float(steps[n]), float(values[n]) if math.isfinite(values[n]) else None) for n in keep]


_TOLD = {
    Fate.FINE: "{What} went from {first} to {ended}; nothing went wrong.",
    Fate.SPIKE_RECOVERED: "{What} spiked, came back each time, and ended at {ended}.",
    Fate.DIVERGED: "{What} was at {level}, rose from step {onset} on, and ended at {ended}.",
    Fate.SPIKE_UNRECOVERED: "{What} was at {level}, blew up at step {onset}, came back only part "
    "of the way, and ended at {ended}.",
    Fate.NAN: "{What} was at {level}, left its course at step {onset}, and ended as no number.",
    Fate.NEVER_LEARNED: "{What} began at {first} and ended at {ended}: nothing was learned.",
    Fate.COLLAPSED: "{What} was at {level}, fell from step {onset} on, and ended at {ended}.",
    Fate.OVERFIT: "{What} on held-out data was lowest at step {best_step} ({best}) and ended at "
    "{ended}, while the training loss still fell.",
    Fate.UNTOLD: "The log holds too few values to tell what became of the run.",
}


def _told(story: Story, watched: WatchReport | None) -> Iterator[str]:
    found = story.course
    losses = {name: getattr(found, name) for name in ("first", "ended", "level", "best")}
    of = {n: short(x, 4) if math.isfinite(x) else "no number" for n, x in losses.items()}
    places = {name: _step(getattr(found, name)) for name in ("onset", "best_step")}
    name = "loss" if found.fate is Fate.OVERFIT else story.metric
    what = f"The {name if '/' in name else name.replace('_', ' ').lower()}"
    told = _TOLD[found.fate].format(What=what, **of, **places)
    if watched is None:
        yield told
    else:  # which has more to tell than the loss
        yield told.replace("; nothing went wrong", "")
        yield f"{re.sub('^the', 'The', watched.ended)}."
        yield from watched.conclusions
    if found.onset is None or found.fate in (Fate.NEVER_LEARNED, Fate.OVERFIT):
        return
    if found.lead:
        unit = "step" if found.lead == 1 else "steps"
        yield f"The gradient norm left its range {_step(found.lead)} {unit} before."
    elif found.lead == 0.0:
        yield "The gradient norm left its range in the same record."
    elif found.moved_first == "grad_norm":
        yield "The gradient norm was no number from the first record on."
    elif story.grad_norm is not None:
        yield "The gradient norm gave no warning."


def _step(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _advice(story: Story, course: CourseReport, rate: RateReport | None) -> Iterator[str]:
    fate = story.course.fate
    if not fate.is_failure:
        return
    if fate is Fate.OVERFIT:
        yield f"Keep {_checkpoint(story, story.course.best_step)}."
        yield "Stop there the next time, or train on more data, or regularize more."
        return
    sound = definite(story.course.onset) - (story.course.lead or 0.0)
    if fate is not Fate.NEVER_LEARNED and sound > story.curve.steps[0]:
        yield f"Go back to {_checkpoint(story, np.nextafter(sound, -np.inf))}."
    yield _cause(course, rate)


def _checkpoint(story: Story, last: float) -> str:
    found = checkpoints_of(story.raw.file)
    before = [(step, path) for step, path in found if step <= last]
    if before:
        return f"{before[-1][1].name} (step {before[-1][0]:,})"
    none = ", of which none is left here" if found else ""
    return f"the newest checkpoint up to step {_step(math.floor(last))}{none}"


def _cause(course: CourseReport, rate: RateReport | None) -> str:
    value = course.learning_rate
    if rate is None or value is None or rate.do_not_exceed is None:
        return (
            "Whether the learning rate is the cause rksp can tell from the recipe: give "
            "--recipe FILE, or --target MODEL with its options."
        )
    edge, safe, at = rate.likely_edge, rate.do_not_exceed, short(value)
    lower = short(min(filter(None, (rate.start_here, safe))), 2)
    if edge is not None and value > edge:
        limit = short(edge, 2)
        return f"Train at {lower}: the learning rate {at} is above the likely edge, {limit}."
    if value > safe:
        return (
            f"Train at {lower}: the learning rate {at} is above the rate not to exceed, "
            f"{short(safe, 2)}, and may be the cause."
        )
    return (
        f"The learning rate {at} is hardly the cause: it is below the rate not to exceed, "
        f"{short(safe, 2)}. Look at the data of that step, the precision and the code; rksp watch "
        "names the module that moves first."
    )


def _differences(stories: Sequence[Story]) -> Iterator[tuple[str, str, str, str, str]]:
    sound = [one for one in stories if one.course.fate in (Fate.FINE, Fate.SPIKE_RECOVERED)]
    for bad in (one for one in stories if one.course.fate.is_failure):
        changed = [(_changed(bad, good), good) for good in sound]
        settings, good = min(changed, key=lambda pair: len(pair[0]), default=({}, bad))
        for name, (was, now) in list(settings.items())[:_MOST_DIFFERENT]:
            yield bad.raw.name, good.raw.name, name, was, now


def _changed(bad: Story, good: Story) -> dict[str, tuple[str, str]]:
    own = str(bad.raw.file.parent)  # where the run's own files lie, such as its config.json
    names = [
        name
        for name, value in bad.raw.said.items()
        if not is_bookkeeping(name) and not is_rate(name) and not str(value).startswith(own)
    ]
    rates = {"learning rate": (_peak(bad), _peak(good))}
    pairs = {n: (bad.raw.said[n], good.raw.said.get(n)) for n in names} | rates
    return {n: (_setting(a), _setting(b)) for n, (a, b) in pairs.items() if a != b}


def _setting(value: object) -> str:
    if value is None:
        return "none that is stated"
    return short(value) if isinstance(value, float) and math.isfinite(value) else str(value)[:80]
