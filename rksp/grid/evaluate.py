"""One group of cells: profile the initialization once, then judge every recipe by it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.errors import InputError, RkspError
from rksp.grid.cell import Options
from rksp.grid.events import Event, Failure, Task
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.gathered import Gathered
    from rksp.pipeline import Evaluation

_KEPT = {
    "verdict",
    "reasons",
    "probability_failed",
    "probability_failed_low",
    "probability_failed_high",
    "probability_diverged",
    "safe_learning_rate",
    "likely_edge",
    "evidence",
}
EVALUATOR = "rksp.grid.evaluate:evaluate_task"


def gather_cell(
    target: str, overrides: Mapping[str, object], seed: int, options: Options
) -> Gathered:
    """Resolves a target and profiles one initialization of it: what cells of a group share.

    Raises:
        InputError: There is no such model, or it cannot be shown anything.
    """
    from rksp.features import Evidence
    from rksp.models.resolve import resolve
    from rksp.pipeline import gather

    source = resolve(
        target,
        overrides=overrides,
        allow_hub=options.allow_hub,
        trust_remote_code=options.trust_remote_code,
        max_params=options.max_params,
    )
    return gather(
        source,
        seed=seed,
        evidence=Evidence.parse(options.evidence),
        probe_file=Path(options.probe) if options.probe else None,
        num_states=options.states,
        workers=options.threads,
    )


def evaluate_task(task: Task) -> Iterator[Event]:
    """Yields one event for the profile and one for every cell, as soon as each is known.

    A failure of the profile ends the group; a failure of one cell is that cell's.
    """
    import torch

    from rksp.models.refusals import refusals
    from rksp.pipeline import judge

    options = Options(**task["options"])
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    expected = (RkspError, MemoryError, *refusals())
    try:
        gathered = gather_cell(task["target"], task["overrides"], task["seed"], options)
    except expected as error:
        yield _failed(error)
        return
    yield {"kind": "profile", "seconds": time.perf_counter() - start}
    for key, fields in task["cells"]:
        try:
            evaluation = judge(
                gathered,
                Recipe.model_validate(fields),
                threshold=options.threshold,
                risk=options.risk,
            )
        except expected as error:
            yield _failed(error) | {"cell": key}
            continue
        yield {"kind": "result", "cell": key, "result": summarize(evaluation)}


def load_evaluator(name: str):
    """The function behind `package.module:function`: what workers run."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def summarize(evaluation: Evaluation) -> dict[str, object]:
    """What a grid keeps of an `rksp.pipeline.Evaluation`: the answer without its curves.

    Nothing in it depends on timing or on the machine's other work: the same cell has the same
    summary on every engine.
    """
    risk = evaluation.risk
    found = [f"{finding.code} {finding.level}" for finding in evaluation.findings]
    if risk is None:
        return {"verdict": "not assessed", "reasons": [evaluation.risk_missing], "findings": found}
    return risk.model_dump(mode="json", include=_KEPT) | {"findings": found}


def _failed(error: Exception) -> Event:
    kind: Failure = "error"
    if isinstance(error, InputError):
        kind = "invalid"
    elif isinstance(error, MemoryError):
        kind = "out of memory"
    first = (str(error) or type(error).__name__).splitlines()[0]
    return {"kind": "failed", "failure": kind, "message": first}
