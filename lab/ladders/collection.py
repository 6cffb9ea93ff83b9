"""Pack stored ladders into one compact, reproducible Parquet file, and read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.ladders.ladder import LadderRun
from lab.ladders.parquet import (
    CURVES,
    by_ladder,
    pyarrow_modules,
    read_columns,
    rounded,
    write_rows,
)
from lab.ladders.plan import LadderSpec
from lab.ladders.store import MOST_BYTES, read_ladder
from lab.places import DATA
from lab.tasks.tasks import make_task
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable, read_text
from rksp.own_runs.outcome import Curves

SCHEMA = "rksp-collection-1"
_FIELDS = {
    **dict.fromkeys(("ladder", "family", "task", "optimizer", "spec"), "text"),
    **dict.fromkeys(("provenance", "policy"), "text"),
    "seed": "count",
    "planned_steps": "small",
    "learning_rate": "number",
    "outcome": "text",
    **dict.fromkeys(("excess", "best_rate", "edge_low", "edge_high"), "number"),
    **dict.fromkeys(("trivial_loss", "seconds"), "number"),
    **dict.fromkeys(CURVES, "curve"),
}
_OF_CURVES = (*CURVES, "planned_steps")
_READ = ("ladder", "spec", "learning_rate", "seconds", *_OF_CURVES)


def shipped_collection() -> Path:
    """Return the path of the bundled collection."""
    return DATA / "runs" / "collection.parquet"


def rows(ladder: LadderRun) -> Iterator[dict[str, Any]]:
    """Yield one labelled row per run, including its shortened curves.

    `excess` is infinite if a run has no final loss. `best_rate`, `edge_low` and `edge_high` are
    None if the ladder has none (`own_runs.outcome.Ladder`).
    """
    kept = [replace(c, loss=rounded(c.loss), grad_norm=rounded(c.grad_norm)) for c in ladder.curves]
    ladder = replace(ladder, curves=tuple(kept))
    judged = ladder.judge()
    low, high = judged.edge or (None, None)
    shared = {
        "ladder": ladder.spec.id,
        "family": ladder.spec.family,
        "task": ladder.spec.task,
        "optimizer": ladder.spec.recipe.optimizer,
        "spec": json.dumps(ladder.spec.model_dump(mode="json"), sort_keys=True),
        "seed": ladder.spec.seed,
        "policy": judged.policy,
        "best_rate": judged.best_rate,
        "edge_low": low,
        "edge_high": high,
        "trivial_loss": trivial_loss(ladder.spec),
    }
    for index, rate in enumerate(ladder.rates):
        yield shared | {
            "learning_rate": rate,
            "planned_steps": ladder.curves[index].planned_steps,
            "outcome": str(judged.outcomes[index]),
            "excess": judged.excess[index],
            "seconds": ladder.seconds[index],
            "loss": ladder.curves[index].loss,
            "grad_norm": ladder.curves[index].grad_norm,
        }


def trivial_loss(spec: LadderSpec) -> float:
    """Return the loss, in nats, of answering the task's label frequencies."""
    return make_task(spec.task, **spec.task_options).trivial_loss


def build_collection(sources: Sequence[Path], output: Path) -> int:
    """Pack stored ladders into one Parquet file, one row per run.

    The same input gives the same bytes. Curves keep 16 significant bits. The labels are those of
    the kept curves, so they can be recomputed from the file. A ladder that is found twice is taken
    from the first source.

    Args:
        sources: Folders of a plan, single ladder files, or collections to extend.
        output: The file, which is replaced atomically.

    Returns:
        The number of runs written.

    Raises:
        InputError: pyarrow is missing, or the sources hold no ladder.
        ArtifactError: A file is not a stored ladder, or holds a value of another kind.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(output)
    pyarrow_modules()  # before reading much
    found: dict[str, tuple[LadderRun, str]] = {}
    for ladder, provenance in stored_ladders(sources):
        found.setdefault(ladder.spec.id, (ladder, provenance))
    table = [
        row | {"provenance": provenance}
        for _, (ladder, provenance) in sorted(found.items())
        for row in rows(ladder)
    ]
    write_rows(table, _FIELDS, SCHEMA, output)
    return len(table)


def read_collection(path: Path | None = None) -> list[LadderRun]:
    """Read the ladders of a collection, sorted by id; `path` None reads the bundled one.

    Raises:
        InputError: pyarrow is missing, or there is no such file.
        ArtifactError: The file is not a collection of this schema.
    """
    return _ladders(read_columns(path or shipped_collection(), SCHEMA, _READ))


def _ladders(columns: dict[str, list]) -> list[LadderRun]:
    return [
        LadderRun(
            spec=LadderSpec.model_validate_json(part["spec"][0]),
            rates=tuple(part["learning_rate"]),
            seconds=tuple(part["seconds"]),
            curves=tuple(
                Curves(loss=loss, grad_norm=norm, planned_steps=planned)
                for loss, norm, planned in zip(*(part[name] for name in _OF_CURVES), strict=True)
            ),
        )
        for part in by_ladder(columns)
    ]


def stored_ladders(sources: Sequence[Path]) -> Iterator[tuple[LadderRun, str]]:
    """Yield each ladder of every source with its provenance as JSON.

    Args:
        sources: Folders of a plan, single ladder files, or collections.

    Raises:
        InputError: A source is missing, or holds no ladder.
    """
    for source in sources:
        if not source.exists():
            raise InputError(
                f"There is no folder or file {source}; give a folder of python -m lab run."
            )
        if source.suffix == ".parquet":
            kept = _provenance(source)
            yield from ((ladder, kept[ladder.spec.id]) for ladder in read_collection(source))
            continue
        paths = sorted(source.glob("*.json")) if source.is_dir() else [source]
        if not paths:
            raise InputError(f"No stored ladder in {source}; run python -m lab run first.")
        for path in paths:
            ladder = read_ladder(path)
            stored = json.loads(read_text(path, MOST_BYTES)).get("provenance", {})
            yield ladder, json.dumps(stored, sort_keys=True)


def collection_ids(path: Path | None = None) -> frozenset[str]:
    """Return the ids of the ladders of a collection; `path` None reads the bundled one."""
    return frozenset(_provenance(path or shipped_collection()))


def _provenance(path: Path) -> dict[str, str]:
    table = read_columns(path, SCHEMA, ("ladder", "provenance"))
    return dict(zip(table["ladder"], table["provenance"], strict=True))
