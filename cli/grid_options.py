"""Options of `rksp grid`: its cells, its workers, its output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rksp.cli.output_options import ExitZero, FailOn, format_of
from rksp.ground.flags import Flag
from rksp.ground.model import Finite
from rksp.report.formats import suffixes_of


class PlanOptions(Finite):
    """Options of the cells of a grid."""

    target: Annotated[
        str | None, Flag("--target", "The model, if the file names none.", unit="target")
    ] = None
    samples: Annotated[
        int | None,
        Flag("--samples", "Draw this many cells at random; needed for ranges.", unit="cells"),
    ] = Field(default=None, ge=1)
    sample_seed: Annotated[int, Flag("--sample-seed", "Seed of the random draw.", unit="seed")] = 0
    ignore: Annotated[
        list[str],
        Flag(
            "--ignore",
            "Ignore this axis, which sets neither recipe nor model; repeatable.",
            unit="axis",
        ),
    ] = []
    max_cells: Annotated[int, Flag("--max-cells", "Refuse larger grids.", unit="cells")] = Field(
        default=10_000, ge=1
    )
    dry_run: Annotated[bool, Flag("--dry-run", "Print the cells and stop.")] = False


class EngineOptions(Finite):
    """Options of the workers."""

    engine: Annotated[
        Literal["local", "ray", "slurm"], Flag("--engine", "Where the workers run.")
    ] = "local"
    workers: Annotated[
        int | None,
        Flag("--workers", "Number of models to measure at the same time.", unit="workers"),
    ] = Field(default=None, ge=1)
    address: Annotated[
        str | None, Flag("--address", "Address of a Ray cluster.", unit="address")
    ] = None
    slurm: Annotated[
        list[str],
        Flag(
            "--slurm",
            "A parameter of submitit: slurm_partition=cpu, timeout_min=60, mem_gb=8.",
            unit="name=value",
        ),
    ] = []
    timeout: Annotated[
        float, Flag("--timeout", "Time limit for one profile or cell.", unit="seconds")
    ] = Field(default=1800.0, gt=0)
    retry_failed: Annotated[bool, Flag("--retry-failed", "Run failed cells again.")] = False


class ViewOptions(Finite):
    """Options of a grid's output and exit code."""

    fail_on: FailOn = ["0.5"]
    exit_zero: ExitZero = False
    output_format: format_of("grid") = "text"  # type: ignore[valid-type]  # a table
    output: Annotated[
        list[str],
        Flag(
            "--output",
            f"Also write FILE ({suffixes_of('grid')}) or FORMAT=FILE; a FILE.db is the store, "
            "from which the same grid resumes. Repeatable.",
            aliases=("-o",),
            unit="file",
        ),
    ] = []
    top: Annotated[int | None, Flag("--top", "Print only this many cells.", unit="cells")] = Field(
        default=None, ge=1
    )
    where: Annotated[
        list[str],
        Flag("--where", "Print only the cells that match: lr<=1e-3; repeatable.", unit="condition"),
    ] = []
    export: Annotated[
        list[Path],
        Flag(
            "--export",
            "Also write all cells (.csv, .jsonl), or those that pass as a sweep: W&B "
            "(.yaml), Hydra (.txt), Optuna (.json); repeatable.",
            unit="file",
        ),
    ] = []
