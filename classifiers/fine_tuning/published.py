"""What published runs of fine-tuning trained at, where no model of their edge can answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rksp.classifiers.artifacts import Artifact
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.documents.answer import PublishedReport

ANY = "any"  # size
LEAST = 5  # runs, below which rksp cannot tell
ADAPTER_LADDERS = 109  # public ones of the model of fine-tuning; in none does alpha vary alone
CLASSES = {1e9: "below 1B", 1e10: "1B to 10B", math.inf: "from 10B"}  # parameters, by their end
# A recipe's objective, and the wider one that it is counted under too.
WIDER = {"dpo": "preference", "kto": "preference", "orpo": "preference", "reward": "reward",
         "ppo": "rl", "grpo": "rl", "ebft": "rl"}  # fmt: skip


_WORDS = {"rl": "reinforcement learning", "preference": "preference losses",
          "reward": "reward models", "next_token": "supervised tuning", "full": "all weights",
          "lora": "LoRA"}  # fmt: skip


def sort_of(objective: str, method: str) -> str:
    """Say what runs of an objective and a method are: `GRPO with LoRA`."""
    loss = _WORDS.get(objective, objective.upper())
    return f"{loss} with {_WORDS.get(method, method)}"


def size_class(parameters: float | None) -> str:
    """Return the class of a number of parameters, or `ANY` where it is not known."""
    if not parameters:
        return ANY
    return next(name for end, name in CLASSES.items() if parameters < end)


def published_method(method: str) -> str:
    """Return the method that a run counts under: rates of QLoRA are those of LoRA."""
    return "lora" if method == "qlora" else method


def lookup(
    rows: Sequence[PublishedReport], inputs: FineTuningInputs, objective: str
) -> PublishedReport | None:
    """Return the closest row with enough runs, else the closest with any; None if there is none.

    The same objective comes before a wider one, and the same size before all sizes.

    Args:
        rows: Of `published_runs`.
        inputs: The run.
        objective: Its recipe's.
    """
    method = published_method(inputs.method)
    places = [
        (method, loss, inputs.kind, size)
        for loss in dict.fromkeys((objective, WIDER.get(objective, inputs.objective)))
        for size in (size_class(inputs.parameters), ANY)
    ]
    known = {(row.method, row.objective, row.kind, row.size): row for row in rows}
    found = [known[place] for place in places if place in known]
    return next((row for row in found if row.runs >= LEAST), found[-1] if found else None)


def _built(stored: Mapping[str, Iterable[object]]) -> tuple[PublishedReport, ...]:
    rows = tuple(PublishedReport.model_validate(row) for row in stored["rows"])
    for row in rows:
        if not 0 < row.lowest <= row.middle <= row.highest < math.inf or not row.stated <= row.runs:
            raise ValueError(f"the rates or counts of {row.method}, {row.objective} are no row's")
    return rows


ARTIFACT = Artifact(
    noun="table of published runs",
    schema="rksp-published-1",
    file="published.json",
    command="python -m lab published-runs",
    build=_built,
)
published_runs = ARTIFACT.load
