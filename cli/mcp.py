"""`rksp mcp`: score, fix, explain and grid as tools of the Model Context Protocol."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.calls.fix import fix as fixed
from rksp.calls.fix import scored
from rksp.calls.trial import grid as judged
from rksp.cli.explain import as_json
from rksp.ground.errors import InputError, RkspError
from rksp.ground.factory import refuse_factory
from rksp.ground.versions import version
from rksp.report.formats import render

_TARGET = "a tool's target"  # which runs no code of its own
_HOW = (
    "Before you launch a training run, score its run file. Launch only if `launch` is yes; if it "
    "is caution or no, fix the file or apply `edits`, and score again; if it is unknown, ask a "
    "person."
)


def mcp(
    root: Annotated[
        Path, typer.Option(help="The folder outside of which no file is read or written.")
    ] = Path(),
) -> int:
    """Serve score, fix, explain and grid to an agent over standard input and output."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.tools import Tool
    except ImportError:
        raise InputError("rksp mcp needs the official SDK; pip install 'rksp[mcp]'.") from None

    if not root.is_dir():
        raise InputError(f"--root {root} is no folder.")
    tools = []
    for tool in (score, fix, explain, grid):
        safe = _refusing(tool, root.resolve())
        made = Tool.from_function(safe, structured_output=False)
        taken = made.fn_metadata.arg_model
        taken.model_config["extra"] = "forbid"  # an argument that is not there is no answer
        taken.model_rebuild(force=True)
        tools.append(made)
    server = MCPServer("rksp", instructions=_HOW, version=version("rksp"), tools=tools)
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
    return render(judged(target, axes, recipe=recipe, evidence="config"), "markdown")


def _refusing(tool: Callable[..., str], root: Path) -> Callable[..., str]:
    """Return a tool whose refusals are answers, which an agent reads; stdout is the protocol's."""

    @wraps(tool)
    def safe(*given: Any, **named: Any) -> str:
        try:
            for name in [*given, *named.values()]:
                _refuse_outside(name, root)
            with contextlib.redirect_stdout(sys.stderr), contextlib.chdir(root):
                return tool(*given, **named)
        except RkspError as error:
            return json.dumps({"error": str(error)})

    return safe


def _refuse_outside(name: object, root: Path) -> None:
    path = Path(name.partition("::")[0]) if isinstance(name, str) else Path()
    try:
        inside = (root / path).resolve()
        is_outside = inside.exists() and not inside.is_relative_to(root)
    except (OSError, ValueError):  # no name of a file
        return
    if is_outside:
        raise InputError(f"{name} lies outside of {root}, which is all that rksp mcp serves.")
