"""`rksp grid`: whole sweeps before they start, each distinct initialization profiled once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import (
    AllowHub,
    Devices,
    ExitZero,
    ProbeFile,
    RiskBound,
    Snapshots,
    TrustRemoteCode,
)
from rksp.cli.rendering import emit
from rksp.errors import InputError
from rksp.text import one_line

if TYPE_CHECKING:
    from rksp.grid.cell import Options
    from rksp.grid.engines.base import Engine
    from rksp.grid.plan import GridPlan
    from rksp.grid.run import GridResult
    from rksp.grid.table import Record
    from rksp.report.gate import Gate

_FORMATS = ("text", "json", "csv", "html", "markdown", "junit")
_ENGINES = ("local", "ray", "slurm")
_STORE_MARK = b"SQLite format 3\x00"


def grid(
    source: Annotated[
        str,
        typer.Argument(
            help="W&B sweep, grid (YAML, JSON), rows (CSV, JSON Lines, Parquet), a trainer's run "
            "file to vary, a target, or a store to look at."
        ),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Argument(help="Axes: lr=1e-4,3e-4 n_layer=range(2,9,2) lr=logspace(-4,-2,9)."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("-o", "--output", help="Store; the same grid resumes in it.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The model, where the file has none.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Draw this many cells; needed for ranges.")
    ] = None,
    sample_seed: Annotated[int, typer.Option(help="Of the drawing.")] = 0,
    ignore: Annotated[
        list[str] | None, typer.Option(help="An axis that is neither recipe nor model; repeatable.")
    ] = None,
    devices: Devices = None,
    max_cells: Annotated[int, typer.Option(help="Refuse larger grids.")] = 10_000,
    engine: Annotated[str, typer.Option(help="local, ray or slurm.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Models at work at once.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster.")] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter of submitit: slurm_partition=cpu, timeout_min=60, mem_gb=8."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one profile or cell.")] = 1800.0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Open failed cells again.")
    ] = False,
    evidence: Annotated[str, typer.Option(help="forward, response or micro.")] = "response",
    snapshots: Snapshots = 2048,
    probe: ProbeFile = None,
    fail_on: Annotated[
        str, typer.Option(help="P(failed) at which a cell is a risk; or error, warning, never.")
    ] = "0.5",
    risk: RiskBound = 0.05,
    max_params: Annotated[float, typer.Option(help="Refuse larger models.")] = 2e9,
    threads: Annotated[int, typer.Option(help="Of each worker.")] = 1,
    top: Annotated[int | None, typer.Option(help="Print only so many cells.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Print only such cells: lr<=1e-3; repeatable.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="text, json, csv, html, markdown or junit.")
    ] = "text",
    export: Annotated[
        list[Path] | None, typer.Option(help="Also write .csv, .jsonl or .parquet; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and stop.")] = False,
    exit_zero: ExitZero = False,
    trust_remote_code: TrustRemoteCode = False,
    allow_hub: AllowHub = False,
) -> int:
    """Ranks a whole sweep by its risk; exit 1 if a cell is at or above the bar."""
    from rksp.grid.cell import Options
    from rksp.grid.plan import read_plan
    from rksp.grid.run import read_grid, run_grid
    from rksp.report.gate import Gate

    _check(output_format, engine, evidence, workers, top, where or [], export or [])
    gate = Gate.parse(fail_on)
    if _is_store(source):
        return _show(
            read_grid(Path(source)), gate, output_format, top, where, export, exit_zero=exit_zero
        )
    plan = read_plan(
        source,
        assignments or [],
        target=target,
        samples=samples,
        seed=sample_seed,
        ignore=ignore or [],
        devices=devices,
        max_cells=max_cells,
    )
    options = Options(
        evidence=evidence,
        states=snapshots,
        probe=str(probe) if probe else None,
        risk=risk,
        max_params=max_params,
        threads=threads,
        allow_hub=allow_hub,
        trust_remote_code=trust_remote_code,
    )
    groups = _announce(plan, options)
    if dry_run:
        for cell in plan.cells:
            print(json.dumps({"target": cell.target, "seed": cell.seed, **cell.labels}))
        return 0
    if store is None:
        raise InputError("rksp grid keeps its results in a file; give -o STORE, such as grid.db.")
    start = time.monotonic()
    result = run_grid(
        plan,
        store,
        options=options,
        engine=_engine(engine, workers, address, slurm or [], store, groups),
        timeout=timeout,
        retry_failed=retry_failed,
        progress=lambda line: _say(f"{time.monotonic() - start:.0f} s: {line}"),
    )
    return _show(result, gate, output_format, top, where, export, exit_zero=exit_zero)


def _check(
    output_format: str,
    engine: str,
    evidence: str,
    workers: int | None,
    top: int | None,
    where: list[str],
    exports: list[Path],
) -> None:
    """Everything that can be wrong is said before there is any work."""
    from rksp.grid.export import check_export
    from rksp.grid.table import Condition

    for condition in where:
        Condition.parse(condition)
    for path in exports:
        check_export(path)
    for option, value, known in (
        ("--format", output_format, _FORMATS),
        ("--engine", engine, _ENGINES),
        ("--evidence", evidence, ("forward", "response", "micro")),
    ):
        if value not in known:
            raise InputError(f"{option} {value!r} is none of {', '.join(known)}.")
    for option, value in (("--workers", workers), ("--top", top)):
        if value is not None and value < 1:
            raise InputError(f"{option} is {value}; give at least 1.")


def _is_store(source: str) -> bool:
    path = Path(source)
    try:
        if not path.is_file():
            return False
    except OSError as error:
        raise InputError(f"The grid {source[:200]!r} cannot be used: {error.strerror}.") from None
    with path.open("rb") as file:
        return file.read(len(_STORE_MARK)) == _STORE_MARK


def _announce(plan: GridPlan, options: Options) -> int:
    """Says what there is to do; returns the number of distinct initializations."""
    for note in plan.notes:
        _say(note)
    groups = len({cell.init_key(options) for cell in plan.cells})
    _say(f"{len(plan.cells)} cells of {groups} distinct initializations")
    return groups


def _engine(
    name: str,
    workers: int | None,
    address: str | None,
    slurm: list[str],
    store: Path,
    groups: int,
) -> Engine | None:
    if name == "ray":
        from rksp.grid.engines.ray import RayEngine

        return RayEngine(workers, address=address)
    if name == "slurm":
        from rksp.grid.engines.slurm import SlurmEngine

        folder = store.with_suffix(".jobs")
        return SlurmEngine(folder, workers or groups, parameters=_parameters(slurm))
    if workers is None:
        return None
    from rksp.grid.engines.local import LocalEngine

    return LocalEngine(workers)


def _parameters(pairs: list[str]) -> dict[str, object]:
    from rksp.recipe_files.document import parse_yaml

    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--slurm {pair!r} is not NAME=VALUE, such as timeout_min=60.")
        found[name] = parse_yaml(value)
    return found


def _show(
    result: GridResult,
    gate: Gate,
    output_format: str,
    top: int | None,
    where: list[str] | None,
    exports: list[Path] | None,
    *,
    exit_zero: bool,
) -> int:
    from rksp.grid import table
    from rksp.grid.export import export, to_csv
    from rksp.grid.terminal import render

    everything = result.records(gate.bar)
    found = table.where(everything, where or [])[:top]
    for path in exports or []:
        export(everything, path)
    if output_format == "csv":
        sys.stdout.write(to_csv(found))
    elif output_format == "json":
        document = _document(result, everything, found, gate)
        json.dump(document, sys.stdout, sort_keys=True, indent=1)
        sys.stdout.write("\n")
    elif output_format == "text":
        sys.stdout.write(render(everything, found, result.axes()))
    else:
        from rksp.report.sweep import SweepReport

        document = _document(result, everything, found, gate)
        emit(SweepReport.model_validate(document), output_format, [])
    return _exit_code(result, everything, gate, exit_zero=exit_zero)


def _document(
    result: GridResult, everything: list[Record], found: list[Record], gate: Gate
) -> dict[str, object]:
    from rksp.grid import table

    return {
        "kind": "grid",
        "cells": found,
        "cells_in_grid": len(everything),
        "profiles_made": len(result.profiles),
        "best_safe": table.best_safe(everything),
        "pareto": table.pareto(everything),
        "failing": [record["position"] for record in found if _fails(record, gate)],
        "made_by": dict(result.made_by),
    }


def _exit_code(result: GridResult, found: list[Record], gate: Gate, *, exit_zero: bool) -> int:
    """3 if something could not run (2 if nothing could, for what was given); 1 for a risk."""
    count, missing = len(result.rows), result.unfinished()
    broken = [row for row in missing if row.state == "failed"]
    if broken:
        why = str(broken[0].message)
        _say(f"{len(broken)} of {count} cells could not run; the first: {why}")
        if "no such setting" in why:
            _say("leave out what is neither recipe nor model with --ignore NAME")
        if len(broken) == count and all(row.failure == "invalid" for row in broken):
            return 2
    if len(missing) > len(broken):
        _say(f"{len(missing) - len(broken)} of {count} cells are not done; the same grid resumes")
    if missing:
        return 3
    failing = [record for record in found if _fails(record, gate)]
    if not failing:
        return 0
    worst = failing[-1]  # they are ranked
    rate = worst["learning_rate"]
    at = f" (worst: {worst['model']}{f' at {rate:.3g}' if rate else ''})"
    code = 0 if exit_zero else 1
    _say(f"exit {code}: {len(failing)} of {len(found)} cells fail --fail-on {gate.fail_on}{at}")
    return code


def _fails(record: Record, gate: Gate) -> bool:
    if gate.fail_on == "never":
        return False
    levels = {"error": ("error",), "warning": ("error", "warning")}.get(gate.level or "", ())
    return record["verdict"] == "risk" or any(
        word in levels for word in str(record["findings"]).split()
    )


def _say(line: str) -> None:
    print(f"rksp: {one_line(line)}", file=sys.stderr)
