"""`rksp grid`: whole sweeps before they start, each distinct initialization profiled once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from rksp.errors import InputError

_FORMATS = ("text", "json", "csv")
_ENGINES = ("local", "ray", "slurm")


def grid(
    source: Annotated[
        str,
        typer.Argument(
            help="W&B sweep, grid (YAML, JSON), rows (CSV, JSON Lines, Parquet), a trainer's run "
            "file to vary, or a target."
        ),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Argument(help="Axes: lr=1e-4,3e-4 n_layer=range(2,9,2) lr=logspace(-4,-2,9)."),
    ] = None,
    store_file: Annotated[
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
    max_cells: Annotated[int, typer.Option(help="Refuse larger grids.")] = 10_000,
    engine: Annotated[str, typer.Option(help="local, ray or slurm.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Groups at once.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one profile or cell.")] = 1800.0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Open failed cells again.")
    ] = False,
    evidence: Annotated[str, typer.Option(help="forward, response or micro.")] = "response",
    snapshots: Annotated[int, typer.Option(help="Token states per block.")] = 2048,
    probe: Annotated[Path | None, typer.Option(help="Text to show instead of the bundled.")] = None,
    fail_on: Annotated[float, typer.Option(help="P(failed) at which a cell is a risk.")] = 0.5,
    risk: Annotated[float, typer.Option(help="Upper bound of the risk at the safe rate.")] = 0.05,
    max_params: Annotated[float, typer.Option(help="Refuse larger models.")] = 2e9,
    threads: Annotated[int, typer.Option(help="Of each worker.")] = 1,
    top: Annotated[int | None, typer.Option(help="Print only so many cells.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Print only such cells: lr<=1e-3; repeatable.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text, json or csv.")] = "text",
    export: Annotated[
        list[Path] | None, typer.Option(help="Also write .csv, .jsonl or .parquet; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and stop.")] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
    allow_hub: Annotated[bool, typer.Option("--allow-hub", help="Let a Hub id download.")] = False,
) -> int:
    """Ranks a whole sweep by its risk; exit 1 if no model has a cell below the bar."""
    from rksp.grid.cell import Options
    from rksp.grid.plan import read_plan
    from rksp.grid.store import GridStore

    _check(output_format, engine, evidence, workers, top)
    plan = read_plan(
        source,
        assignments or [],
        target=target,
        samples=samples,
        seed=sample_seed,
        ignore=ignore or [],
        max_cells=max_cells,
    )
    for note in plan.notes:
        print(f"rksp: {note}", file=sys.stderr)
    options = Options(
        evidence=evidence,
        states=snapshots,
        probe=str(probe) if probe else None,
        threshold=fail_on,
        risk=risk,
        max_params=max_params,
        threads=threads,
        allow_hub=allow_hub,
        trust_remote_code=trust_remote_code,
    )
    profiles = len({cell.init_key(options) for cell in plan.cells})
    print(f"rksp: {len(plan.cells)} cells, {profiles} initializations", file=sys.stderr)
    if dry_run:
        for cell in plan.cells:
            print(json.dumps({"target": cell.target, "seed": cell.seed, **cell.labels}))
        return 0
    if store_file is None:
        raise InputError("rksp grid keeps its results in a file; give -o STORE, such as grid.db.")
    with GridStore(store_file) as store:
        known = store.fill(plan.cells, options)
        if known:
            done = store.counts()["done"]
            print(f"rksp: resumes, {done} of {known} cells are done", file=sys.stderr)
        if retry_failed:
            store.retry_failed()
        if any(store.counts()[state] for state in ("todo", "running")):
            _drive(store, _engine(engine, workers, address, store_file, profiles), timeout)
        rows = store.rows()
    return _show(rows, output_format, top, where or [], export or [], exit_zero)


def _check(
    output_format: str, engine: str, evidence: str, workers: int | None, top: int | None
) -> None:
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


def _engine(name: str, workers: int | None, address: str | None, store_file: Path, groups: int):
    import os

    if name == "ray":
        from rksp.grid.engines.ray import RayEngine

        return RayEngine(workers, address=address)
    if name == "slurm":
        from rksp.grid.engines.slurm import SlurmEngine

        return SlurmEngine(store_file.with_suffix(".jobs"), workers or groups)
    from rksp.grid.engines.local import LocalEngine

    return LocalEngine(workers or max(1, min(groups, (os.cpu_count() or 2) // 2)))


def _drive(store, engine, timeout: float) -> None:
    from rksp.grid.drive import drive

    start = time.monotonic()
    drive(
        store,
        engine,
        timeout=timeout,
        progress=lambda line: print(
            f"rksp: {store.counts()['done']} done, {time.monotonic() - start:.0f} s: {line}",
            file=sys.stderr,
        ),
    )


def _show(
    rows, output_format: str, top: int | None, where: list[str], exports: list[Path], zero: bool
) -> int:
    from rksp.grid import table
    from rksp.grid.terminal import render

    everything = table.records(rows)
    found = table.where(everything, where)[:top]
    for path in exports:
        table.export(everything, path)
    if output_format == "csv":
        sys.stdout.write(table.to_csv(found))
    elif output_format == "json":
        best = table.best_safe(everything)
        document = {"cells": found, "best_safe": best, "pareto": table.pareto(everything)}
        json.dump(document, sys.stdout, sort_keys=True, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(everything, found, table.axes_of(rows)))
    return _exit_code(rows, everything, zero)


def _exit_code(rows, found: list[dict[str, object]], zero: bool) -> int:
    """3 if something could not run (2 if nothing could, for what was given); 1 if all is risky."""
    failed = [row for row in rows if row.state == "failed"]
    if failed:
        count = f"{len(failed)} of {len(rows)} cells could not run"
        print(f"rksp: {count}; the first: {failed[0].message}", file=sys.stderr)
        nothing = len(failed) == len(rows) and all(row.failure == "invalid" for row in failed)
        return 2 if nothing else 3
    is_risky = all(record["verdict"] == "risk" for record in found)
    return 1 if is_risky and not zero else 0
