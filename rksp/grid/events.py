"""What a worker says while it works on a group of cells: plain mappings that travel as JSON."""

from __future__ import annotations

from typing import Literal, TypedDict

Failure = Literal["invalid", "out of memory", "error", "killed", "timeout"]

# Trying again cannot help a configuration that is wrong, and would hang twice.
FINAL: tuple[Failure, ...] = ("invalid", "error", "timeout")


class CellGroup(TypedDict):
    """A group of cells with one initialization; `cells` are (key, recipe fields)."""

    target: str
    overrides: dict[str, object]
    seed: int
    options: dict[str, object]
    cells: list[tuple[str, dict[str, object]]]


class Event(TypedDict, total=False):
    """One of four: the work began, the profile is made, a cell has a result, or something failed.

    Attributes:
        kind: `started`, `profile`, `result` or `failed`.
        cell: Key; absent where the whole group is meant.
        seconds: What the profile cost.
        result: See `rksp.grid.evaluate.summarize`.
        failure: Its kind.
        message: One sentence.
    """

    kind: Literal["started", "profile", "result", "failed"]
    cell: str
    seconds: float
    result: dict[str, object]
    failure: Failure
    message: str
