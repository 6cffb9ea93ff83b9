"""A team's past runs: read, grouped into ladders, labelled, and turned into what can be learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rksp.assessment.fine_tuning import fine_tuning_inputs
from rksp.assessment.risk import choose_model, declared_inputs
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.documents.own_runs import LeftOutReport
from rksp.ground.errors import InputError
from rksp.ground.factory import refuse_factory
from rksp.ground.model import definite
from rksp.models.configuration import refusals
from rksp.models.declared import KEY_HEADS, Declared
from rksp.models.resolve import resolve
from rksp.models.source import ModelSource
from rksp.models.type_table import HEADS, WIDTHS
from rksp.own_runs.interpret import PastRun, Words, left_out
from rksp.own_runs.observed import LabelledRuns, Observed, Tuned
from rksp.own_runs.outcome import Judged, judge
from rksp.own_runs.record import Shape
from rksp.own_runs.registry import read_raw_runs
from rksp.own_runs.run import RawRun
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH, Start

_WORSE_THAN_GUESSING = 0.5  # nats
_DISORDERLY = "its losses do not follow the rate"
Runs = TypeVar("Runs", Observed, Tuned)
_Model = tuple[Declared | None, Start]  # what declares it, and the weights that it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLadder:
    """Runs alike in all but the rate and the seed, with their labels.

    Attributes:
        name: In words.
        runs, labels: In the order of the rate.
        recipe: What the runs share, without a rate.
        said: Fields of the recipe that the runs state; the others come from the question.
        observed: What can be learned from it, `Observed` of random and `Tuned` of trained weights;
            None if nothing can, for the reason in `unused`.
        unused: A clause; empty if it is used.
    """

    name: str
    runs: Sequence[PastRun]
    labels: Sequence[Judged]
    recipe: Recipe
    said: frozenset[str]
    observed: Observed | Tuned | None
    unused: str = ""

    @property
    def is_ladder(self) -> bool:
        """Whether it has several rates."""
        return len({run.rate for run in self.runs}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All runs under the paths that were given.

    Attributes:
        ladders: Ladders, and single runs, in the order of their names.
        left_out: Runs that say nothing.
        ignored: Columns that are neither recipe nor settings of the model.
        doubt: Why nothing is learned of all of it, a clause; empty if something is.
    """

    ladders: Sequence[PastLadder]
    left_out: Sequence[LeftOutReport]
    ignored: Sequence[str]
    doubt: str = ""

    def used(self, kind: type[Runs]) -> list[Runs]:
        """Return what can be learned from: `Observed` of random weights, `Tuned` of trained."""
        found = [] if self.doubt else [ladder.observed for ladder in self.ladders]
        return [one for one in found if isinstance(one, kind)]


def read_history(
    paths: Sequence[Path], source: ModelSource | None, recipe: Recipe, *, metric: str | None = None
) -> History:
    """Read and label every run under these paths; see `history_of`."""
    return history_of(read_raw_runs(paths), source, recipe, metric=metric)


def history_of(
    raws: Sequence[RawRun],
    source: ModelSource | None,
    recipe: Recipe,
    *,
    metric: str | None = None,
) -> History:
    """Label runs.

    Args:
        raws: As their trackers have them.
        source: The model of the runs that name none; None where only labels are wanted.
        recipe: Fills in what a run does not say.
        metric: The loss, by the name of its tracker; by default the usual names decide.

    Raises:
        InputError: No run can be used.
    """
    words = Words(None if source is None else source.target, metric)
    runs, unusable = words.read(raws)
    groups: dict[object, list[PastRun]] = {}
    for run in runs:
        groups.setdefault(_alike(run), []).append(run)
    models: dict[object, _Model] = {}
    ladders = []
    for members in groups.values():
        try:
            ladders.append(_ladder(members, recipe, lambda run: _declared(run, source, models)))
        except InputError as error:
            unusable += [left_out(run.raw, error) for run in members]
    if not ladders:
        first = unusable[0]
        raise InputError(
            f"{'The run' if len(unusable) == 1 else f'None of the {len(unusable)} runs'} "
            f"can{'not' * (len(unusable) == 1)} be used; {first.name} of {first.file}: "
            f"{first.reason}."
        )
    ladders.sort(key=lambda x: (not x.is_ladder, x.name, x.runs[0].rate))
    return History(
        ladders=ladders, left_out=unusable, ignored=sorted(words.ignored), doubt=_doubt_of(ladders)
    )


def _alike(run: PastRun) -> object:
    fields = tuple(sorted((name, repr(value)) for name, value in run.fields.items()))
    settings = tuple(sorted((name, repr(value)) for name, value in run.overrides.items()))
    return run.target, settings, fields, run.shape, run.apart, run.loss_name


def _declared(run: PastRun, source: ModelSource | None, known: dict[object, _Model]) -> _Model:
    if run.target is None and source is None:
        return None, SCRATCH
    key = run.target, tuple(sorted((n, repr(v)) for n, v in run.overrides.items()))
    if key not in known:
        known[key] = _read_model(run, source)
    return known[key]


def _read_model(run: PastRun, source: ModelSource | None) -> _Model:
    if source is not None and not run.overrides and run.target in (None, source.target):
        return Declared(source.config, source.task), source.start
    name = run.target or (source.target if source is not None else "")
    if run.target is not None:
        refuse_factory(run.target, run.raw.file)
    usual = source.config if source is not None and run.target is None else None
    try:
        found = resolve(name, overrides=_with_heads(run.overrides, usual), counts=False)
    except InputError:
        raise
    except refusals() as error:  # of transformers: settings that do not fit each other
        raise InputError(f"its model {name} cannot be read ({error!s:.100})") from error
    return Declared(found.config, found.task), found.start


def _with_heads(overrides: Mapping[str, object], usual: object) -> Mapping[str, object]:
    """Add the heads that a run of another width does not state: as wide as the target's own.

    Where the new width is no multiple of that, it is the largest number up to the target's own that
    divides it.
    """
    known = Declared(usual)
    width = next((overrides[name] for name in WIDTHS if name in overrides), None)
    name = next((name for name in HEADS if known.declares(name)), None)
    if not isinstance(width, int) or name is None or any(one in overrides for one in HEADS):
        return overrides
    own, size = definite(known.heads), definite(known.head_dim)
    if width % size == 0:
        count = int(width // size)
    else:
        count = next(n for n in range(own, 0, -1) if width % n == 0)
    keys = next((one for one in KEY_HEADS if known.declares(one) and one not in overrides), None)
    more = {} if keys is None else {keys: math.gcd(count, int(known.number(keys) or count))}
    return {**overrides, name: count, **more}


def _ladder(
    members: Sequence[PastRun], asked: Recipe, model_of: Callable[[PastRun], _Model]
) -> PastLadder:
    runs = sorted(members, key=lambda run: (run.rate, run.raw.name))
    planned = _planned(runs)
    recipe = _recipe(runs[0], asked, planned)
    shape = runs[0].shape
    declared, start = (None, shape.start) if shape is not None else model_of(runs[0])
    inputs, unused = _inputs(shape, declared, recipe, start)
    of_model = shape or declared
    vocabulary = None if of_model is None else of_model.vocabulary
    family = "" if declared is None else declared.name
    guess = math.log(vocabulary) if vocabulary else None
    trained = [run.trained(planned) for run in runs]
    labels = judge(trained, guess, None if shape is None else shape.entropy)
    name = _name_of(runs[0], recipe, family)
    found: Observed | Tuned | None = None
    if inputs is not None:
        losses = [
            run.final if run.ended == "finished" and label.label != "diverged" else math.nan
            for run, label in zip(trained, labels, strict=True)
        ]
        seen: dict[str, Any] = {
            "name": name,
            "log_rates": np.log10([run.rate for run in runs]),
            "failed": np.array([label.failed for label in labels]),
            "losses": np.array(losses),
        }
        if isinstance(inputs, FineTuningInputs):
            found = Tuned(inputs=inputs, **seen)
        else:
            found = Observed(
                inputs=inputs,
                family=family if shape is None else shape.family,
                kept_apart=", ".join(f"{n}={v}" for n, v in runs[0].apart),
                **seen,
            )
        unused = _unused(found, guess)
    return PastLadder(
        name=name,
        runs=runs,
        labels=labels,
        recipe=recipe,
        said=frozenset(runs[0].fields),
        observed=None if unused else found,
        unused=unused,
    )


def _planned(runs: Sequence[PastRun]) -> int | None:
    said = runs[0].fields.get("max_steps")
    if isinstance(said, int | float):
        return int(said)
    return max((run.last_step for run in runs if run.last_step is not None), default=None)


def _recipe(run: PastRun, asked: Recipe, planned: int | None) -> Recipe:
    fields = asked.model_dump(exclude={"learning_rate"}) | dict(run.fields)
    if planned is not None:
        fields["max_steps"] = planned
    return Recipe.parse(fields)


def _inputs(
    shape: Shape | None, declared: Declared | None, recipe: Recipe, start: Start
) -> tuple[EdgeInputs | FineTuningInputs | None, str]:
    if shape is None and declared is None:
        return None, "no model is known; give --target"
    choice = choose_model(recipe, start)
    if choice.model == "fine-tuning":
        if shape is None:
            known = definite(declared)
            return fine_tuning_inputs(known.config, known.task, None, recipe), ""
        tuned = shape.tuned(recipe)
        return (
            tuned,
            "" if tuned is not None else "its record does not say what kind of model it is",
        )
    if choice.model == "none":
        return None, choice.reasons[0]
    if shape is not None:
        return shape.inputs(recipe), ""
    return declared_inputs(definite(declared), recipe), ""


def _unused(found: LabelledRuns, guess: float | None) -> str:
    losses = found.losses[np.isfinite(found.losses)]
    if not np.isfinite(found.failed).any():
        return "nobody can tell how its runs ended"
    if guess is not None and len(losses) and losses.min() > guess + _WORSE_THAN_GUESSING:
        return "its best loss is worse than guessing, so it is in another unit"
    if found.is_still:
        return "its losses do not change with the rate"
    if found.is_ladder and not found.is_orderly:
        return _DISORDERLY
    return ""


def _doubt_of(ladders: Sequence[PastLadder]) -> str:
    """Return why nothing is learned of the whole history, as a clause.

    Half of all ladders without an order: the losses were shuffled, or belong to other runs.
    """
    usable = [x for x in ladders if len({run.rate for run in x.runs}) >= 4]
    wild = [x for x in usable if x.unused == _DISORDERLY]
    if len(usable) >= 2 and len(wild) * 2 >= len(usable):
        return f"in {len(wild)} of {len(usable)} sweeps the losses do not follow the rate"
    return ""


def _name_of(run: PastRun, recipe: Recipe, family: str) -> str:
    model = run.target or family
    if run.shape is not None:
        model = f"{run.shape.family} {run.shape.width}x{run.shape.depth}"
    settings = [f"{name}={value}" for name, value in run.overrides.items()]
    said = [
        f"{name}={getattr(recipe, name)}"
        for name in run.fields
        if name in Recipe.model_fields and name != "optimizer"
    ]
    texts = [f"{name}={value}" for name, value in run.apart]
    parts = [model, recipe.optimizer, *settings, *said, *texts]
    return " ".join(part for part in parts if part)[:160]
