"""Count the house: lines, rooms, arrows between rooms, and the walk of a recipe through them.

A room is a package or module directly below `rksp`; an arrow, that one imports another, in
functions and for types too; its floor, the longest chain of rooms below it. The walk is that of
the recipe of a score in Python: each function that is given it is a stay, in the order of the
calls, and a step to a room on a higher floor is a climb.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
HOMES = ("rksp", "cli", "kernels", "classifiers", "datasets")


@cache
def modules() -> dict[str, str]:
    """Return the text of every module of the product by its dotted name."""
    found = {}
    for home in HOMES:
        for path in sorted((ROOT / home).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if home == "rksp" else ("rksp", *parts))
            found[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


def room(module: str) -> str:
    """Return the room of a module; the surface, which names all others, is one too."""
    return module.split(".")[1] if "." in module else module


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    found: dict[str, set[str]] = {room(module): set() for module in modules()}
    for module, text in modules().items():
        targets = {room(name) for name in _imported(text) if name.partition(".")[0] == "rksp"}
        found[room(module)] |= targets - {room(module)}
    return found


def floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room, from 1.

    Raises:
        CycleError: Rooms import each other in a circle.
    """
    found: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        found[name] = 1 + max((found[below] for below in imports[name]), default=0)
    return found


def walk(target: str = "gpt2") -> list[str]:
    """Return the functions that a score gives its recipe to, `rksp.room.module:name`, in order."""
    from rksp.recipe import Recipe
    from rksp.scoring import score

    recipe = Recipe(learning_rate=6e-4)
    stays: list[str] = []

    def seen(frame: FrameType, event: str, argument: object) -> None:
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if event != "call" or not name.startswith("rksp.") or code.co_name.startswith("<"):
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(isinstance(frame.f_locals.get(one), Recipe) for one in given):
            stay = f"{name}:{code.co_qualname}"
            if stay not in stays:
                stays.append(stay)

    sys.setprofile(seen)
    try:
        score(target, recipe=recipe, evidence="config")
    finally:
        sys.setprofile(None)
    return stays


def climbs(stays: list[str], floor: dict[str, int]) -> int:
    """Return how many steps of a walk lead to a room on a higher floor."""
    heights = [floor[room(stay.partition(":")[0])] for stay in stays]
    return sum(after > before for before, after in pairwise(heights))


def report(*, shows_walk: bool = False) -> str:
    """Return the counts, a line each; with the walk if asked for."""
    imports, stays = arrows(), walk()
    floor = floors(imports)
    lines = sum(text.count("\n") for text in modules().values())
    visited = len({stay.partition(":")[0] for stay in stays})
    counted = [
        f"{lines:,} lines of Python in {len(modules())} files",
        f"{len(imports)} rooms on {max(floor.values())} floors, no circle, "
        f"{sum(map(len, imports.values()))} arrows",
        f"the walk of a recipe: {len(stays)} stays in {visited} modules, "
        f"{climbs(stays, floor)} climbs",
    ]
    return "\n".join([*counted, *(f"  {stay}" for stay in stays if shows_walk)])
