"""Count the house: lines, rooms, arrows between rooms, and the walk of a recipe through them.

Lines are those of Python and those of tables (TOML, JSONL, TSV, JavaScript, templates); lines of
code are Python without docstrings, blank lines, comments and imports. A string-keyed access is
`x["key"]` or `x.get("key")`; a line with `Any` states no type. A room is a package or module
directly below `rksp`; an arrow, that one imports another, in functions and for types too; its
floor, the longest chain of rooms below it. The walk is that of the learning rate of a score in
Python: each call that is given it, by itself or within an argument, is a stay, but for the checks,
which all look at it; a first stay is a function's first one, and a step to a room on a higher floor
is a climb.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
HOMES = ("rksp", "cli", "kernels", "classifiers", "datasets")
TABLES = (".toml", ".jsonl", ".tsv", ".js", ".j2")
_RATE = 6.1234e-4  # no default has it
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_KEYED = re.compile(r"""(?<=[\w\])])\[["'][^"'\n]*["']\]|\.get\(["']""")
_UNTYPED = re.compile(r"^.*\bAny\b", re.MULTILINE)
_DEPTH = 2  # how far within an argument the rate may lie
_MOST = 64  # parts of an argument that are looked into


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


def table_lines() -> int:
    """Return the lines of all tables of the product; data are none."""
    homes = [ROOT / home for home in HOMES if home != "datasets"]
    found = [path for home in homes for path in home.rglob("*") if path.suffix in TABLES]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in found)


def code_lines(text: str) -> int:
    """Return the lines that are neither blank nor part of a docstring, a comment or an import."""
    lines = text.splitlines()
    tree, left = ast.parse(text), set(range(len(lines)))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, _DOCUMENTED) and body and ast.get_docstring(node) is not None:
            left -= _lines_of(body[0])
        if isinstance(node, ast.Import | ast.ImportFrom):
            left -= _lines_of(node)
    return sum(bool(lines[n].strip()) and not lines[n].strip().startswith("#") for n in left)


def keyed(text: str) -> int:
    """Return how often a text looks a value up by a string that it spells out."""
    return len(_KEYED.findall(text))


def untyped(text: str) -> int:
    """Return the lines of a text with `Any`."""
    return len(_UNTYPED.findall(text))


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno - 1, node.end_lineno or node.lineno))


def carries(value: object, rate: float, depth: int = _DEPTH) -> bool:
    """Tell whether a value is the rate, or holds it at most this deep."""
    if isinstance(value, float):
        return value == rate
    if depth == 0 or isinstance(value, str | bytes | int | type(None)):
        return False
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        names = getattr(type(value), "__slots__", ())
        slots = names if isinstance(names, tuple) else (names,)
        kept = getattr(value, "__dict__", {})
        parts = [*kept.values(), *(getattr(value, one, None) for one in slots if one != "__dict__")]
    return any(carries(part, rate, depth - 1) for part in parts[:_MOST])


def walk(target: str = "gpt2") -> list[str]:
    """Return the calls that are given the rate of a score, `rksp.room.module:name`, in order."""
    from rksp.calls.score import score

    score(target, lr=1e-3, evidence="config")  # what is loaded once is no part of a walk
    stays: list[str] = []

    def seen(frame: FrameType, event: str, argument: object) -> None:
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if event != "call" or not name.startswith("rksp.") or code.co_name.startswith("<"):
            return
        if name.startswith("rksp.checks.") and name != "rksp.checks.registry":
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(carries(frame.f_locals.get(one), _RATE) for one in given):
            stays.append(f"{name}:{code.co_qualname}")

    sys.setprofile(seen)
    try:
        score(target, lr=_RATE, evidence="config")
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
    floor, first = floors(imports), list(dict.fromkeys(stays))
    texts = modules().values()
    lines, tables = sum(text.count("\n") for text in texts), table_lines()
    visited = len({stay.partition(":")[0] for stay in first})
    counted = [
        f"{lines:,} lines of Python in {len(modules())} files and {tables:,} of tables, together "
        f"{lines + tables:,}; {sum(map(code_lines, texts)):,} lines of code",
        f"{1000 * sum(map(keyed, texts)) / lines:.1f} string-keyed accesses a thousand lines, "
        f"{sum(map(untyped, texts))} lines with Any",
        f"{len(imports)} rooms on {max(floor.values())} floors, no circle, "
        f"{sum(map(len, imports.values()))} arrows",
        f"the walk of a learning rate: {len(stays)} stays, {len(first)} first ones in {visited} "
        f"modules, {climbs(first, floor)} climbs",
    ]
    return "\n".join([*counted, *(f"  {stay}" for stay in first if shows_walk)])
