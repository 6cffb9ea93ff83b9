"""`rksp mcp`: score, fix, explain and grid as tools of the Model Context Protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError, RkspError
from rksp.ground.factory import refuse_factory
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe

_PATIENCE = 300.0  # seconds
_DONE = (0, 1, 4)
_HOW = (
    "Before you launch a training run, score its run file. Launch only if `launch` is yes; if it "
    "is no, fix the file or apply `edits`, and score again; if it is unknown, ask a person."
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
    return _answer(["score", *_asked(target, recipe, devices), *_CONFIG, "--format", "brief"])


def fix(file: str, write: bool = False, devices: int | None = None) -> str:
    """Show the smallest edits that remove the findings of a run file, and the new answer.

    Args:
        file: A trainer's run file.
        write: Change the file.
        devices: Number of devices of the run.
    """
    return _answer(["fix", *_asked(file, None, devices), *(["--write"] if write else [])])


def explain(word: str) -> str:
    """Explain a word that rksp prints: a code such as RKSP501, a field, a verdict."""
    return _answer(["explain", "--format", "json", "--", word])


def grid(target: str, axes: list[str], recipe: dict[str, Any] | None = None) -> str:
    """Rank the settings of a sweep by risk.

    Args:
        target: As for score.
        axes: Such as `lr=1e-4,3e-4,1e-3` or `warmup_steps=0,100`.
        recipe: As for score.
    """
    if any(axis.startswith("-") for axis in axes):
        raise InputError("An axis has the form name=value,value.")
    with tempfile.TemporaryDirectory() as folder:
        store = ["-o", str(Path(folder, "grid.db")), "--format", "markdown"]
        return _answer(["grid", *_asked(target, recipe, None), *axes, *_CONFIG, *store])


_CONFIG = ("--evidence", "config")


def _asked(target: str, recipe: Mapping[str, Any] | None, devices: int | None) -> list[str]:
    """Return the words of a command: nothing that an agent gives may run code or write a file.

    Raises:
        InputError: The target is an option or a factory, or the recipe has no such field.
    """
    refuse_factory(target, "a tool's target")
    if target.startswith("-"):
        raise InputError(f"{target} is an option; give a run file or a model.")
    flags = {name: flag.name for name, flag in flags_of(Recipe).items()}
    words = [target]
    for name, value in (recipe or {}).items():
        if name not in flags:
            raise InputError(f"The recipe has no field {name}; it has {', '.join(flags)}.")
        words.append(f"{flags[name]}={value}")
    return words + ([f"--devices={devices}"] if devices is not None else [])


def _refusing(tool: Callable[..., str]) -> Callable[..., str]:
    """Return a tool whose refusals are answers, which an agent reads."""

    @wraps(tool)
    def safe(*given: Any, **named: Any) -> str:
        try:
            return tool(*given, **named)
        except RkspError as error:
            return json.dumps({"error": str(error)})

    return safe


def _answer(words: list[str]) -> str:
    """Run a command in a process of its own; a refusal is its sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "rksp", *words],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_PATIENCE,
    )  # fmt: skip
    if done.returncode in _DONE:
        return done.stdout
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return json.dumps({"error": said[-1].removeprefix("rksp: ")})
