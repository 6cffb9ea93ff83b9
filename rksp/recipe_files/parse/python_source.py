"""Settings from Python source, read as a syntax tree; nothing of it is ever run.

Read are: assignments of literals and arithmetic at the top level and in classes (`Hyperparameters`
of modded-nanogpt), functions that return a configuration built from nested calls with keywords
(torchtitan's registry), and the keywords with which optimizers are built. Of a training script, the
calls: with which literal arguments it builds its trainer and model. A name counts with what it was
assigned last before the call, if every assignment to it is at the top level, or if there is only
one, at whatever depth. An option of the script's command line has its default.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rksp.ground.budgets import KEY_CHARACTERS, SETTINGS
from rksp.ground.text import words
from rksp.recipe_files.parse.values import Unresolved

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "round": lambda number: round(number),
    "abs": abs,
    "min": lambda *given: min(given),
    "max": lambda *given: max(given),
}
_OPTIMIZERS = words("Adam AdamW DistAdam Muon NorMuon DistMuon SGD Lion Adafactor")
_LARGEST_NUMBER = 1e30  # of arithmetic: squares double the digits at every step
_UNKNOWN = object()  # what is neither a literal nor computed of literals
FUNCTIONS = "()"  # key of the functions that return a configuration
OPTIMIZERS = "optimizers"  # key of the optimizers that are built


class _Source:
    """The settings of one Python file."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.built = 0  # settings of all configurations, those of a part as often as it is used
        self.written = 0  # characters of their keys
        self._optimizers: Counter[str] = Counter()

    def assign(self, statement: ast.stmt, home: dict[str, Any], prefix: str) -> None:
        """Read `a = 1`, `a: int = 1`, `a = b = 1` and `a, b = 1, 2`."""
        if isinstance(statement, ast.Assign):
            targets, node = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, node = [statement.target], statement.value
        else:
            return
        read = _value if isinstance(node, ast.IfExp) else literal
        value = read(node, ChainMap(home, self.data))
        for target in targets:
            for name, part in _named(target, value):
                home[name] = part
                self._place(f"{prefix}{name}", statement)

    def function(self, node: ast.FunctionDef) -> None:
        """Read the configuration that a function returns, with its changes to another's."""
        if node.name.startswith("_"):  # a helper, not a configuration to be chosen
            return
        known: dict[str, Any] = {}
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
                    self.data.setdefault(FUNCTIONS, {})[node.name] = value
                    self._place(prefix[:-1], node)

    def _change(
        self, target: ast.Attribute, statement: ast.Assign, known: dict[str, Any], prefix: str
    ) -> None:
        path = ast.unparse(target).split(".")
        home = known.get(path[0])
        for part in path[1:-1]:
            home = home.setdefault(part, {}) if isinstance(home, dict) else None
        if isinstance(home, dict):
            home[path[-1]] = self._built(statement.value, known, prefix)
            self._place(prefix + ".".join(path[1:]), statement)

    def _built(self, node: ast.expr, known: dict[str, Any], prefix: str) -> Any:
        """Read a call as its keywords, with the called name under `_call`; otherwise a literal."""
        if isinstance(node, ast.Call):
            name, configurations = called(node), self.data.get(FUNCTIONS, {})
            if name in configurations and not node.keywords and not node.args:
                return self._copied(configurations[name], f"{FUNCTIONS}.{name}.", prefix)
            found: dict[str, Any] = {"_call": name}
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
        return literal(node, ChainMap(known, self.data))

    def _count(self) -> None:
        self.built += 1
        SETTINGS.check(self.built, "The Python code")

    def _copied(self, value: Any, start: str = "", prefix: str = "") -> Any:
        """Copy what is built of calls, and its lines; each copy counts, as one in another doubles.

        Args:
            value: To be copied.
            start: Before the keys of its lines; empty leaves them alone.
            prefix: Before those of the copy.
        """
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
        """Keep the line of a dotted key."""
        self.written += len(key)
        KEY_CHARACTERS.check(self.written, "The Python code")
        self.lines[key] = there if isinstance(there, int) else there.lineno

    def optimizer(self, node: ast.Call) -> None:
        """Read the literal keywords with which an optimizer is built, under its name."""
        name = called(node).rsplit(".", 1)[-1]
        if name not in _OPTIMIZERS or not node.keywords:
            return
        there = self.data.setdefault(OPTIMIZERS, {})
        taken = self._optimizers[name]
        label = f"{name} {taken + 1}" if taken else name
        prefix = f"{OPTIMIZERS}.{label}."
        found: dict[str, Any] = {}
        for keyword in node.keywords:
            value = literal(keyword.value, self.data)
            if keyword.arg is not None and not isinstance(value, Unresolved):
                found[keyword.arg] = value
                self._place(f"{prefix}{keyword.arg}", keyword.value)
        if found:
            there[label] = found
            self._optimizers[name] += 1


def read_python(tree: ast.Module) -> tuple[dict[str, Any], dict[str, int]]:
    """Read the settings of a source and the line of each dotted key.

    Raises:
        InputError: Its functions build more settings than `budgets.SETTINGS`.
        RecursionError: It is nested too deeply.
    """
    source = _Source()
    for statement in tree.body:
        source.assign(statement, source.data, "")
        if isinstance(statement, ast.ClassDef):
            settings: dict[str, Any] = {}
            for inner in statement.body:
                source.assign(inner, settings, f"{statement.name}.")
            if settings:
                source.data[statement.name] = settings
    for function in _callees_first(tree):
        source.function(function)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            source.optimizer(node)
    return source.data, source.lines


def _named(target: ast.expr, value: Any) -> list[tuple[str, Any]]:
    """Return what an assignment gives each name; a tuple of names shares out a list."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    is_list = isinstance(value, list) and len(value) == len(target.elts)
    parts = value if is_list else [Unresolved(ast.unparse(target))] * len(target.elts)
    return [
        pair for one, part in zip(target.elts, parts, strict=True) for pair in _named(one, part)
    ]


def _callees_first(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions of a module, each after those it calls without arguments."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    ordered: dict[str, ast.FunctionDef] = {}
    begun: set[str] = set()

    def visit(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        for node in ast.walk(functions[name]):
            called = node.func if isinstance(node, ast.Call) and not node.args else None
            if isinstance(called, ast.Name) and called.id in functions:
                visit(called.id)
        ordered[name] = functions[name]

    for name in functions:
        visit(name)
    return list(ordered.values())


def called(node: ast.Call) -> str:
    """Return the dotted name of what is called: `torch.optim.AdamW`, or `().fit` of a result."""
    parts, there = [], node.func
    while isinstance(there, ast.Attribute):
        parts.append(there.attr)
        there = there.value
    parts.append(there.id if isinstance(there, ast.Name) else "()")
    return ".".join(reversed(parts))


def literal(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Evaluate a literal, a known name or arithmetic of them; `Unresolved` otherwise."""
    value = _evaluated(node, known)
    # Written out here alone: at each level of a deep sum it would cost the square of its length.
    return Unresolved(ast.unparse(node)) if value is _UNKNOWN else value


def _evaluated(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value if _is_small(node.value) else Unresolved("a number too large")
    if isinstance(node, ast.List | ast.Tuple):
        return [flat(part, known) for part in node.elts]
    if isinstance(node, ast.Name):
        value = known.get(node.id, _UNKNOWN)
        return Unresolved(node.id) if isinstance(value, _Settings) or value is _UNKNOWN else value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        home = known.get(node.value.id)
        return home.held.get(node.attr, _UNKNOWN) if isinstance(home, _Settings) else _UNKNOWN
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _evaluated(node.operand, known)
        return -value if isinstance(value, int | float) else _UNKNOWN
    if isinstance(node, ast.Call) and not node.keywords:
        return _computed(node, known)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _evaluated(node.left, known), _evaluated(node.right, known)
        is_power = isinstance(node.op, ast.Pow)
        if isinstance(left, int | float) and isinstance(right, int | float):
            try:
                if not is_power or abs(right) <= 64:
                    value = _ARITHMETIC[type(node.op)](left, right)
                    if _is_small(value):
                        return value
            except (ZeroDivisionError, OverflowError):
                pass
    return _UNKNOWN


def flat(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Evaluate a part as `literal` does; a name of parts again could double at every step."""
    value = literal(node, known)
    doubles = isinstance(node, ast.Name) and isinstance(value, list | Mapping)
    return Unresolved(ast.unparse(node)) if doubles else value


def _computed(node: ast.Call, known: Mapping[str, Any]) -> Any:
    """Evaluate `int(0.1 * n)` and the other functions of numbers; `Unresolved` otherwise."""
    function = _FUNCTIONS.get(called(node))
    given = [_evaluated(part, known) for part in node.args]
    if function is not None and given and all(isinstance(part, int | float) for part in given):
        try:
            return function(*given)
        except (TypeError, ValueError, OverflowError):
            pass
    return _UNKNOWN


def _is_small(value: Any) -> bool:
    """Say whether a value is no number beyond those that a configuration computes with."""
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST_NUMBER
    return not isinstance(value, complex)


_WANTED = re.compile(
    r"(TrainingArguments|Trainer|Config|get_peft_model|from_pretrained|SentenceTransformer"
    r"|CrossEncoder|parse_(known_)?args|parse_args_into_dataclasses)$"
)
# Questions about the device are answered with yes, as for the word `auto`.
_OF_GPU = ("is_bfloat16_supported", "is_bf16_supported", "is_available")
_NAMED = ("torch", "TaskType", "peft.TaskType")  # what stands in these is read as its name

TRL = re.compile(r"^(SFT|DPO|KTO|ORPO|CPO|GRPO|RLOO|Reward|PPO|GKD)Config$")
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


def read_calls(tree: ast.Module) -> list[Call]:
    """Return the calls that say how a script trains, by line; none if it builds no arguments.

    Raises:
        RecursionError: It is nested too deeply.
    """
    once, moving = _assigned(tree)
    fixed = once | _options(tree, once)
    now: dict[str, Any] = {}  # names that were assigned several times, at this point of the script
    found = []
    for statement in tree.body:
        is_run_here = not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        known = ChainMap(fixed, now if is_run_here else {})
        calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
        found += [_read(node, known) for node in calls if _WANTED.search(called(node))]
        if isinstance(statement, ast.Assign):
            for name, value in _named(statement.targets[0], _value(statement.value, known)):
                if name in moving:
                    now[name] = value
    found.sort(key=lambda call: call.line or 0)
    return found if any(call.makes_arguments for call in found) else []


def _read(node: ast.Call, known: Mapping[str, Any]) -> Call:
    named = [keyword for keyword in node.keywords if keyword.arg is not None]
    return Call(
        name=called(node),
        line=node.lineno,
        first=_value(node.args[0], known) if node.args else None,
        given={str(keyword.arg): _value(keyword.value, known) for keyword in named},
        lines={str(keyword.arg): keyword.value.lineno for keyword in named},
    )


def _assigned(tree: ast.Module) -> tuple[dict[str, Any], set[str]]:
    """Return the values of names assigned once, and the names assigned at the top level alone."""
    found = [
        (statement.targets[0].id, statement)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ]
    counts = Counter(name for name, _ in found)
    top = set(map(id, tree.body))
    above = Counter(name for name, statement in found if id(statement) in top)
    known: dict[str, Any] = {}
    for name, statement in found:
        if counts[name] == 1:
            known[name] = _value(statement.value, known)
    return known, {name for name in counts if 1 < counts[name] == above[name]}


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings that an object of a script holds, such as the parsed options."""

    held: Mapping[str, Any]


def _options(tree: ast.Module, known: dict[str, Any]) -> dict[str, _Settings]:
    """Return the objects that hold settings of a script, by name.

    Read are the fields of its classes, and the defaults of its options: `add_argument` of argparse,
    and the fields of all dataclasses, of which HfArgumentParser fills some.
    """
    nodes = list(ast.walk(tree))
    homes: dict[str, dict[str, Any]] = {}  # by the name of the object
    options: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and called(node).endswith(".add_argument"):
            options |= _option(node, known)
        elif isinstance(node, ast.ClassDef):
            homes[node.name] = _fields(node, known)
            if "dataclass" in map(_last_word, node.decorator_list):
                options |= homes[node.name]
    homes["args"] = options
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _last_word(node.value)
            home = options if made.startswith("parse_") else homes.get(made)
            if home is not None:
                homes |= dict.fromkeys((name for name, _ in _named(node.targets[0], None)), home)
    return {name: _Settings(home) for name, home in homes.items()}


def _fields(node: ast.ClassDef, known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a class: `NAME = 1`, `NAME: int = 1` and `= field(default=1)`."""
    found: dict[str, Any] = {}
    scope = ChainMap(found, known)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value, name = statement.value, statement.target.id
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value, name = statement.value, statement.targets[0].id
        else:
            continue
        if isinstance(value, ast.Call) and called(value).endswith("field"):
            value = next((word.value for word in value.keywords if word.arg == "default"), None)
        if value is not None:
            found[name] = _value(value, scope)
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
        return {name: _value(given["default"], known)}
    is_switch = "action" in given and literal(given["action"], known) == "store_true"
    return {name: False if is_switch else None}


def _last_word(node: ast.expr) -> str:
    """Return the last part of a dotted name, or of the name of what is called."""
    name = called(node) if isinstance(node, ast.Call) else ast.unparse(node)
    return name.rsplit(".", 1)[-1]


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return a literal, `torch.bfloat16` as its name, and a question about a GPU as a yes."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in _NAMED:
        return node.attr
    if isinstance(node, ast.Call):
        name = called(node)
        if name.rsplit(".", 1)[-1] in _OF_GPU:
            return "mps" not in name
        if name == "dict" and not node.args:
            return {str(part.arg): _part(part.value, known) for part in node.keywords if part.arg}
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(getattr(key, "value", "")): _part(part, known) for key, part in pairs}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner, is_denied = node.operand, True
        while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            inner, is_denied = inner.operand, not is_denied
        value = _value(inner, known)
        return value != is_denied if isinstance(value, bool) else Unresolved(ast.unparse(node))
    if isinstance(node, ast.BoolOp):
        parts = [_value(part, known) for part in node.values]
        if all(isinstance(part, bool) for part in parts):
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = [_value(side, known) for side in (node.left, node.comparators[0])]
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is not None and all(isinstance(side, int | float | str) for side in sides):
            with contextlib.suppress(TypeError):
                return compare(*sides)
        if ast.unparse(node).endswith("== 'cuda'"):  # of what a function picks
            return True
    if isinstance(node, ast.IfExp):
        test = _value(node.test, known)
        if isinstance(test, bool):
            return _value(node.body if test else node.orelse, known)
    return literal(node, known)


def _part(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return a value within a dict."""
    return flat(node, known) if isinstance(node, ast.Name) else _value(node, known)
