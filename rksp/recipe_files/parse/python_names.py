"""What the names of a Python script stand for: assignments, options, fields of classes, imports.

A name counts with what it was assigned last, if every assignment to it is at the top level, or if
there is only one, at whatever depth. An option of the script's command line has its default.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rksp.ground.budgets import SETTINGS
from rksp.recipe_files.parse.python_values import (
    ANY,
    ASSIGNMENT,
    assigned_by,
    bound,
    called,
    last_word,
    literal,
    named,
    of_text,
    value_of,
    words_of,
)
from rksp.recipe_files.parse.values import Parsed, Section, Settings, Unresolved


def _assigned(
    tree: ast.Module, known: dict[str, Parsed], changes: Mapping[str, Changes]
) -> tuple[dict[str, Parsed], set[str]]:
    fields = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body
    }
    found = [pair for n in ast.walk(tree) if id(n) not in fields for pair in bound(n)]
    counts = Counter(name for name, _ in found)
    top = {id(part) for part in tree.body if isinstance(part, ASSIGNMENT)}
    above = Counter(name for name, statement in found if id(statement) in top)
    known, copied = dict(known), 0
    for name, statement in found:
        if counts[name] == 1 and isinstance(statement, ast.Assign | ast.AnnAssign):
            value = dict(assigned_by(statement, known))[name]
            if isinstance(value, Mapping) and name in changes:
                copied += len(value) + len(changes[name])
                SETTINGS.check(copied, "The Python code")
                value = changed(dict(value), changes[name], known)
            known[name] = value
        else:
            known.pop(name, None)
    return known, {name for name in counts if 1 < counts[name] == above[name]}


@dataclass(frozen=True, slots=True)
class _Change:
    statement: ast.stmt | ast.expr
    value: ast.expr
    is_sure: bool  # it is a plain assignment, in no loop and no branch


Changes = dict[str, list[_Change]]  # attribute or key → where it is set


def _changes(nodes: Iterable[ast.AST]) -> dict[str, Changes]:
    """Return where parts of objects are set: `a.b = 1`, `a["b"] = 1`, `a.update()`, `setattr`."""
    found: dict[str, Changes] = {}
    sure = {id(part) for node in nodes if isinstance(node, ast.Module | ast.FunctionDef | ast.With)
            for part in node.body}  # fmt: skip

    def add(home: ast.expr, key: object, node: ast.stmt | ast.expr, value: ast.expr) -> None:
        if isinstance(home, ast.Name):
            name = key if isinstance(key, str) else ANY
            is_sure = isinstance(node, ast.Assign) and id(node) in sure
            there = found.setdefault(home.id, {}).setdefault(name, [])
            there.append(_Change(node, value, is_sure))

    for node in nodes:
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    add(target.value, target.attr, node, node.value)
                elif isinstance(target, ast.Subscript):
                    add(target.value, getattr(target.slice, "value", None), node, node.value)
        elif isinstance(node, ast.Call) and called(node) == "setattr" and len(node.args) == 3:
            add(node.args[0], getattr(node.args[1], "value", None), node, node.args[2])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for home in [node.func.value] if node.func.attr == "update" else ():
                add(home, None, node, node)
    return found


def changed(held: dict[str, Parsed], changes: Changes, known: Section) -> dict[str, Parsed]:
    """Set the parts of an object that are set again: to a value that is sure, or to unknown."""
    if ANY in changes:
        held |= {name: Unresolved("perhaps set again in the script") for name in held}
    for key, made in changes.items():
        is_sure = len(made) == 1 and made[0].is_sure
        again = "set again in the script"
        held[key] = value_of(made[0].value, known) if is_sure else Unresolved(again)
    return held


def _imported(tree: ast.Module, modules: Mapping[str, ast.Module]) -> dict[str, Parsed]:
    found: dict[str, Parsed] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (module := node.module or "") in modules:
            held = _offered(modules[module])
            names = {part.name: part.asname or part.name for part in node.names}
            taken = dict.fromkeys(held) if "*" in names else names
            found |= {taken[name] or name: held[name] for name in taken if name in held}
        elif isinstance(node, ast.Import):
            for part in node.names:
                if part.name in modules:
                    found[part.asname or part.name] = Settings(_offered(modules[part.name]))
    return found


def _offered(module: ast.Module) -> dict[str, Parsed]:
    held, _ = _assigned(module, {}, {})
    classes = {node.name: Settings(fields_of(node, held)) for node in module.body
               if isinstance(node, ast.ClassDef)}  # fmt: skip
    made = {
        name: home
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for name, _ in named(node.targets[0], None)
        if not node.value.args and not node.value.keywords
        and (home := classes.get(last_word(node.value))) is not None
    }  # fmt: skip
    return {**held, **classes, **made}


def modules_of(tree: ast.Module) -> list[str]:
    """Return the modules that a script names, with their dots; they may stand near it."""
    named = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = [node.module for node in named if node.level < 2 and node.module]
    whole = [part.name for node in tree.body if isinstance(node, ast.Import) for part in node.names]
    return list(dict.fromkeys(found + whole))


class Names:
    """What the names of a script stand for.

    Attributes:
        nodes: All parts of the script.
        changes: Name of an object → where its parts are set.
        fixed: Name → its value, or the settings that the object of this name holds.
        moving: The names that are assigned several times, at the top level alone.
        unused: The classes of settings that a run has only if somebody asks for them.
        made: Class → the settings of the objects that are made of it; unknown where they differ.
        options: The options of its command line, at their defaults.
        lines: Option → its line.
    """

    def __init__(self, tree: ast.Module, imported: Mapping[str, ast.Module]) -> None:
        self.nodes = list(ast.walk(tree))
        self.unused = _left_out(self.nodes)
        self.changes = _changes(self.nodes)
        once, self.moving = _assigned(tree, _imported(tree, imported), self.changes)
        self.options: dict[str, Parsed] = {}
        self.lines: dict[str, int] = {}
        self._read_options(once)
        homes, self.made = _objects(self.nodes, once, self.options, self.changes)
        self.fixed: dict[str, Parsed] = {**once, **homes}
        self.options = {name: value for name, value in self.options.items() if value is not None}

    def _read_options(self, known: dict[str, Parsed]) -> None:
        """Read `add_argument` of argparse, and the fields of dataclasses, which parsers fill.

        Two options of one name that differ are not known.
        """
        for node in self.nodes:
            found: dict[str, Parsed] = {}
            if isinstance(node, ast.Call) and called(node).endswith(".add_argument"):
                found = _option(node, known)
            elif isinstance(node, ast.ClassDef) and node.name not in self.unused:
                is_one = "dataclass" in map(last_word, node.decorator_list)
                found = fields_of(node, known) if is_one else {}
            _add(self.options, found)
            self.lines |= dict.fromkeys(found, getattr(node, "lineno", 0))
        for node in self.nodes:
            if isinstance(node, ast.Call) and called(node).endswith(".set_defaults"):
                self.options |= words_of(node, known)


_DEFAULTS = ("default", "default_factory")  # of `field`, `Field` and `HfArg`


def _objects(
    nodes: list[ast.AST], known: dict[str, Parsed], options: dict[str, Parsed],
    changes: Mapping[str, Changes],
) -> tuple[dict[str, Settings], dict[str, dict[str, Parsed]]]:  # fmt: skip
    homes: dict[str, dict[str, Parsed]] = {
        name: dict(value.held) for name, value in known.items() if isinstance(value, Settings)
    }
    homes |= {node.name: fields_of(node, known) for node in nodes if isinstance(node, ast.ClassDef)}
    homes["args"] = options
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    parsers = {node.name for node in functions if any(map(_parses, ast.walk(node)))}
    made: dict[str, list[dict[str, Parsed]]] = {}
    held = 0
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        name = last_word(node.value)
        home = options
        if not name.startswith("parse_") and name not in parsers:
            if name not in homes:
                continue
            home = _made(homes[name], node.value, known)
            held += len(home)
            SETTINGS.check(held, "The Python code")
            made.setdefault(name, []).append(home)
        homes |= dict.fromkeys((one for one, _ in named(node.targets[0], None)), home)
    amended = [name for name in homes if name in changes]
    SETTINGS.check(sum(len(homes[name]) for name in amended), "The Python code")
    for name in amended:
        changed(homes[name], changes[name], known)
    of_classes: dict[str, dict[str, Parsed]] = {}
    for name, several in made.items():
        for one in several:
            _add(of_classes.setdefault(name, {}), one)
    return {name: Settings(home) for name, home in homes.items()}, of_classes


def _made(home: Section, call: ast.Call, known: dict[str, Parsed]) -> dict[str, Parsed]:
    given = words_of(call, known)
    is_open = bool(call.args) or ANY in given
    held = {name: Unresolved(f"{last_word(call)}(…)") for name in home} if is_open else dict(home)
    return held | {name: value for name, value in given.items() if name != ANY}


def _add(found: dict[str, Parsed], more: Section) -> None:
    for name, value in more.items():
        is_other = name in found and found[name] != value
        found[name] = Unresolved(f"{name}, which has two values") if is_other else value


def _parses(node: ast.AST) -> bool:
    """Tell whether a function hands over what it parsed: `return parser.parse_args()`."""
    value = node.value if isinstance(node, ast.Return) else None
    return isinstance(value, ast.Call) and last_word(value).startswith("parse_")


def _left_out(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the classes of settings that a run has only if asked: `lora: Lora | None = None`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and getattr(node.value, "value", node) is None:
            found |= {one.id for one in ast.walk(node.annotation) if isinstance(one, ast.Name)}
    return found


def fields_of(node: ast.ClassDef, known: dict[str, Parsed]) -> dict[str, Parsed]:
    """Return the fields of a class: `NAME = 1`, `NAME: int = 1` and `= field(default=1)`."""
    found: dict[str, Parsed] = {}
    scope = ChainMap(found, known)
    for statement in node.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        value = statement.value
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(value, ast.Call) and any(word.arg in _DEFAULTS for word in value.keywords):
            value = next((word.value for word in value.keywords if word.arg == "default"), None)
        if value is not None and isinstance(target, ast.Name):
            found[target.id] = value_of(value, scope)
    return found


def _option(node: ast.Call, known: Section) -> dict[str, Parsed]:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    flags = [literal(part, known) for part in (*node.args, *filter(None, [given.get("dest")]))]
    names = [flag.lstrip("-").replace("-", "_") for flag in flags if isinstance(flag, str)]
    long = [n for n, flag in zip(names, flags, strict=False) if not re.match("-[^-]", str(flag))]
    is_positional = bool(flags) and not str(flags[0]).startswith("-")
    is_required = "required" in given and literal(given["required"], known) is not False
    if not names or is_positional or is_required:
        return {}
    name = names[-1] if "dest" in given else (long or names)[0]
    if "default" in given:
        value = value_of(given["default"], known)
        is_number = "type" in given and ast.unparse(given["type"]) in ("float", "int")
        return {name: of_text(value) if is_number else value}
    action = literal(given["action"], known) if "action" in given else ""
    return {name: {"store_true": False, "store_false": True}.get(str(action))}
