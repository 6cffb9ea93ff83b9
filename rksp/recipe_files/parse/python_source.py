"""Settings from Python source, read as a syntax tree; nothing of it is ever run.

Read are: assignments of literals and arithmetic at the top level and in classes (`Hyperparameters`
of modded-nanogpt), functions that return a configuration built from nested calls with keywords
(torchtitan's registry), and the keywords with which optimizers are built. Of a training script, the
calls: with which literal arguments it builds its trainer and model. A name counts with what it was
assigned last before the call, if every assignment to it is at the top level, or if there is only
one, at whatever depth. What a loop, a branch or another call may set otherwise is not known. An
option of the script's command line has its default, and so has a variable of the environment that
no launcher sets. A function's argument is what its only call gives it.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rksp.ground.budgets import KEY_CHARACTERS, SETTINGS
from rksp.ground.text import words
from rksp.recipe_files.parse.values import Unresolved, read_number

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
    "int": lambda given: int(_of_text(given)),
    "float": lambda given: float(_of_text(given)),
    "round": lambda number: round(number),
    "abs": abs,
    "min": lambda *given: min(given),
    "max": lambda *given: max(given),
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_OF_LAUNCHERS = re.compile(r"WORLD_SIZE|RANK|NODE|GPU|NPROC|TASK|DEVICES|SLURM")
_MOST_MERGED = 200  # settings of one dict that others are poured into
_OPTIMIZERS = words("Adam AdamW DistAdam Muon NorMuon DistMuon SGD Lion Adafactor")
_PARTS = (list, Mapping)
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
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            return
        read = _value if isinstance(statement.value, ast.IfExp) else literal
        for name, part in _shared(statement, read(statement.value, ChainMap(home, self.data))):
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
            for name, _ in _bound(node):
                if name in self.data and not is_shared and (is_sure or node is not statement):
                    value = _given(node, self.data) if is_sure else [(name, Unresolved(name))]
                    self.data |= dict(value)

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
        source.set_again(statement)
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
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        home = _evaluated(node.value, known)
        return home.get(node.slice.value, _UNKNOWN) if isinstance(home, Mapping) else _UNKNOWN
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _evaluated(node.operand, known)
        return -value if isinstance(value, int | float) else _UNKNOWN
    if isinstance(node, ast.Call) and not node.keywords:
        return _computed(node, known)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _evaluated(node.left, known), _evaluated(node.right, known)
        is_bare = isinstance(left, int | float) and isinstance(right, int | float)
        if is_bare and (not isinstance(node.op, ast.Pow) or abs(right) <= 64):
            with contextlib.suppress(ZeroDivisionError, OverflowError):
                value = _ARITHMETIC[type(node.op)](left, right)
                return value if _is_small(value) else _UNKNOWN
    return _UNKNOWN


def flat(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Evaluate a part as `literal` does; a name of parts again could double at every step."""
    value = literal(node, known)
    doubles = isinstance(node, ast.Name | ast.Subscript | ast.Attribute | ast.Call)
    return Unresolved(ast.unparse(node)) if doubles and isinstance(value, _PARTS) else value


def _computed(node: ast.Call, known: Mapping[str, Any]) -> Any:
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


def _of_text(given: Any) -> Any:
    """Return the number that a text spells, as `float("2e-4")` does; a number as it is."""
    return read_number(given) if isinstance(given, str) else given


def _is_small(value: Any) -> bool:
    """Say whether a value is no number beyond those that a configuration computes with."""
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST_NUMBER
    return not isinstance(value, complex)


_WANTED = re.compile(
    r"(TrainingArguments|Trainer|Config|get_peft_model|from_pretrained|SentenceTransformer"
    r"|CrossEncoder|parse_(known_)?args|parse_args_into_dataclasses)$|^(fire\.)?Fire$|^typer\.run$"
)
OF_COMMAND_LINE = re.compile(r"^(parse_\w+|Fire|run)$")  # short names of wanted calls
# Questions about the device are answered with yes, as for the word `auto`.
_OF_GPU = ("is_bfloat16_supported", "is_bf16_supported", "is_available")
_NAMED = ("torch", "TaskType", "peft.TaskType")  # what stands in these is read as its name

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
        now |= {name: value for name, value in _given(statement, known) if name in moving}
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
                self._sites.setdefault(_last_word(node), []).append(node)
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
            waiting += [(inner, known) for inner in ast.iter_child_nodes(node)]

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
                call = Call(name=_last_word(node.bases[0]), line=node.lineno, first=None, given=own,
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
        again = {name for part in ast.walk(function) for name, _ in _bound(part)}
        return {
            name: Unresolved(name) if name in again or name not in given
            else _value(given[name], self._fixed)
            for name in (argument.arg for argument in (*plain, *takes.kwonlyargs))
            if not isinstance(self._fixed.get(name), _Settings)
        }  # fmt: skip


def _read(node: ast.Call, known: Mapping[str, Any]) -> Call:
    given: dict[str, Any] = {}
    for word in node.keywords:
        value = _value(word.value, known)
        if word.arg is not None:
            given[word.arg] = value
        elif isinstance(value, Mapping) and len(value) <= _MOST_MERGED:
            given |= value
        else:
            given[ANY] = Unresolved(f"**{ast.unparse(word.value)}")
    return Call(
        name=called(node),
        line=node.lineno,
        first=_value(node.args[0], known) if node.args else None,
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
    found = [pair for n in ast.walk(tree) if id(n) not in fields for pair in _bound(n)]
    counts = Counter(name for name, _ in found)
    top = {id(part) for part in tree.body if isinstance(part, _ASSIGNMENT)}
    above = Counter(name for name, statement in found if id(statement) in top)
    known, copied = dict(known), 0
    for name, statement in found:
        if counts[name] == 1 and isinstance(statement, ast.Assign | ast.AnnAssign):
            value = dict(_given(statement, known))[name]
            if isinstance(value, Mapping) and name in changes:
                copied += len(value) + len(changes[name])
                SETTINGS.check(copied, "The Python code")
                value = _changed(dict(value), changes[name], known)
            known[name] = value
        else:
            known.pop(name, None)
    return known, {name for name in counts if 1 < counts[name] == above[name]}


_ASSIGNMENT = ast.Assign | ast.AnnAssign | ast.AugAssign
_Binding = _ASSIGNMENT | ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr


def _bound(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return the names that a statement, a loop or an expression gives a value."""
    if not isinstance(node, _Binding) or getattr(node, "value", node) is None:
        return []
    return [(name, node) for name, _ in _shared(node, None)]


def _shared(node: _Binding, value: Any) -> list[tuple[str, Any]]:
    """Return what each name that a statement binds has of its value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [pair for target in targets for pair in _named(target, value)]


def _given(statement: ast.AST, known: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what an assignment gives each name: `a = 1`, `a: int = 1`, `a, b = 1, 2`, `a *= 2`."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return _shared(statement, _value(statement.value, known))
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        now = ast.Name(statement.target.id, ast.Load())
        whole = ast.BinOp(now, statement.op, statement.value)
        return [(statement.target.id, literal(whole, known))]
    return []


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
        held[key] = _value(made[0].value, known) if is_sure else Unresolved(again)
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
                    found[part.asname or part.name] = _Settings(held)
    return found


def modules_of(tree: ast.Module) -> list[str]:
    """Return the modules that may stand beside a script: those that it names without a dot."""
    named = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = [node.module for node in named if node.level < 2 and node.module]
    whole = [part.name for node in tree.body if isinstance(node, ast.Import) for part in node.names]
    return [name for name in dict.fromkeys(found + whole) if "." not in name]


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings that an object of a script holds, such as the parsed options."""

    held: Mapping[str, Any]


def _options(
    nodes: list[ast.AST], known: dict[str, Any], changes: Mapping[str, _Changes]
) -> dict[str, _Settings]:
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
            if "dataclass" in map(_last_word, node.decorator_list):
                options |= homes[node.name]
    for node in nodes:
        if isinstance(node, ast.Call) and called(node).endswith(".set_defaults"):
            options |= _read(node, known).given
    homes["args"] = options
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _last_word(node.value)
            home = options if made.startswith("parse_") else homes.get(made)
            if home is not None:
                homes |= dict.fromkeys((name for name, _ in _named(node.targets[0], None)), home)
    changed = [name for name in homes if name in changes]
    SETTINGS.check(sum(len(homes[name]) for name in changed), "The Python code")
    for name in changed:
        _changed(homes[name], changes[name], known)
    return {name: _Settings(home) for name, home in homes.items()}


def _fields(node: ast.ClassDef, known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a class: `NAME = 1`, `NAME: int = 1` and `= field(default=1)`."""
    found: dict[str, Any] = {}
    scope = ChainMap(found, known)
    for statement in node.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        value = statement.value
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(value, ast.Call) and called(value).endswith("field"):
            value = next((word.value for word in value.keywords if word.arg == "default"), None)
        if value is not None and isinstance(target, ast.Name):
            found[target.id] = _value(value, scope)
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
        value = _value(given["default"], known)
        is_number = "type" in given and ast.unparse(given["type"]) in ("float", "int")
        return {name: _of_text(value) if is_number else value}
    action = literal(given["action"], known) if "action" in given else ""
    return {name: {"store_true": False, "store_false": True}.get(str(action))}


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
        if name == "dict" and len(node.args) <= 1:
            poured = [(None, part) for part in node.args]
            return _merged([*poured, *((part.arg, part.value) for part in node.keywords)], known)
        if name in ("vars", "asdict", "dataclasses.asdict") and node.args:
            home = known.get(ast.unparse(node.args[0]))
            return home.held if isinstance(home, _Settings) else Unresolved(ast.unparse(node))
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant | None) for k in node.keys):
        names = [None if key is None else str(getattr(key, "value", "")) for key in node.keys]
        return _merged(list(zip(names, node.values, strict=True)), known)
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


def _merged(pairs: list[tuple[str | None, ast.expr]], known: Mapping[str, Any]) -> Any:
    """Return a dict of settings, into which those without a name are poured whole."""
    found: dict[str, Any] = {}
    for name, part in pairs:
        if name is not None:
            found[name] = _part(part, known)
            continue
        value = _value(part, known)
        if not isinstance(value, Mapping) or len(value) > _MOST_MERGED:
            return Unresolved(ast.unparse(part))
        found |= value
    return found


def _part(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return a value within a dict; a name of parts again could double at every step."""
    value = _value(node, known)
    is_written = isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Call)
    return Unresolved(ast.unparse(node)) if isinstance(value, _PARTS) and not is_written else value
