"""The calls with which a training script builds its trainer and model, with what they are given.

The source is read as a syntax tree; nothing of it is ever run. A name counts with what it was
assigned last before the call, if every assignment to it is at the top level, or if there is only
one, at whatever depth. What a loop, a branch or another call may set otherwise is not known. An
option of the script's command line has its default, and so has a variable of the environment that
no launcher sets. A function's argument is what its only call gives it.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rksp.ground.budgets import SETTINGS
from rksp.recipe_files.parse.python_values import (
    ASSIGNMENT,
    MOST_MERGED,
    Settings,
    assigned_by,
    bound,
    called,
    last_word,
    literal,
    named,
    of_text,
    value_of,
)
from rksp.recipe_files.parse.values import Unresolved

_WANTED = re.compile(
    r"(TrainingArguments|Trainer|Config|get_peft_model|from_pretrained|SentenceTransformer"
    r"|CrossEncoder|parse_(known_)?args|parse_args_into_dataclasses)$|^(fire\.)?Fire$|^typer\.run$"
)
OF_COMMAND_LINE = re.compile(r"^(parse_\w+|Fire|run)$")  # short names of wanted calls
TRL = re.compile(r"^(SFT|DPO|KTO|ORPO|CPO|GRPO|RLOO|Reward|PPO|GKD)Config$")
ANY = "**"  # stands for every name that is not spelt out
CALLS = "calls()"  # key of the calls of a script, in the data of its document


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        name: What is called, as written: `AutoModelForCausalLM.from_pretrained`.
        line: Where it begins, counted from one; None where the text has no lines.
        first: The first argument without a name; None if there is none.
        given: The named arguments; what is no literal is `Unresolved`.
        lines: Name of an argument → its line.
    """

    name: str
    line: int | None
    first: Any
    given: Mapping[str, Any]
    lines: Mapping[str, int]

    def without_lines(self) -> Call:
        """Return the call without the places of its parts."""
        return replace(self, line=None, lines={})

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def makes_arguments(self) -> bool:
        """True if it builds the arguments of one of Hugging Face's trainers."""
        return self.short.endswith("TrainingArguments") or TRL.match(self.short) is not None


def read_calls(tree: ast.Module, imported: Mapping[str, ast.Module] | None = None) -> list[Call]:
    """Return the calls that say how a script trains, by line; none if it builds no arguments.

    Args:
        tree: The script.
        imported: The modules beside it that it imports from, by name.

    Raises:
        RecursionError: It is nested too deeply.
    """
    nodes = list(ast.walk(tree))
    changes = _changes(nodes)
    once, moving = _assigned(tree, _imported(tree, imported or {}), changes)
    fixed = once | _options(nodes, once, changes)
    visit = _Visit(nodes, fixed, changes)
    now: dict[str, Any] = {}  # names that were assigned several times, at this point of the script
    for statement in tree.body:
        is_run_here = not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        known = ChainMap(fixed, now if is_run_here else {})
        visit.part(statement, known)
        now |= {name: value for name, value in assigned_by(statement, known) if name in moving}
    return visit.read()


class _Visit:
    """A visit of a script's calls, each with what the names around it stand for."""

    def __init__(
        self, nodes: list[ast.AST], fixed: Mapping[str, Any], changes: Mapping[str, _Changes]
    ) -> None:
        self._nodes, self._fixed, self._changes = nodes, fixed, changes
        self._found: list[Call] = []
        self._later: dict[int, _Changes] = {}  # by the call that makes the object
        self._amendments = 0
        self._sites: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call):
                self._sites.setdefault(last_word(node), []).append(node)
        makers = [*self._sites.get("Fire", []), *self._sites.get("run", [])]
        self._commands = {ast.unparse(part) for call in makers for part in call.args[:1]}

    def part(self, part: ast.AST, known: ChainMap[str, Any]) -> None:
        """Keep the calls in a part of the script."""
        waiting = [(part, known)]
        while waiting:
            node, known = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known = known.new_child(self._arguments(node))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._later[id(node.value)] = self._changes.get(node.targets[0].id, {})
            if isinstance(node, ast.Call) and _WANTED.search(called(node)):
                self._found.append(self._amended(node, known))
            waiting += [(inner, known) for inner in _taken(node, known)]

    def read(self) -> list[Call]:
        """Return the calls by line; a class of the script's own may stand for its arguments."""
        found = self._found
        if any(OF_COMMAND_LINE.match(call.short) for call in found):
            found += [] if any(call.makes_arguments for call in found) else self._own()
        found.sort(key=lambda call: call.line or 0)
        return found if any(call.makes_arguments for call in found) else []

    def _own(self) -> list[Call]:
        """Return the arguments to which a class of the script's own gives other defaults."""
        for node in self._nodes:
            if isinstance(node, ast.ClassDef) and node.bases:
                own = {name: self._fixed["args"].held.get(name) for name in _fields(node, {})}
                call = Call(name=last_word(node.bases[0]), line=node.lineno, first=None, given=own,
                            lines={})  # fmt: skip
                if call.makes_arguments:
                    return [call]
        return []

    def _amended(self, node: ast.Call, known: Mapping[str, Any]) -> Call:
        """Read a call, and what the arguments that it makes are given in later lines."""
        call, later = _read(node, known), self._later.get(id(node))
        if not later or not call.makes_arguments:
            return call
        self._amendments += len(later)
        SETTINGS.check(self._amendments, "The Python code")
        lines = {name: made[0].statement.lineno for name, made in later.items()}
        given = _changed(dict(call.given), later, known)
        return replace(call, given=given, lines={**call.lines, **lines})

    def _arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Any]:
        """Return what a function's arguments stand for: what its only call gives, or defaults.

        Without a call, defaults count where a library makes a command line of the function.
        """
        takes = function.args
        plain = [*takes.posonlyargs, *takes.args]
        usual = dict(zip(reversed(plain), reversed(takes.defaults), strict=False))
        usual |= {a: d for a, d in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if d}
        given = {argument.arg: value for argument, value in usual.items()}
        sites = self._sites.get(function.name, [])
        if len(sites) == 1 and not any(isinstance(p, ast.Starred) for p in sites[0].args):
            names = [a.arg for a in plain if a.arg not in ("self", "cls")]
            given |= dict(zip(names, sites[0].args, strict=False))
            given |= {str(word.arg): word.value for word in sites[0].keywords}
            given = {} if "None" in given else given  # **settings may hold any of them
        elif sites or function.name not in self._commands:
            given = {}
        again = {name for part in ast.walk(function) for name, _ in bound(part)}
        return {
            name: Unresolved(name) if name in again or name not in given
            else value_of(given[name], self._fixed)
            for name in (argument.arg for argument in (*plain, *takes.kwonlyargs))
            if not isinstance(self._fixed.get(name), Settings)
        }  # fmt: skip


def _taken(node: ast.AST, known: Mapping[str, Any]) -> Iterable[ast.AST]:
    """Return the parts of a node, of a branch on an option the part that its default takes."""
    test = value_of(node.test, known) if isinstance(node, ast.If) else None
    if not isinstance(node, ast.If) or not isinstance(test, bool):
        return ast.iter_child_nodes(node)
    return [node.test, *(node.body if test else node.orelse)]


def _read(node: ast.Call, known: Mapping[str, Any]) -> Call:
    given: dict[str, Any] = {}
    for word in node.keywords:
        value = value_of(word.value, known)
        if word.arg is not None:
            given[word.arg] = value
        elif isinstance(value, Mapping) and len(value) <= MOST_MERGED:
            given |= value
        else:
            given[ANY] = Unresolved(f"**{ast.unparse(word.value)}")
    return Call(
        name=called(node),
        line=node.lineno,
        first=value_of(node.args[0], known) if node.args else None,
        given=given,
        lines={word.arg: word.value.lineno for word in node.keywords if word.arg is not None},
    )


def _assigned(
    tree: ast.Module, known: dict[str, Any], changes: Mapping[str, _Changes]
) -> tuple[dict[str, Any], set[str]]:
    """Return the values of names assigned once, and the names assigned at the top level alone."""
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
                value = _changed(dict(value), changes[name], known)
            known[name] = value
        else:
            known.pop(name, None)
    return known, {name for name in counts if 1 < counts[name] == above[name]}


@dataclass(frozen=True, slots=True)
class _Change:
    """One place that gives a part of an object another value."""

    statement: ast.stmt | ast.expr
    value: ast.expr
    is_sure: bool  # it is a plain assignment, in no loop and no branch


_Changes = dict[str, list[_Change]]  # attribute or key → where it is set


def _changes(nodes: Iterable[ast.AST]) -> dict[str, _Changes]:
    """Return where parts of objects are set: `a.b = 1`, `a["b"] = 1`, `a.update()`, `setattr`."""
    found: dict[str, _Changes] = {}
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


def _changed(held: dict[str, Any], changes: _Changes, known: Mapping[str, Any]) -> dict[str, Any]:
    """Set the parts of an object that are set again: to a value that is sure, or to unknown."""
    if ANY in changes:
        held |= {name: Unresolved("perhaps set again in the script") for name in held}
    for key, made in changes.items():
        is_sure = len(made) == 1 and made[0].is_sure
        again = "set again in the script"
        held[key] = value_of(made[0].value, known) if is_sure else Unresolved(again)
    return held


def _imported(tree: ast.Module, modules: Mapping[str, ast.Module]) -> dict[str, Any]:
    """Return the names that a script takes from the modules beside it."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (module := node.module or "") in modules:
            held, _ = _assigned(modules[module], {}, {})
            names = {part.name: part.asname or part.name for part in node.names}
            taken = dict.fromkeys(held) if "*" in names else names
            found |= {taken[name] or name: held[name] for name in taken if name in held}
        elif isinstance(node, ast.Import):
            for part in node.names:
                if part.name in modules:
                    held, _ = _assigned(modules[part.name], {}, {})
                    found[part.asname or part.name] = Settings(held)
    return found


def modules_of(tree: ast.Module) -> list[str]:
    """Return the modules that may stand beside a script: those that it names without a dot."""
    named = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = [node.module for node in named if node.level < 2 and node.module]
    whole = [part.name for node in tree.body if isinstance(node, ast.Import) for part in node.names]
    return [name for name in dict.fromkeys(found + whole) if "." not in name]


def names_of(
    tree: ast.Module, imported: Mapping[str, ast.Module]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return what the names of a script stand for, its options, and the lines of these."""
    nodes = list(ast.walk(tree))
    changes = _changes(nodes)
    once, _ = _assigned(tree, _imported(tree, imported), changes)
    homes = _options(nodes, once, changes)
    options: dict[str, Any] = {}
    lines: dict[str, int] = {}
    found: dict[str, Any]
    for node in nodes:
        found = {}
        if isinstance(node, ast.Call) and called(node).endswith(".add_argument"):
            found = _option(node, once)
        elif isinstance(node, ast.ClassDef) and "dataclass" in map(last_word, node.decorator_list):
            found = _fields(node, once)
        lines |= dict.fromkeys(found, getattr(node, "lineno", 0))
        options |= found
    held = homes["args"].held
    return once | homes, {name: held[name] for name in options if held.get(name) is not None}, lines


_DEFAULTS = ("default", "default_factory")  # of `field`, `Field` and `HfArg`


def _options(
    nodes: list[ast.AST], known: dict[str, Any], changes: Mapping[str, _Changes]
) -> dict[str, Settings]:
    """Return the objects that hold settings of a script, by name.

    Read are the fields of its classes, and the defaults of its options: `add_argument` of argparse,
    and the fields of all dataclasses, of which HfArgumentParser fills some.
    """
    homes: dict[str, dict[str, Any]] = {}  # by the name of the object
    options: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and called(node).endswith(".add_argument"):
            options |= _option(node, known)
        elif isinstance(node, ast.ClassDef):
            homes[node.name] = _fields(node, known)
            if "dataclass" in map(last_word, node.decorator_list):
                options |= homes[node.name]
    for node in nodes:
        if isinstance(node, ast.Call) and called(node).endswith(".set_defaults"):
            options |= _read(node, known).given
    homes["args"] = options
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = last_word(node.value)
            home = options if made.startswith("parse_") else homes.get(made)
            if home is not None:
                homes |= dict.fromkeys((name for name, _ in named(node.targets[0], None)), home)
    changed = [name for name in homes if name in changes]
    SETTINGS.check(sum(len(homes[name]) for name in changed), "The Python code")
    for name in changed:
        _changed(homes[name], changes[name], known)
    return {name: Settings(home) for name, home in homes.items()}


def _fields(node: ast.ClassDef, known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a class: `NAME = 1`, `NAME: int = 1` and `= field(default=1)`."""
    found: dict[str, Any] = {}
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


def _option(node: ast.Call, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of one option of argparse, by the name that the parsed has for it."""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    flags = [literal(part, known) for part in (*node.args, *filter(None, [given.get("dest")]))]
    names = [flag.lstrip("-").replace("-", "_") for flag in flags if isinstance(flag, str)]
    long = [n for n, flag in zip(names, flags, strict=False) if not re.match("-[^-]", flag)]
    is_positional = bool(flags) and not str(flags[0]).startswith("-")
    if not names or is_positional or "required" in given:
        return {}
    name = names[-1] if "dest" in given else (long or names)[0]
    if "default" in given:
        value = value_of(given["default"], known)
        is_number = "type" in given and ast.unparse(given["type"]) in ("float", "int")
        return {name: of_text(value) if is_number else value}
    action = literal(given["action"], known) if "action" in given else ""
    return {name: {"store_true": False, "store_false": True}.get(str(action))}
