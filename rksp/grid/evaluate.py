"""Evaluate one group of cells: profile the initialization once, then judge every recipe."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from rksp.grid.cell import Options
from rksp.grid.engines.base import CellGroup, Event, Failure
from rksp.ground.allocator import collector_paused, freed_memory_kept
from rksp.ground.errors import InputError, RkspError
from rksp.recipe import Recipe
from rksp.run import Question, Run

if TYPE_CHECKING:
    from rksp.assessment.evidence import Evidence
    from rksp.assessment.pipeline import Evaluation

# What is stored of an answer.
STATED = (
    *("verdict", "probability_failed", "probability_failed_low", "probability_failed_high"),
    *("probability_diverged", "start_here", "likely_edge", "do_not_exceed", "expected_excess"),
)
EVALUATOR = "rksp.grid.evaluate:evaluate_group"


def ask(group: CellGroup, options: Options, recipe: Recipe) -> tuple[Question, Evidence]:
    """Return the question about one recipe of a group, and the evidence that all of them share.

    Raises:
        InputError: There is no such model, or it cannot be profiled.
    """
    from rksp.assessment.pipeline import gather
    from rksp.assessment.store import MeasurementStore
    from rksp.models.resolve import resolve

    target, overrides = group["target"], group["overrides"]
    source = resolve(
        target,
        overrides=overrides,
        allow_hub=options.allow_hub,
        trust_remote_code=options.trust_remote_code,
        max_params=options.max_params,
        counts=options.evidence != "config",
    )
    starts_trained = group["starts_trained"]
    run = Run(target=target, recipe=recipe, overrides=overrides, starts_trained=starts_trained)
    question = Question.of(run, source, threshold=options.threshold, risk=options.risk)
    store = MeasurementStore.of(options.is_cached)
    at_seed = options.model_copy(update={"seed": group["seed"]})
    return question, gather(question.source, at_seed, store=store)


def evaluate_group(group: CellGroup) -> Iterator[Event]:
    """Yield one event for the profile and one for every cell, each as soon as it is known.

    A failure of the profile ends the group; a failure of one cell affects that cell alone.
    """
    with collector_paused():
        from rksp.assessment import pipeline  # noqa: F401 - its loading is no part of a profile
        from rksp.classifiers.edge_model import Remembered, load_edge_model
        from rksp.models.configuration import refusals

    options = Options(**group["options"])
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
        question = question.learning(options.runs)
        known = Remembered(question.classifier or load_edge_model())
    except expected as error:
        yield _failed(error)
        return
    yield {"kind": "profile", "seconds": time.perf_counter() - start}
    # A stream has buffers of its own.
    keeps_memory = is_measured and not evidence.is_streamed
    with (
        freed_memory_kept() if keeps_memory else nullcontext(),
        # What judges a configuration leaves no cycles behind.
        nullcontext() if is_measured else collector_paused(),
    ):
        for key, recipe, rates in cells:
            if isinstance(recipe, ValueError):
                yield _failed(recipe) | {"cell": key}
                continue
            one = replace(question, run=replace(question.run, recipe=recipe), classifier=known)
            try:
                found = one.judged(evidence, with_details=False, with_advice=False, rates=rates)
            except expected as error:
                yield _failed(error) | {"cell": key}
                continue
            yield {"kind": "result", "cell": key, "result": summarize(found)}


def _recipes(group: CellGroup) -> list[tuple[str, Recipe | ValueError, list[float]]]:
    """Return the key and the recipe of every cell, and the rates of all that differ in no more."""
    found: list[tuple[str, Recipe | ValueError, list[float]]] = []
    rates: dict[Hashable, list[float]] = {}
    for key, text in group["cells"]:
        try:
            recipe = Recipe.model_validate_json(text)
        except ValueError as error:  # of a damaged store
            found.append((key, error, []))
            continue
        some = rates.setdefault(recipe.but_for_rate, [])
        if recipe.learning_rate is not None:
            some.append(recipe.learning_rate)
        found.append((key, recipe, some))
    return found


def load_evaluator(name: str):
    """Import the function that workers run, named as `package.module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def summarize(evaluation: Evaluation) -> dict[str, object]:
    """Return the part of an evaluation that a grid stores: the answer without its curves.

    The summary does not depend on timing or on the machine's load, so the same cell has the same
    summary on every engine.
    """
    risk = evaluation.risk
    found = [{"code": one.code, "level": one.level} for one in evaluation.findings]
    if risk is None:
        return {"verdict": "not assessed", "reasons": [evaluation.risk_missing], "findings": found}
    lever = next(((one.name, one.factor) for one in risk.levers), (None, None))
    return {name: getattr(risk, name) for name in (*STATED, "reasons", "evidence")} | {
        "verdict": str(risk.verdict),
        "lever": lever[0],
        "lever_factor": lever[1],
        "findings": found,
    }


def _failed(error: Exception) -> Event:
    kind: Failure = "error"
    if isinstance(error, InputError):
        kind = "invalid"
    elif isinstance(error, MemoryError):
        kind = "out of memory"
    first = (str(error) or type(error).__name__).splitlines()[0]
    return {"kind": "failed", "failure": kind, "message": first}
