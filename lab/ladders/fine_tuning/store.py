"""Store ladders of fine-tuning while a plan runs: one JSON file each, written atomically."""

from __future__ import annotations

import json
import math
from pathlib import Path

from lab.ladders.fine_tuning.base_model import BaseReport
from lab.ladders.fine_tuning.run import FineTunedLadder, HeldOut
from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.ladders.store import array_of, numbers, stored
from rksp.ground.files import ResultFolder
from rksp.own_runs.outcome import Curves

SCHEMA = "rksp-fine-tuning-1"


def write_fine_tuned(folder: Path, ladder: FineTunedLadder, provenance: dict[str, object]) -> Path:
    """Store a ladder under its id; a crash leaves the old state or the new one."""
    document = {
        "schema": SCHEMA,
        "spec": ladder.spec.model_dump(mode="json"),
        "provenance": provenance,
        "base": ladder.base.model_dump(),
        "trained_parameters": ladder.trained_parameters,
        "before": _held_out(ladder.before),
        "measured": {k: v if v is None else _number(v) for k, v in ladder.measured.items()},
        "runs": [
            {
                "learning_rate": rate,
                "seconds": round(seconds, 3),
                **_held_out(after),
                "loss": numbers(curves.loss),
                "grad_norm": numbers(curves.grad_norm),
            }
            for rate, curves, after, seconds in zip(
                ladder.rates, ladder.curves, ladder.after, ladder.seconds, strict=True
            )
        ],
    }
    return ResultFolder(folder).write(ladder.spec.id, json.dumps(document, allow_nan=False))


def read_fine_tuned(path: Path) -> FineTunedLadder:
    """Read a stored ladder.

    Raises:
        ArtifactError: The file is not a ladder of fine-tuning of this schema.
    """
    with stored(path, SCHEMA) as document:
        spec, runs = FineTuningSpec.model_validate(document["spec"]), document["runs"]
        return FineTunedLadder(
            spec=spec,
            base=BaseReport.model_validate(document["base"]),
            trained_parameters=document["trained_parameters"],
            before=_read_held_out(document["before"]),
            measured={k: None if v is None else float(v) for k, v in document["measured"].items()},
            rates=tuple(run["learning_rate"] for run in runs),
            seconds=tuple(run["seconds"] for run in runs),
            after=tuple(_read_held_out(run) for run in runs),
            curves=tuple(
                Curves(
                    loss=array_of(run["loss"]),
                    grad_norm=array_of(run["grad_norm"]),
                    planned_steps=spec.recipe.max_steps,
                )
                for run in runs
            ),
        )


def _held_out(found: HeldOut) -> dict[str, float | str]:
    return {"held_out_new": _number(found.new), "held_out_old": _number(found.old)}


def _read_held_out(stored: dict[str, float | str]) -> HeldOut:
    return HeldOut(new=float(stored["held_out_new"]), old=float(stored["held_out_old"]))


def _number(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
