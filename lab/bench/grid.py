"""Measure what a grid costs beyond the profiles of its models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rksp.grid.cell import evaluate_group
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore
from rksp.ground.flags import assignments

_LEASE = 3600.0
_WARM_UPS = (0, 10, 30, 100, 300)


def grid_cost(
    target: str,
    *,
    overrides: Mapping[str, object] | None = None,
    models: int = 10,
    cells: int = 1000,
) -> dict[str, float]:
    """Evaluate a grid of learning rates and warm-ups over several initializations in this process.

    The cost of a model's profile is the cost of its first cell: the initialization, the forward
    pass with its spectra, the response to a step, and one answer. That is a whole `rksp score`.
    Each later cell costs one answer. The first model is profiled once before the clock starts, so
    that one-time imports do not count.

    Args:
        target: As for `rksp score`.
        overrides: Configuration settings.
        models: Number of initializations.
        cells: Number of cells of the whole grid.

    Returns:
        `cells`, `profiles` (how many were made), `profiles_s` (their sum), `grid_s` (everything,
        with the store) and `ratio`. Times are CPU seconds of this process.
    """
    rates = cells // (models * len(_WARM_UPS))
    grid = {
        "seed": list(range(models)),
        "lr": [10 ** (-5 + 4 * i / max(1, rates - 1)) for i in range(rates)],
        "warmup": list(_WARM_UPS),
    }
    plan = read_plan(grid, target=target, overrides=overrides)
    _load(plan.cells[0].target, overrides)
    profiles = 0.0
    with tempfile.TemporaryDirectory() as folder, GridStore(Path(folder) / "grid.db") as store:
        start = time.process_time()
        store.fill(plan.cells, Options())
        while task := store.claim(_LEASE):
            begun, is_first = time.process_time(), True
            for event in evaluate_group(task):
                if event.kind == "profile":
                    store.profiled(task.cells[0].key, event.seconds)
                    continue
                if event.cell is None or event.result is None:
                    raise RuntimeError(event.message)
                store.finish(event.cell, event.result)
                if is_first:
                    profiles, is_first = profiles + time.process_time() - begun, False
        whole = time.process_time() - start
        return {
            "cells": store.counts()["done"],
            "profiles": len(store.profiles()),
            "profiles_s": profiles,
            "grid_s": whole,
            "ratio": whole / profiles,
        }


def _load(target: str, overrides: Mapping[str, object] | None) -> None:
    """Evaluate one cell and discard its answer, to pay for the imports."""
    plan = read_plan({"lr": [1e-3]}, target=target, overrides=overrides)
    with tempfile.TemporaryDirectory() as folder, GridStore(Path(folder) / "grid.db") as store:
        store.fill(plan.cells, Options())
        for _ in evaluate_group(store.claim(_LEASE)):
            pass


def main(
    target: Annotated[str, typer.Argument(help="As for rksp score.")] = "gpt2",
    models: Annotated[int, typer.Option(help="Distinct initializations.")] = 10,
    cells: Annotated[int, typer.Option(help="Cells of the whole grid.")] = 1000,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
) -> None:
    """Compare a grid of rates and warm-ups with the sum of its models' profiles."""
    settings = assignments(overrides or [])
    for name, value in grid_cost(target, overrides=settings, models=models, cells=cells).items():
        typer.echo(f"{name}: {value:.4g}")


if __name__ == "__main__":
    typer.run(main)
