"""Read the packed ladders of fine-tuning; what trained them stands in commit 334acbc6."""

from __future__ import annotations

from pathlib import Path

from lab.ladders.fine_tuning.ladder import BaseReport, FineTunedLadder, FineTuningSpec, HeldOut
from lab.ladders.parquet import CURVES, by_ladder, read_columns
from lab.places import DATA
from rksp.ground.errors import ArtifactError
from rksp.own_runs.outcome import Curves

SCHEMA = "rksp-fine-tuning-1"
_MEASURED = ("grad_norm", "critical_rate", "drift_1e-03")
_READ = (
    *("ladder", "spec", "parameters", "trained_parameters", "base_held_out", "base_trivial"),
    *("before_new", "before_old", "learning_rate", "held_out_new", "held_out_old", *CURVES),
    *(f"measured_{name}" for name in _MEASURED),
)


def shipped_fine_tuning() -> Path:
    """Return the path of the bundled ladders of fine-tuning."""
    return DATA / "runs" / "fine_tuning.parquet"


def read_fine_tuning(path: Path | None = None) -> list[FineTunedLadder]:
    """Read packed ladders of fine-tuning, sorted by id; `path` None reads the bundled ones.

    Raises:
        InputError: pyarrow is missing, or there is no such file.
        ArtifactError: The file does not hold ladders of fine-tuning.
    """
    path = path or shipped_fine_tuning()
    found = []
    for part in by_ladder(read_columns(path, SCHEMA, _READ)):
        try:
            found.append(_ladder(part))
        except (ValueError, TypeError) as error:
            name = part["ladder"][0]
            raise ArtifactError(f"{path.name} holds no ladder {name}: {error!s:.200}") from error
    return found


def _ladder(columns: dict[str, list]) -> FineTunedLadder:
    first = {name: values[0] for name, values in columns.items()}
    spec = FineTuningSpec.model_validate_json(first["spec"])
    return FineTunedLadder(
        id=first["ladder"],
        spec=spec,
        base=BaseReport(
            held_out=first["base_held_out"],
            trivial=first["base_trivial"],
            parameters=first["parameters"],
        ),
        trained_parameters=first["trained_parameters"],
        before=HeldOut(new=first["before_new"], old=first["before_old"]),
        measured={name: first[f"measured_{name}"] for name in _MEASURED},
        rates=tuple(columns["learning_rate"]),
        after=tuple(
            HeldOut(new=new, old=old)
            for new, old in zip(columns["held_out_new"], columns["held_out_old"], strict=True)
        ),
        curves=tuple(
            Curves(loss=loss, grad_norm=norm, planned_steps=spec.recipe.max_steps)
            for loss, norm in zip(columns["loss"], columns["grad_norm"], strict=True)
        ),
    )
