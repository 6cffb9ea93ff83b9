"""Count published runs of fine-tuning by method, objective, kind and size: quantiles, no rows."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lab.fine_tuning_fit.public_rows import Row, inputs_of, is_trained_card, is_trained_recipe
from rksp.classifiers.fine_tuning.published import (
    ANY,
    ARTIFACT,
    WIDER,
    published_method,
    size_class,
)
from rksp.documents.answer import PublishedReport

# Runs of reinforcement learning and reward models that trainers ship, or behind which a released
# model stands: read in the files that each row names, and counted beside the rows that are given.
AFTER_TRAINING = Path(__file__).with_name("after_training.jsonl")
# Where the row's method names the objective, the recipe's name for it. GDPO is GRPO with several
# rewards; EBFT takes GRPO's step on a reward of features (Jelassi et al., 2026).
_NAMED = {"gdpo": "grpo", **{name: name for name in WIDER}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    place: tuple[str, str, str, str]  # method, objective, kind, size
    source: str
    rate: float
    failed: bool
    is_stated: bool


def published_rows(rows: Sequence[Row]) -> list[PublishedReport]:
    """Return the table, every run under its own and its wider objective, its size and all sizes.

    Of a ladder the rates within 1 % of its best result count as runs that trained well.

    Args:
        rows: Of `read_public_rows`.
    """
    cells: dict[tuple[str, str, str, str], list[_Run]] = defaultdict(list)
    for row in rows:
        for run in _runs(row):
            method, objective, kind, size = run.place
            for loss in {objective, WIDER.get(objective, objective)}:
                for place in {size, ANY}:
                    cells[method, loss, kind, place].append(run)
    found = (_counted(place, runs) for place, runs in sorted(cells.items()))
    return [row for row in found if row is not None]


def artifact(rows: Sequence[Row]) -> str:
    """Return the text of the shipped file; the same rows in any order, the same bytes."""
    found = [row.model_dump() for row in published_rows(rows)]
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in found)
    head = f' "schema": "{ARTIFACT.schema}",\n "card": {{"digest": "{digest}"}}'
    return f'{{\n{head},\n "rows": [\n{lines}\n ]\n}}\n'


def _runs(row: Row) -> Iterator[_Run]:
    """Yield the runs of a row of which the rate and an end, or an author's choice, are known."""
    inputs = inputs_of(row)
    if inputs.optimizer != "adamw":
        return
    first = str(row["method"]).partition("-")[0]
    method = published_method(inputs.method)
    objective = _NAMED.get(first, inputs.objective)
    place = (method, objective, inputs.kind, size_class(inputs.parameters))
    near = [] if "rates" not in row else row["derived"]["near_best_rates"]
    ends: list[tuple[float, bool, bool]] = []  # rate, failed, stated
    if "rates" in row:
        ends += [(rate, False, True) for rate in near]
        pairs = zip(row["rates"], row["failed"], strict=True)
        ends += [(rate, True, True) for rate, failed in pairs if failed]
    elif is_trained_recipe(row) or (row.get("trained_well") == "assumed" and row["recipe"]["lr"]):
        ends.append((row["recipe"]["lr"], False, row["trained_well"] is True))
    elif is_trained_card(row) or (row.get("failed") and row.get("rate")):
        ends.append((row["rate"], bool(row["failed"]), True))
    for rate, failed, is_stated in ends:
        yield _Run(place=place, source=inputs.source, rate=rate, failed=failed, is_stated=is_stated)


def _counted(place: tuple[str, str, str, str], runs: Sequence[_Run]) -> PublishedReport | None:
    """Return a row of the table; None where no run trained."""
    rates = sorted(run.rate for run in runs if not run.failed)
    failed = [run.rate for run in runs if run.failed]
    if not rates:
        return None
    method, objective, kind, size = place
    return PublishedReport(
        method=method,
        objective=objective,
        kind=kind,
        size=size,
        runs=len(rates),
        stated=sum(run.is_stated and not run.failed for run in runs),
        sources=len({run.source for run in runs if not run.failed}),
        lowest=rates[0],
        middle=float(f"{10 ** median(map(math.log10, rates)):.2g}"),
        highest=rates[-1],
        failed=len(failed),
        failed_from=min(failed) if failed else None,
    )
