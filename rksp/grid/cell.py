"""The cells of a grid: the base that they are made from, and how a group of them is evaluated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from rksp.assessment.store import initialization
from rksp.documents.answer import FromEdge, Untold
from rksp.documents.grid import NUMBERS, FoundLevel
from rksp.documents.terms import Terms
from rksp.grid.group import (
    CellAnswer,
    CellGroup,
    Event,
    Failure,
    GroupCell,
    Options,
)
from rksp.ground.allocator import collector_paused, freed_memory_kept
from rksp.ground.errors import InputError, RkspError
from rksp.ground.model import definite
from rksp.models.names import tree_identity
from rksp.question.question import Question
from rksp.question.run import Run, origins_of_flags
from rksp.recipe import Recipe, in_steps
from rksp.recipe.start import Start
from rksp.recipe_files.columns import canonical, in_our_words, names_weights
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved
from rksp.recipe_files.said.origin import Origin, OriginKind, RecipeFile, assumptions

if TYPE_CHECKING:
    from rksp.assessment.evidence import Evidence
    from rksp.assessment.pipeline import Evaluation

_ENCODER = json.JSONEncoder(sort_keys=True, default=str)  # json.dumps would make one a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A target at one seed under one recipe.

    Attributes:
        target: As for `rksp score`.
        overrides: The changed settings of the model.
        seed: The seed of the initialization.
        recipe: How the model is to be trained.
        has_weights: The run file names weights to start from.
        labels: The values that the grid varies, by the names that the user gave, for tables.
        assumed: What nobody decided about the recipe, in words by field.
        unknown: Fields of the recipe that the run file gives and nobody can tell, with why.
    """

    target: str
    recipe: Recipe
    overrides: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    has_weights: bool = False
    labels: Mapping[str, object] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict, compare=False)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The target with its overrides, in one line."""
        return model_name(self.target, self.overrides)

    def init_key(self, options: Options) -> str:
        """Return the identity of the initialization and its measurement.

        Cells with the same identity share one profile.
        """
        at_seed = options.model_copy(update={"seed": self.seed})
        content = initialization(
            self.target,
            self.overrides,
            at_seed,
            allow_hub=options.allow_hub,
            with_code=options.trust_remote_code,
        )
        return _digest(content | {"has_weights": self.has_weights})

    def key(
        self,
        options: Options,
        init: str | None = None,
        recipe: Mapping[str, object] | None = None,
    ) -> str:
        """Return the identity of the cell; the same work has the same key in every run.

        Args:
            options: How the cell is measured.
            init: What `init_key` returned, if it was asked before.
            recipe: The recipe as JSON, if it was written before.
        """
        content: dict[str, object] = {
            "init": init or self.init_key(options),
            "recipe": recipe or self.recipe.model_dump(mode="json"),
            "risk": options.risk,
        }
        if self.unknown:
            content["unknown"] = dict(self.unknown)
        if options.runs:
            content["runs"] = [tree_identity(path) for path in options.runs]
        return _digest(content)


def init_keys(cells: Iterable[Cell], options: Options) -> list[str]:
    """Return the `init_key` of each cell; every target is looked at once."""
    known: dict[tuple[str, str, int], str] = {}
    found = []
    for cell in cells:
        changed = json.dumps(dict(cell.overrides), default=repr) if cell.overrides else ""
        which = (cell.target, changed, cell.seed)
        if which not in known:
            known[which] = cell.init_key(options)
        found.append(known[which])
    return found


def recipes_of(cells: Iterable[Cell]) -> list[dict[str, object]]:
    """Return the recipe of each cell as JSON; those that differ in their rates are written once."""
    known: dict[Hashable, dict[str, object]] = {}
    found = []
    for cell in cells:
        rest = cell.recipe.but_for_rate
        if rest not in known:
            known[rest] = cell.recipe.model_dump(mode="json")
        found.append(known[rest] | {"learning_rate": cell.recipe.learning_rate})
    return found


def model_name(target: str, overrides: Mapping[str, object]) -> str:
    """Join a target with its overrides, sorted by name, as in `gpt2 n_layer=2`."""
    return " ".join([target, *(f"{key}={value}" for key, value in sorted(overrides.items()))])


def unnamed_settings(
    overrides: Mapping[str, object], labels: Mapping[str, object]
) -> dict[str, object]:
    """Return the settings of a model that no label states, as columns: `set.n_layer`."""
    named = {canonical(name)[1] for name in labels}
    return {f"set.{name}": value for name, value in overrides.items() if name not in named}


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(_ENCODER.encode(content).encode()).hexdigest()[:16]


Point = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The values that every cell starts from: a target, its settings, a recipe or a run file."""

    target: str | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    recipe: Mapping[str, object] = field(default_factory=dict)
    document: Document | None = None
    devices: int | None = None
    trainer: str | None = None
    seed: int = 0

    def read(self) -> RecipeFile | None:
        """Return the run file as it stands, without the values of a cell; None without one."""
        if self.document is None:
            return None
        from rksp.recipe_files.registry import read_document

        return read_document(self.document, devices=self.devices, trainer=self.trainer)

    def notes(self, read: RecipeFile | None) -> tuple[str, ...]:
        """Return the notes on the run file that a reader should see."""
        if read is None:
            return ()
        spoken = read.target.notes if read.target is not None and self.target is None else ()
        return (*read.notes, *spoken)


def make_cell(base: Base, point: Point, source: str) -> Cell:
    """Make one cell from the base and the values of a point.

    Args:
        base: The values that do not vary.
        point: Values by the names that the user gave.
        source: The name of the grid, for messages.

    Raises:
        InputError: There is no model, or a value cannot be used.
    """
    target, seed, has_weights = base.target, base.seed, False
    overrides = dict(base.overrides)
    fields = {canonical(name)[1] or name: value for name, value in base.recipe.items()}
    data = base.document.data if base.document is not None else None
    for name, value in point.items():
        kind, key = canonical(name)
        if data is not None and definite(base.document).has(name):
            data = _placed(data, name, cast("Parsed", value))
        elif kind == "target":
            target, has_weights = str(value), has_weights or names_weights(name)
        elif kind == "seed":
            seed = seed_of(value)
        elif kind == "recipe":
            fields[key] = in_our_words(key, value)
        else:
            overrides[key] = value
    if fields.get("max_grad_norm") == 0:
        fields["max_grad_norm"] = None
    if data is not None:
        from rksp.recipe_files.registry import read_document  # every trainer's files

        document = replace(definite(base.document), data=data)
        plain = read_document(document, devices=base.devices, trainer=base.trainer)
        if (warmup := fields.get("warmup_steps")) is not None:
            run = fields.get("max_steps", plain.field("max_steps").value)
            fields |= {"warmup_steps": in_steps(warmup, run)}
        read = read_document(
            definite(document), devices=base.devices, trainer=base.trainer, given=fields
        )
        if target is None and read.target is not None:
            target, overrides = read.target.name, dict(read.target.overrides) | overrides
        if target is None:
            raise InputError(f"{source}: {read.target_missing}")
        recipe, origins, unknown = read.recipe(), read.origins(), read.unknown
        has_weights = has_weights or read.names_weights
    else:
        recipe, origins, unknown = Recipe.parse(fields), None, {}
    if target is None:
        raise InputError(f"{source} names no model; give --target or an axis called target.")
    follow = sorted(recipe.model_fields_set - fields.keys())  # as steps that a share of a run gives
    rest = tuple((name, getattr(recipe, name)) for name in follow)
    return Cell(
        target=target,
        overrides=overrides,
        seed=seed,
        recipe=recipe,
        has_weights=has_weights,
        labels=dict(point),
        assumed=assumptions(dict(recipe), origins)
        if origins
        else _assumptions(frozenset(fields), rest, recipe.optimizer, recipe.schedule),
        unknown=unknown,
    )


@lru_cache(maxsize=1024)
def _assumptions(
    typed: frozenset[str], rest: tuple[tuple[str, Any], ...], optimizer: str, schedule: str
) -> Mapping[str, str]:
    known = {**dict(rest), "optimizer": optimizer, "schedule": schedule}
    recipe = Recipe.model_construct(**known)
    origins = origins_of_flags(recipe, dict.fromkeys(typed, "the grid"))
    return assumptions(dict(recipe), origins)


def seed_of(value: object) -> int:
    """Return a grid's value as a seed.

    Raises:
        InputError: The value is not a whole number of at least 0.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InputError(f"A seed is {value!r}; give a whole number of at least 0.")


def _placed(data: Section, name: str, value: Parsed) -> Section:
    first, _, rest = name.partition(".")
    actual = next(k for k in data if str(k).replace("-", "_") == first.replace("-", "_"))
    if not rest:
        return {**data, actual: value}
    inner = data[actual]
    assert isinstance(inner, Mapping) and not isinstance(inner, Unresolved)
    return {**data, actual: _placed(inner, rest, value)}


def ask(group: CellGroup, options: Options, recipe: Recipe) -> tuple[Question, Evidence]:
    """Return the question about one recipe of a group, and the evidence that all of them share.

    Raises:
        InputError: There is no such model, or it cannot be profiled.
    """
    from rksp.assessment.pipeline import gather
    from rksp.assessment.store import MeasurementStore
    from rksp.models.resolve import resolve

    source = resolve(
        group.target,
        overrides=group.overrides,
        allow_hub=options.allow_hub,
        trust_remote_code=options.trust_remote_code,
        max_params=options.max_params,
        counts=options.evidence != "config",
    )
    named = Start(kind="elsewhere", because="its rows name weights")
    said = named if group.has_weights else None
    run = Run(target=group.target, recipe=recipe, overrides=group.overrides, said=said)
    question = Question.of(run, source, Terms(risk=options.risk))
    store = MeasurementStore.of(options.is_cached)
    at_seed = options.model_copy(update={"seed": group.seed})
    return question, gather(question.source, at_seed, store=store)


def evaluate_group(group: CellGroup) -> Iterator[Event]:
    """Yield one event for the profile and one for every cell, each as soon as it is known.

    A failure of the profile ends the group; a failure of one cell affects that cell alone.
    """
    with collector_paused():
        from rksp.assessment import pipeline  # noqa: F401 - its loading is no part of a profile
        from rksp.models.configuration import refusals

    options = group.options
    is_measured = options.evidence != "config"
    if is_measured:
        import torch

        torch.set_num_threads(options.workers)
    start = time.perf_counter()
    expected: tuple[type[Exception], ...] = (RkspError, MemoryError, *refusals())
    cells = _recipes(group)
    first = next((recipe for _, recipe, _ in cells if isinstance(recipe, Recipe)), Recipe())
    try:
        question, evidence = ask(group, options, first)
        question = question.learning(options.runs).remembering()
    except expected as error:
        yield _failed(error)
        return
    yield Event(kind="profile", seconds=time.perf_counter() - start)
    # A stream has buffers of its own.
    keeps_memory = is_measured and (evidence.built is None or evidence.built.stream is None)
    with (
        freed_memory_kept() if keeps_memory else nullcontext(),
        # What judges a configuration leaves no cycles behind.
        nullcontext() if is_measured else collector_paused(),
    ):
        for cell, recipe, rates in cells:
            if isinstance(recipe, ValueError):
                yield _failed(recipe, cell.key)
                continue
            unknown = {n: Origin(kind=OriginKind.UNKNOWN, text=w) for n, w in cell.unknown.items()}
            one = replace(question, run=replace(question.run, recipe=recipe, origins=unknown))
            try:
                found = one.judged(evidence, with_details=False, rates=rates)
            except expected as error:
                yield _failed(error, cell.key)
                continue
            yield Event(kind="result", cell=cell.key, result=summarize(found))


def _recipes(group: CellGroup) -> list[tuple[GroupCell, Recipe | ValueError, list[float]]]:
    found: list[tuple[GroupCell, Recipe | ValueError, list[float]]] = []
    rates: dict[Hashable, list[float]] = {}
    for cell in group.cells:
        try:
            recipe = Recipe.model_validate_json(cell.recipe)
        except ValueError as error:  # of a damaged store
            found.append((cell, error, []))
            continue
        some = rates.setdefault(recipe.but_for_rate, [])
        if recipe.learning_rate is not None:
            some.append(recipe.learning_rate)
        found.append((cell, recipe, some))
    return found


def summarize(evaluation: Evaluation) -> CellAnswer:
    """Return what a grid stores of an evaluation."""
    risk = evaluation.risk
    lever = next(iter(risk.levers if isinstance(risk, FromEdge) else ()), None)
    return CellAnswer(
        **{name: risk.number(name) for name in NUMBERS},
        verdict=str(risk.verdict),
        reasons=tuple(risk.reasons) if isinstance(risk, Untold) else (),
        evidence=risk.evidence,
        lever=lever and lever.name,
        lever_factor=lever and lever.factor,
        findings=tuple(FoundLevel(code=one.code, level=one.level) for one in evaluation.findings),
    )


def _failed(error: Exception, cell: str | None = None) -> Event:
    kind: Failure = "error"
    if isinstance(error, InputError):
        kind = "invalid"
    elif isinstance(error, MemoryError):
        kind = "out of memory"
    first = (str(error) or type(error).__name__).splitlines()[0]
    return Event(kind="failed", cell=cell, failure=kind, message=first)
