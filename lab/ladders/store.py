"""Store ladders on disk while a plan runs: one JSON file each, written atomically."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from lab.ladders.ladder import LadderRun
from lab.ladders.plan import LadderSpec
from rksp.ground.errors import ArtifactError
from rksp.ground.files import ResultFolder, read_text
from rksp.own_runs.outcome import Curves

SCHEMA = "rksp-ladder-1"
MOST_BYTES = 256 * 2**20  # of one ladder; the longest of ours has 3 MB


def write_ladder(folder: Path, run: LadderRun, provenance: dict[str, object]) -> Path:
    """Store a ladder under its id; a crash leaves the old state or the new one."""
    document = {
        "schema": SCHEMA,
        "spec": run.spec.model_dump(mode="json"),
        "provenance": provenance,
        "runs": [
            {
                "learning_rate": rate,
                "seconds": round(seconds, 3),
                "planned_steps": curves.planned_steps,
                "loss": _numbers(curves.loss),
                "grad_norm": _numbers(curves.grad_norm),
            }
            for rate, curves, seconds in zip(run.rates, run.curves, run.seconds, strict=True)
        ],
    }
    return ResultFolder(folder).write(run.spec.id, json.dumps(document, allow_nan=False))


def read_ladder(path: Path) -> LadderRun:
    """Read a stored ladder.

    Raises:
        ArtifactError: The file is not a ladder of this schema.
    """
    try:
        document = json.loads(read_text(path, MOST_BYTES))
        if document["schema"] != SCHEMA:
            raise ArtifactError(f"{path.name} has schema {document['schema']!r}, not {SCHEMA!r}.")
        spec, runs = LadderSpec.model_validate(document["spec"]), document["runs"]
        return LadderRun(
            spec=spec,
            rates=tuple(run["learning_rate"] for run in runs),
            seconds=tuple(run["seconds"] for run in runs),
            curves=tuple(
                Curves(
                    loss=_array_of(run["loss"]),
                    grad_norm=_array_of(run["grad_norm"]),
                    planned_steps=run.get("planned_steps", spec.recipe.max_steps),
                )
                for run in runs
            ),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path.name} is not a stored ladder: {error!r:.200}.") from error


def _numbers(values: np.ndarray) -> list[float | str]:
    """Round to six significant digits; values that JSON cannot hold are spelled out."""
    return [float(f"{v:.6g}") if np.isfinite(v) else str(float(v)) for v in values]


def _array_of(values: list[float | str]) -> np.ndarray:
    """Return stored numbers as float32."""
    return np.array([float(v) for v in values], dtype=np.float32)
