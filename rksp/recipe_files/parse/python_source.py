"""Settings from Python source, read as a syntax tree; nothing of it is ever run.

Read are: assignments of literals and arithmetic at the top level and in classes (`Hyperparameters`
of modded-nanogpt), and functions that return a configuration built from nested calls with keywords
(torchtitan's registry). `python_script` reads the calls of a training script, `python_loop` those
of a script with a loop of its own.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Mapping

from rksp.ground.budgets import KEY_CHARACTERS, SETTINGS
from rksp.recipe_files.parse.python_values import (
    assigned_by,
    bound,
    called,
    literal,
    shared,
    value_of,
)
from rksp.recipe_files.parse.values import Parsed, Unresolved, as_section, section_in

FUNCTIONS = "()"  # key of the functions that return a configuration


class _Source:
    def __init__(self, tree: ast.Module) -> None:
        named = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.functions = named  # those that are not read yet
        self.data: dict[str, Parsed] = {}
        self.lines: dict[str, int] = {}
        self.built = 0  # settings of all configurations, those of a part as often as it is used
        self.written = 0  # characters of their keys

    def assign(self, statement: ast.stmt, home: dict[str, Parsed], prefix: str) -> None:
        """Read `a = 1`, `a: int = 1`, `a = b = 1` and `a, b = 1, 2`."""
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            return
        read = value_of if isinstance(statement.value, ast.IfExp | ast.Dict) else literal
        for name, part in shared(statement, read(statement.value, ChainMap(home, self.data))):
            home[name] = part
            self._place(f"{prefix}{name}", statement)

    def set_again(self, statement: ast.stmt) -> None:
        """Follow what else changes a setting: `a *= 2`, and a loop or a branch, which hide it.

        `a //= devices` shares a total among the devices, and leaves the total as it is.
        """
        is_sure = isinstance(statement, ast.AugAssign)
        parts = () if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ast.walk(statement)
        for node in parts:
            is_shared = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv)
            for name, _ in bound(node):
                if name in self.data and not is_shared and (is_sure or node is not statement):
                    value = assigned_by(node, self.data) if is_sure else [(name, Unresolved(name))]
                    self.data |= dict(value)

    def function(self, name: str) -> None:
        node = self.functions.pop(name, None)
        if node is None or name.startswith("_"):  # a helper, not a configuration to be chosen
            return
        known: dict[str, Parsed] = {}
        prefix = f"{FUNCTIONS}.{node.name}."
        for statement in node.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name):
                    known[target.id] = self._built(statement.value, known, prefix)
                elif isinstance(target, ast.Attribute):
                    self._change(target, statement, known, prefix)
            if isinstance(statement, ast.Return) and statement.value is not None:
                value = self._built(statement.value, known, prefix)
                if isinstance(value, Mapping) and len(value) > 2:
                    section_in(self.data, FUNCTIONS)[node.name] = value
                    self._place(prefix[:-1], node)

    def _change(
        self, target: ast.Attribute, statement: ast.Assign, known: dict[str, Parsed], prefix: str
    ) -> None:
        path = ast.unparse(target).split(".")
        home = known.get(path[0])
        for part in path[1:-1]:
            home = section_in(home, part) if isinstance(home, dict) else None
        if isinstance(home, dict):
            home[path[-1]] = self._built(statement.value, known, prefix)
            self._place(prefix + ".".join(path[1:]), statement)

    def _built(self, node: ast.expr, known: dict[str, Parsed], prefix: str) -> Parsed:
        """Read a call as its keywords, with the called name under `_call`; otherwise a literal."""
        if isinstance(node, ast.Call):
            name = called(node)
            if not node.keywords and not node.args:
                self.function(name)
                if name in (read := as_section(self.data.get(FUNCTIONS))):
                    return self._copied(read[name], f"{FUNCTIONS}.{name}.", prefix)
            found: dict[str, Parsed] = {"_call": name}
            self._count()
            for i, argument in enumerate(node.args):
                found[f"_{i}"] = self._built(argument, known, f"{prefix}_{i}.")
            for keyword in node.keywords:
                if keyword.arg is not None:
                    key = f"{prefix}{keyword.arg}"
                    found[keyword.arg] = self._built(keyword.value, known, f"{key}.")
                    self._place(key, keyword.value)
            return found
        if isinstance(node, ast.Name) and node.id in known:
            return self._copied(known[node.id])
        if isinstance(node, ast.Dict) and not node.keys:
            return {}
        return literal(node, ChainMap(known, self.data))

    def _count(self) -> None:
        self.built += 1
        SETTINGS.check(self.built, "The Python code")

    def _copied(self, value: Parsed, start: str = "", prefix: str = "") -> Parsed:
        """Copy what is built of calls, and the lines of its keys below `start`, below `prefix`."""
        self._count()
        if not isinstance(value, Mapping):
            return value
        found = {}
        for name, part in value.items():
            line = self.lines.get(f"{start}{name}") if start else None
            if line is not None:
                self._place(f"{prefix}{name}", line)
            below = (f"{start}{name}.", f"{prefix}{name}.") if start else ()
            found[name] = self._copied(part, *below)
        return found

    def _place(self, key: str, there: ast.stmt | ast.expr | int) -> None:
        self.written += len(key)
        KEY_CHARACTERS.check(self.written, "The Python code")
        self.lines[key] = there if isinstance(there, int) else there.lineno


def read_python(tree: ast.Module) -> tuple[dict[str, Parsed], dict[str, int]]:
    """Read the settings of a source and the line of each dotted key.

    Raises:
        InputError: Its functions build more settings than `budgets.SETTINGS`.
        RecursionError: It is nested too deeply.
    """
    source = _Source(tree)
    for statement in tree.body:
        source.assign(statement, source.data, "")
        source.set_again(statement)
        if isinstance(statement, ast.ClassDef):
            settings: dict[str, Parsed] = {}
            for inner in statement.body:
                source.assign(inner, settings, f"{statement.name}.")
            if settings:
                source.data[statement.name] = settings
    for name in list(source.functions):
        source.function(name)
    return source.data, source.lines
