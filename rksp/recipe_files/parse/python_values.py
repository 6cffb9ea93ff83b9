"""What an expression of Python source stands for, worked out without running any of it."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from rksp.recipe_files.parse.values import (
    Parsed,
    Section,
    Settings,
    Unresolved,
    as_section,
    read_number,
)

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Parsed]] = {
    "int": lambda given: int(of_text(given)),
    "float": lambda given: float(of_text(given)),
    "round": lambda number: round(number),
    "abs": abs,
    "min": lambda *given: min(given),
    "max": lambda *given: max(given),
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_OF_LAUNCHERS = re.compile(r"WORLD_SIZE|RANK|NODE|GPU|NPROC|TASK|DEVICES|SLURM")
ANY = "**"  # stands for every name that is not spelt out
MOST_MERGED = 200  # settings of one dict that others are poured into
_PARTS = (list, Mapping)
_LARGEST_NUMBER = 1e30  # of arithmetic: squares double the digits at every step
_UNKNOWN = Unresolved("")  # what is neither a literal nor computed of literals
# Questions about the device are answered with yes, as for the word `auto`.
_OF_GPU = ("is_bfloat16_supported", "is_bf16_supported", "is_available")
_NAMED = ("torch", "TaskType", "peft.TaskType")  # what stands in these is read as its name


def called(node: ast.Call) -> str:
    """Return the dotted name of what is called: `torch.optim.AdamW`, or `().fit` of a result."""
    parts, there = [], node.func
    while isinstance(there, ast.Attribute):
        parts.append(there.attr)
        there = there.value
    parts.append(there.id if isinstance(there, ast.Name) else "()")
    return ".".join(reversed(parts))


def last_word(node: ast.expr) -> str:
    """Return the last part of a dotted name, or of the name of what is called."""
    name = called(node) if isinstance(node, ast.Call) else ast.unparse(node)
    return name.rsplit(".", 1)[-1]


def literal(node: ast.expr, known: Section) -> Parsed:
    """Evaluate a literal, a known name or arithmetic of them; `Unresolved` otherwise."""
    value = _evaluated(node, known)
    # Written out here alone: at each level of a deep sum it would cost the square of its length.
    return Unresolved(ast.unparse(node)) if value is _UNKNOWN else value


def _evaluated(node: ast.expr, known: Section) -> Parsed:
    if isinstance(node, ast.Constant):
        return node.value if _is_small(node.value) else Unresolved("a number too large")
    if isinstance(node, ast.List | ast.Tuple):
        return [flat(part, known) for part in node.elts]
    if isinstance(node, ast.Name):
        value = known.get(node.id, _UNKNOWN)
        return Unresolved(node.id) if isinstance(value, Settings) or value is _UNKNOWN else value
    if isinstance(node, ast.Attribute):
        home = settings_of(node.value, known)
        value = _UNKNOWN if home is None else home.held.get(node.attr, _UNKNOWN)
        return _UNKNOWN if isinstance(value, Settings) else value
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return as_section(_evaluated(node.value, known)).get(str(node.slice.value), _UNKNOWN)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _evaluated(node.operand, known)
        return -value if isinstance(value, int | float) else _UNKNOWN
    if isinstance(node, ast.Call) and not node.keywords:
        return _computed(node, known)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _evaluated(node.left, known), _evaluated(node.right, known)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return _UNKNOWN
        if not isinstance(node.op, ast.Pow) or abs(right) <= 64:
            with contextlib.suppress(ZeroDivisionError, OverflowError):
                value = _ARITHMETIC[type(node.op)](left, right)
                return value if _is_small(value) else _UNKNOWN
    return _UNKNOWN


def settings_of(node: ast.expr, known: Section) -> Settings | None:
    """Return the settings of the object that an expression names: `config`, `config.optimizer`."""
    value: Parsed = None
    if isinstance(node, ast.Name):
        value = known.get(node.id)
    elif isinstance(node, ast.Attribute) and (home := settings_of(node.value, known)) is not None:
        value = home.held.get(node.attr)
    return value if isinstance(value, Settings) else None


def words_of(node: ast.Call, known: Section) -> dict[str, Parsed]:
    """Return the named arguments of a call; those of a `**settings` that is not known are `ANY`."""
    given: dict[str, Parsed] = {}
    for word in node.keywords:
        value = value_of(word.value, known)
        if word.arg is not None:
            given[word.arg] = value
        elif isinstance(value, Mapping) and len(value) <= MOST_MERGED:
            given |= value
        else:
            given[ANY] = Unresolved(f"**{ast.unparse(word.value)}")
    return given


def flat(node: ast.expr, known: Section) -> Parsed:
    """Evaluate a part as `literal` does; a name of parts again could double at every step."""
    value = literal(node, known)
    doubles = isinstance(node, ast.Name | ast.Subscript | ast.Attribute | ast.Call)
    return Unresolved(ast.unparse(node)) if doubles and isinstance(value, _PARTS) else value


def _computed(node: ast.Call, known: Section) -> Parsed:
    """Evaluate `int(0.1 * n)` and the other functions of numbers, and what has a default."""
    name = called(node)
    given = [_evaluated(part, known) for part in node.args]
    function, numbers = _FUNCTIONS.get(name), (int, float, str)
    if function is not None and given and all(isinstance(part, numbers) for part in given):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = function(*given)
            return value if _is_small(value) else _UNKNOWN
    if name in _ENVIRONMENT and len(given) == 2 and isinstance(given[0], str):
        return _UNKNOWN if _OF_LAUNCHERS.search(given[0]) else given[1]
    if name.endswith(".get") and given and isinstance(node.func, ast.Attribute):
        home = _evaluated(node.func.value, known)
        if isinstance(home, Mapping) and isinstance(given[0], str):
            return home.get(given[0], given[1] if len(given) > 1 else None)
    return _UNKNOWN


def of_text(given: Parsed) -> Any:
    """Return the number that a text spells, as `float("2e-4")` does; a number as it is."""
    return read_number(given) if isinstance(given, str) else given


def _is_small(value: object) -> TypeGuard[Parsed]:
    """Tell a text, and a number of those that a configuration computes with."""
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST_NUMBER
    return value is None or isinstance(value, str)


def value_of(node: ast.expr, known: Section) -> Parsed:
    """Return a literal, `torch.bfloat16` as its name, and a question about a GPU as a yes."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in _NAMED:
        return node.attr
    if isinstance(node, ast.Call):
        name = called(node)
        if name.rsplit(".", 1)[-1] in _OF_GPU:
            return "mps" not in name
        if name == "dict" and len(node.args) <= 1:
            poured = [(None, part) for part in node.args]
            return _merged([*poured, *((part.arg, part.value) for part in node.keywords)], known)
        if name in ("vars", "asdict", "dataclasses.asdict") and node.args:
            home = known.get(ast.unparse(node.args[0]))
            return home.held if isinstance(home, Settings) else Unresolved(ast.unparse(node))
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant | None) for k in node.keys):
        names = [None if key is None else str(getattr(key, "value", "")) for key in node.keys]
        return _merged(list(zip(names, node.values, strict=True)), known)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner, is_denied = node.operand, True
        while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            inner, is_denied = inner.operand, not is_denied
        value = value_of(inner, known)
        return value != is_denied if isinstance(value, bool) else Unresolved(ast.unparse(node))
    if isinstance(node, ast.BoolOp):
        parts = [value_of(part, known) for part in node.values]
        if all(isinstance(part, bool) for part in parts):
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = [value_of(side, known) for side in (node.left, node.comparators[0])]
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is not None and all(isinstance(side, int | float | str) for side in sides):
            with contextlib.suppress(TypeError):
                return compare(*sides)
        if ast.unparse(node).endswith("== 'cuda'"):  # of what a function picks
            return True
    if isinstance(node, ast.IfExp):
        test = value_of(node.test, known)
        if isinstance(test, bool):
            return value_of(node.body if test else node.orelse, known)
    return literal(node, known)


def _merged(pairs: list[tuple[str | None, ast.expr]], known: Section) -> Parsed:
    found: dict[str, Parsed] = {}
    for name, part in pairs:
        if name is not None:
            found[name] = _part(part, known)
            continue
        value = value_of(part, known)
        if not isinstance(value, Mapping) or len(value) > MOST_MERGED:
            return Unresolved(ast.unparse(part))
        found |= value
    return found


def _part(node: ast.expr, known: Section) -> Parsed:
    """Return a value within a dict; a name of parts again could double at every step."""
    value = value_of(node, known)
    is_written = isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Call)
    return Unresolved(ast.unparse(node)) if isinstance(value, _PARTS) and not is_written else value


ASSIGNMENT = ast.Assign | ast.AnnAssign | ast.AugAssign
_Binding = ASSIGNMENT | ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr


def named(target: ast.expr, value: Parsed) -> list[tuple[str, Parsed]]:
    """Return what an assignment gives each name; a tuple of names shares out a list."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    parts: list[Parsed] = [Unresolved(ast.unparse(target))] * len(target.elts)
    if isinstance(value, list) and len(value) == len(target.elts):
        parts = value
    return [pair for one, part in zip(target.elts, parts, strict=True) for pair in named(one, part)]


def shared(node: _Binding, value: Parsed) -> list[tuple[str, Parsed]]:
    """Return what each name that a statement binds has of its value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [pair for target in targets for pair in named(target, value)]


def bound(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return the names that a statement, a loop or an expression gives a value."""
    if not isinstance(node, _Binding) or getattr(node, "value", node) is None:
        return []
    return [(name, node) for name, _ in shared(node, None)]


def assigned_by(statement: ast.AST, known: Section) -> list[tuple[str, Parsed]]:
    """Return what an assignment gives each name: `a = 1`, `a: int = 1`, `a, b = 1, 2`, `a *= 2`."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return shared(statement, value_of(statement.value, known))
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        now = ast.Name(statement.target.id, ast.Load())
        whole = ast.BinOp(now, statement.op, statement.value)
        return [(statement.target.id, literal(whole, known))]
    return []
