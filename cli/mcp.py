"""`rksp mcp`: score, fix, explain and grid as tools of the Model Context Protocol."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from rksp.cli.explain import as_json
from rksp.cli.run_files import fixed, scored
from rksp.documents.terms import Terms
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.run import run_grid
from rksp.ground.errors import InputError, RkspError
from rksp.ground.factory import refuse_factory
from rksp.report.formats import render
from rksp.report.grid import grid_report

_TARGET = "a tool's target"  # which runs no code of its own
_HOW = (
    "Before you launch a training run, score its run file. Launch only if `launch` is yes; if it "
    "is caution or no, fix the file or apply `edits`, and score again; if it is unknown, ask a "
    "person."
)


def mcp() -> int:
    """Serve score, fix, explain and grid to an agent over standard input and output."""
    try:
        from mcp.server import MCPServer
    except ImportError:
        raise InputError("rksp mcp needs the official SDK; pip install 'rksp[mcp]'.") from None

    server = MCPServer("rksp", instructions=_HOW)
    for tool in (score, fix, explain, grid):
        server.tool(structured_output=False)(_refusing(tool))
    server.run("stdio")
    return 0


def score(target: str, recipe: dict[str, Any] | None = None, devices: int | None = None) -> str:
    """Say whether a run may be launched, why, and at which learning rate to start.

    Args:
        target: A trainer's run file, a config.json, a Hub id or a model type.
        recipe: Fields of the recipe that replace the file's: learning_rate, warmup_steps, …
        devices: Number of devices of the run.
    """
    refuse_factory(target, _TARGET)
    return render(scored(target, recipe=recipe, devices=devices), "brief")


def fix(file: str, write: bool = False, devices: int | None = None) -> str:
    """Show the smallest edits that remove the findings of a run file, and the new answer.

    Args:
        file: A trainer's run file.
        write: Change the file.
        devices: Number of devices of the run.
    """
    refuse_factory(file, _TARGET)
    found = fixed(file, write=write, devices=devices)
    return found.diff + render(found.after, "brief")


def explain(word: str) -> str:
    """Explain a word that rksp prints: a code such as RKSP501, a field, a verdict."""
    return as_json(word)


def grid(target: str, axes: list[str], recipe: dict[str, Any] | None = None) -> str:
    """Rank the settings of a sweep by risk.

    Args:
        target: As for score.
        axes: Such as `lr=1e-4,3e-4,1e-3` or `warmup_steps=0,100`.
        recipe: As for score.
    """
    refuse_factory(target, _TARGET)
    plan = read_plan(target, axes, recipe=recipe)
    with tempfile.TemporaryDirectory() as folder:
        found = run_grid(plan, Path(folder, "grid.db"), options=Options(evidence="config"))
    return render(grid_report(found, Terms().gate), "markdown")


def _refusing(tool: Callable[..., str]) -> Callable[..., str]:
    """Return a tool whose refusals are answers, which an agent reads; stdout is the protocol's."""

    @wraps(tool)
    def safe(*given: Any, **named: Any) -> str:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return tool(*given, **named)
        except RkspError as error:
            return json.dumps({"error": str(error)})

    return safe
