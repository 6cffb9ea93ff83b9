"""Evaluate one group of cells: profile the initialization once, then judge every recipe."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.grid.cell import Options
from rksp.grid.engines.base import CellGroup, Event, Failure
from rksp.ground.allocator import collector_paused, freed_memory_kept
from rksp.ground.errors import InputError, RkspError
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.assessment.evidence import Evidence
    from rksp.assessment.pipeline import Evaluation
    from rksp.classifiers.edge_model import EdgeModel, EdgePredictor
    from rksp.models.source import ModelSource
    from rksp.own_runs.informed import InformedModel

_KEPT = {
    "verdict",
    "reasons",
    "probability_failed",
    "probability_failed_low",
    "probability_failed_high",
    "probability_diverged",
    "start_here",
    "likely_edge",
    "do_not_exceed",
    "expected_excess",
    "evidence",
}
EVALUATOR = "rksp.grid.evaluate:evaluate_group"


def gather_cell(
    target: str,
    overrides: Mapping[str, object],
    seed: int,
    options: Options,
    *,
    starts_trained: bool = False,
) -> Evidence:
    """Resolve a target and profile one initialization, which the cells of a group share.

    Raises:
        InputError: There is no such model, or it cannot be profiled.
    """
    from rksp.assessment.gathering import gather
    from rksp.assessment.store import MeasurementStore
    from rksp.models.resolve import resolve

    source = resolve(
        target,
        overrides=overrides,
        allow_hub=options.allow_hub,
        trust_remote_code=options.trust_remote_code,
        max_params=options.max_params,
        counts=options.evidence != "config",
    )
    source = replace(source, starts_trained=source.starts_trained or starts_trained)
    store = MeasurementStore.of(options.is_cached)
    return gather(source, options.model_copy(update={"seed": seed}), store=store)


def evaluate_group(group: CellGroup) -> Iterator[Event]:
    """Yield one event for the profile and one for every cell, each as soon as it is known.

    A failure of the profile ends the group; a failure of one cell affects that cell alone.
    """
    with collector_paused():
        from rksp.assessment.pipeline import judge
        from rksp.classifiers.edge_model import load_edge_model
        from rksp.classifiers.remembered import Remembered
        from rksp.models.refusals import refusals

    options = Options(**group["options"])
    is_measured = options.evidence != "config"
    if is_measured:
        import torch

        torch.set_num_threads(options.workers)
    start = time.perf_counter()
    expected: tuple[type[Exception], ...] = (RkspError, MemoryError, *refusals())
    try:
        prior = load_edge_model(options.classifier) if options.classifier else None
        classifier: EdgePredictor | None = prior
        evidence = gather_cell(
            group["target"],
            group["overrides"],
            group["seed"],
            options,
            starts_trained=group["starts_trained"],
        )
        if options.runs:
            classifier = _learned(options.runs, evidence.source, group, prior)
        classifier = Remembered(classifier or load_edge_model())
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
        for key, recipe, rates in _recipes(group):
            if isinstance(recipe, ValueError):
                yield _failed(recipe) | {"cell": key}
                continue
            try:
                evaluation = judge(
                    evidence,
                    recipe,
                    threshold=options.threshold,
                    risk=options.risk,
                    classifier=classifier,
                    with_details=False,
                    with_advice=False,
                    rates=rates,
                )
            except expected as error:
                yield _failed(error) | {"cell": key}
                continue
            yield {"kind": "result", "cell": key, "result": summarize(evaluation)}


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


def _learned(
    runs: Sequence[Path], source: ModelSource, group: CellGroup, prior: EdgeModel | None
) -> InformedModel:
    """Return the model that knows past runs; what they do not say is the first cell's recipe."""
    from rksp.own_runs.learning import learn

    recipe = next((text for _, text in group["cells"]), "{}")
    return learn(runs, source, Recipe.model_validate_json(recipe), prior)[0]


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
    found = [f"{finding.code} {finding.level}" for finding in evaluation.findings]
    if risk is None:
        return {"verdict": "not assessed", "reasons": [evaluation.risk_missing], "findings": found}
    kept = {name: getattr(risk, name) for name in _KEPT}
    lever = next(((one.name, one.factor) for one in risk.levers), (None, None))
    kept |= dict(zip(("lever", "lever_factor"), lever, strict=True))
    return kept | {"verdict": str(risk.verdict), "findings": found}


def _failed(error: Exception) -> Event:
    kind: Failure = "error"
    if isinstance(error, InputError):
        kind = "invalid"
    elif isinstance(error, MemoryError):
        kind = "out of memory"
    first = (str(error) or type(error).__name__).splitlines()[0]
    return {"kind": "failed", "failure": kind, "message": first}
