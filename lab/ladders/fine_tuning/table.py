"""Pack ladders of fine-tuning into one compact, reproducible Parquet file, and read it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lab.ladders.fine_tuning.base_model import BaseReport
from lab.ladders.fine_tuning.measured import MEASURED
from lab.ladders.fine_tuning.run import FineTunedLadder, HeldOut
from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.ladders.fine_tuning.store import read_fine_tuned
from lab.ladders.ladder import POLICY
from lab.ladders.parquet import CURVES, by_ladder, ladders_of, pack_ladders, read_columns, shortened
from lab.places import DATA
from rksp.ground.errors import ArtifactError
from rksp.own_runs.outcome import Curves

SCHEMA = "rksp-fine-tuning-1"
_TEXT = (
    *("ladder", "spec", "provenance", "policy", "family", "method", "objective", "task"),
    *("domain", "targets", "schedule", "outcome"),
)
_COUNTS = (
    *("width", "depth", "parameters", "trained_parameters", "rank", "batch_size"),
    *("sequence_length", "steps", "warmup_steps", "examples"),
)
_NUMBERS = (
    *("alpha", "base_held_out", "base_trivial", "base_seconds", "before_new", "before_old"),
    *("learning_rate", "seconds", "final_train", "excess", "held_out_new", "held_out_old"),
    *("best_rate", "edge_low", "edge_high"),
)
_MEASURED = {f"measured_{name}": name for name in MEASURED}  # by column
_FIELDS = {
    **dict.fromkeys(_TEXT, "text"),
    **dict.fromkeys(_COUNTS, "count"),
    "fresh_head": "flag",
    **dict.fromkeys((*_NUMBERS, *_MEASURED), "number"),
    **dict.fromkeys(CURVES, "curve"),
}
# What the others are computed from.
_READ = (
    *("ladder", "spec", "provenance", "parameters", "trained_parameters", "base_held_out"),
    *("base_trivial", "base_seconds", "before_new", "before_old", "learning_rate", "seconds"),
    *("held_out_new", "held_out_old", *_MEASURED, *CURVES),
)


def shipped_fine_tuning() -> Path:
    """Return the path of the bundled ladders of fine-tuning."""
    return DATA / "runs" / "fine_tuning.parquet"


def rows(ladder: FineTunedLadder) -> Iterator[dict[str, object]]:
    """Yield one labelled row per run, including the curves.

    `final_train` and `excess` are infinite if a run has no final loss. Columns of adapters are None
    where all weights are trained.
    """
    judged, spec, recipe = ladder.judge(), ladder.spec, ladder.spec.recipe
    low, high = judged.edge or (None, None)
    shared = {
        "ladder": spec.id,
        "spec": json.dumps(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=True),
        "policy": judged.policy,
        "family": spec.family,
        "method": spec.method,
        "objective": recipe.objective,
        "task": spec.task,
        "domain": spec.task_options.get("domain"),
        "fresh_head": spec.fresh_head,
        "targets": ",".join(recipe.lora_targets) or None,
        "rank": recipe.lora_rank,
        "alpha": recipe.lora_alpha,
        "schedule": recipe.schedule,
        "width": spec.base.shape["hidden_size"],
        "depth": spec.base.shape["num_hidden_layers"],
        "parameters": ladder.base.parameters,
        "trained_parameters": ladder.trained_parameters,
        "batch_size": recipe.batch_size,
        "sequence_length": recipe.sequence_length,
        "steps": recipe.max_steps,
        "warmup_steps": recipe.warmup_steps,
        "examples": spec.task_options.get("examples"),
        "base_held_out": ladder.base.held_out,
        "base_trivial": ladder.base.trivial,
        "base_seconds": ladder.base.seconds,
        "before_new": ladder.before.new,
        "before_old": ladder.before.old,
        "best_rate": judged.best_rate,
        "edge_low": low,
        "edge_high": high,
        **{column: ladder.measured.get(name) for column, name in _MEASURED.items()},
    }
    for index, rate in enumerate(ladder.rates):
        yield shared | {
            "learning_rate": rate,
            "seconds": ladder.seconds[index],
            "outcome": str(judged.outcomes[index]),
            "final_train": POLICY.final_loss(ladder.curves[index]),
            "excess": judged.excess[index],
            "held_out_new": ladder.after[index].new,
            "held_out_old": ladder.after[index].old,
            "loss": ladder.curves[index].loss,
            "grad_norm": ladder.curves[index].grad_norm,
        }


def pack_fine_tuning(sources: Sequence[Path], output: Path) -> int:
    """Pack stored ladders of fine-tuning into one Parquet file, one row per run.

    The same input gives the same bytes. Curves keep 16 significant bits, and the labels are those
    of the kept curves. A ladder that is found twice is taken from the first source.

    Args:
        sources: Folders of a plan, single ladder files, or packed files to extend.
        output: The file, which is replaced atomically.

    Returns:
        The number of runs written.

    Raises:
        InputError: pyarrow is missing, or the sources hold no ladder.
        ArtifactError: A file is not a stored ladder of fine-tuning.
    """
    found = ladders_of(sources, _packed, read_fine_tuned)
    kept = ((_shortened(ladder), provenance) for ladder, provenance in found)
    return pack_ladders(kept, rows, _FIELDS, SCHEMA, output)


def read_fine_tuning(path: Path | None = None) -> list[FineTunedLadder]:
    """Read packed ladders of fine-tuning, sorted by id; `path` None reads the bundled ones.

    Raises:
        InputError: pyarrow is missing, or there is no such file.
        ArtifactError: The file does not hold ladders of fine-tuning.
    """
    return [ladder for ladder, _ in _packed(path or shipped_fine_tuning())]


def _packed(path: Path) -> Iterator[tuple[FineTunedLadder, str]]:
    for part in by_ladder(read_columns(path, SCHEMA, _READ)):
        try:
            yield _ladder(part), part["provenance"][0]
        except (ValueError, TypeError) as error:
            name = part["ladder"][0]
            raise ArtifactError(f"{path.name} holds no ladder {name}: {error!s:.200}") from error


def _ladder(columns: dict[str, list]) -> FineTunedLadder:
    first = {name: values[0] for name, values in columns.items()}
    spec = FineTuningSpec.model_validate_json(first["spec"])
    return FineTunedLadder(
        spec=spec,
        base=BaseReport(
            held_out=first["base_held_out"],
            trivial=first["base_trivial"],
            parameters=first["parameters"],
            seconds=first["base_seconds"],
        ),
        trained_parameters=first["trained_parameters"],
        before=HeldOut(new=first["before_new"], old=first["before_old"]),
        measured={name: first[column] for column, name in _MEASURED.items()},
        rates=tuple(columns["learning_rate"]),
        seconds=tuple(columns["seconds"]),
        after=tuple(
            HeldOut(new=new, old=old)
            for new, old in zip(columns["held_out_new"], columns["held_out_old"], strict=True)
        ),
        curves=tuple(
            Curves(loss=loss, grad_norm=norm, planned_steps=spec.recipe.max_steps)
            for loss, norm in zip(columns["loss"], columns["grad_norm"], strict=True)
        ),
    )


def _shortened(ladder: FineTunedLadder) -> FineTunedLadder:
    # A measurement is null in the table where it is not a number.
    measured = {
        name: None if value is None or math.isnan(value) else value
        for name, value in ladder.measured.items()
    }
    return replace(ladder, curves=shortened(ladder.curves), measured=measured)
