"""The calls with which a training script builds what trains, with what they are given.

The source is read as a syntax tree; nothing of it is ever run. What a loop, a branch or another
call may set otherwise is not known; of a branch on an option counts the part that its default
takes. A variable of the environment that no launcher sets has its default, and a function's
argument is what its only call gives it.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rksp.ground.budgets import SETTINGS
from rksp.recipe_files.parse.python_names import Changes, Names, changed, fields_of
from rksp.recipe_files.parse.python_values import (
    assigned_by,
    bound,
    called,
    last_word,
    settings_of,
    value_of,
    words_of,
)
from rksp.recipe_files.parse.values import Parsed, Section, Settings, Unresolved

_OF_TRAINER = re.compile(
    r"(TrainingArguments|Trainer|Config|get_peft_model|from_pretrained|SentenceTransformer"
    r"|CrossEncoder|tokenizer|parse_(known_)?args|parse_args_into_dataclasses)$"
    r"|^(fire\.)?Fire$|^typer\.run$"
)
OF_COMMAND_LINE = re.compile(r"^(parse_\w+|Fire|run)$")  # short names of wanted calls
LENGTHS = ("max_seq_length", "max_length", "block_size", "max_seq_len", "context_length", "seq_len")
_SAYS = re.compile(r"generate|pipeline|sampl|eval|decode|predict|test", re.I)  # cuts no rows
TRL = re.compile(
    r"^(SFT|DPO|KTO|ORPO|CPO|GRPO|RLOO|Reward|PPO|GKD|GOLD|BCO|PRM|XPO|NashMD|OnlineDPO)Config$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        name: What is called, as written: `AutoModelForCausalLM.from_pretrained`.
        line: Where it begins, counted from one; None where the text has no lines.
        plain: The first arguments without a name, two at most.
        given: The named arguments; what is no literal is `Unresolved`.
        lines: Name of an argument → its line.
        of: The first argument as written.
        target: What it is assigned to, as written.
    """

    name: str
    line: int | None
    plain: tuple[Parsed, ...]
    given: Section
    lines: Mapping[str, int]
    of: str = ""
    target: str = ""

    def without_lines(self) -> Call:
        """Return the call without the places of its parts."""
        return replace(self, line=None, lines={})

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def first(self) -> Parsed:
        """The first argument without a name; None if there is none."""
        return self.plain[0] if self.plain else None

    @property
    def makes_arguments(self) -> bool:
        """True if it builds the arguments of one of Hugging Face's trainers."""
        return self.short.endswith("TrainingArguments") or TRL.match(self.short) is not None


class Script:
    """The calls of a script that say how it trains, each with what the names around it stand for.

    Args:
        tree: The script.
        imported: The modules of its repository that it imports from, by name.
        wanted: Tells by the name of a call whether it is wanted, beside those around a trainer.

    Raises:
        RecursionError: It is nested too deeply.
    """

    def __init__(
        self,
        tree: ast.Module,
        imported: Mapping[str, ast.Module] | None = None,
        *,
        wanted: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.names = Names(tree, imported or {})
        self._wanted = wanted
        self._later: dict[int, Changes] = {}  # by the call that makes the object
        self._targets: dict[int, str] = {}
        self._amendments = 0
        self.found: list[Call] = []
        self._sites: dict[str, list[ast.Call]] = {}
        self._makers: dict[int, str] = {}  # the class that a function makes
        for node in self.names.nodes:
            if isinstance(node, ast.Call):
                self._sites.setdefault(last_word(node), []).append(node)
            elif isinstance(node, ast.ClassDef):
                self._makers |= {id(part): node.name for part in node.body
                                 if getattr(part, "name", "") == "__init__"}  # fmt: skip
        named = (getattr(node, "id", getattr(node, "attr", "")) for node in self.names.nodes)
        self._used = {*named, *self._makers.values(), "__init__", "__call__", "forward"}
        self._is_program = any(isinstance(part, ast.If) and "__name__" in ast.unparse(part.test)
                               for part in tree.body)  # fmt: skip
        makers = [*self._sites.get("Fire", []), *self._sites.get("run", [])]
        self._commands = {ast.unparse(part) for call in makers for part in call.args[:1]}
        now: dict[str, Parsed] = {}  # names that were assigned several times, at this point
        for statement in tree.body:
            is_run_here = not isinstance(statement, ast.FunctionDef | ast.ClassDef)
            known = ChainMap(self.names.fixed, now if is_run_here else {})
            self._part(statement, known)
            moving = self.names.moving
            now |= {name: value for name, value in assigned_by(statement, known) if name in moving}

    @cached_property
    def of_trainer(self) -> list[Call]:
        """The calls around a trainer, by line; none if the script builds no arguments of one.

        A class of the script's own may stand for its arguments.
        """
        found = [
            call
            for call in self.found
            if _OF_TRAINER.search(call.name) or not call.given.keys().isdisjoint(LENGTHS)
        ]
        if any(OF_COMMAND_LINE.match(call.short) for call in found):
            found += [] if any(call.makes_arguments for call in found) else self._own()
        found.sort(key=lambda call: call.line or 0)
        return found if any(call.makes_arguments for call in found) else []

    def _part(self, part: ast.AST, known: ChainMap[str, Parsed]) -> None:
        waiting = [(part, known)]
        while waiting:
            node, known = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if self._is_program and node.name not in self._used and not node.decorator_list:
                    continue
                known = known.new_child(self._arguments(node))
            if isinstance(node, ast.Assign):
                self._targets[id(node.value)] = ast.unparse(node.targets[0])
                if isinstance(node.targets[0], ast.Name):
                    changes = self.names.changes.get(node.targets[0].id, {})
                    self._later[id(node.value)] = changes
            if isinstance(node, ast.Call) and self._is_wanted(node):
                self.found.append(self._amended(node, known))
            waiting += [(inner, known) for inner in reversed(list(_taken(node, known)))]

    def _is_wanted(self, node: ast.Call) -> bool:
        name = called(node)
        if _OF_TRAINER.search(name) is not None or self._wanted(name):
            return True
        return any(word.arg in LENGTHS for word in node.keywords) and not _SAYS.search(name)

    def _own(self) -> list[Call]:
        options = self.names.options
        for node in self.names.nodes:
            if isinstance(node, ast.ClassDef) and node.bases:
                own = {name: options.get(name) for name in fields_of(node, {})}
                call = Call(name=last_word(node.bases[0]), line=node.lineno, plain=(), given=own,
                            lines={})  # fmt: skip
                if call.makes_arguments:
                    return [call]
        return []

    def _amended(self, node: ast.Call, known: Section) -> Call:
        call, later = self._read(node, known), self._later.get(id(node))
        if not later or not call.makes_arguments:
            return call
        self._amendments += len(later)
        SETTINGS.check(self._amendments, "The Python code")
        lines = {name: made[0].statement.lineno for name, made in later.items()}
        given = changed(dict(call.given), later, known)
        return replace(call, given=given, lines={**call.lines, **lines})

    def _read(self, node: ast.Call, known: Section) -> Call:
        return Call(
            name=called(node),
            line=node.lineno,
            plain=tuple(value_of(part, known) for part in node.args[:2]),
            given=words_of(node, known),
            lines={word.arg: word.value.lineno for word in node.keywords if word.arg is not None},
            of=ast.unparse(node.args[0]) if node.args else "",
            target=self._targets.get(id(node), ""),
        )

    def _arguments(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Parsed]:
        """Return what a function's arguments stand for: what its only call gives, or defaults.

        Without a call, defaults count where a library makes a command line of the function.
        """
        takes, fixed = function.args, self.names.fixed
        plain = [*takes.posonlyargs, *takes.args]
        usual = dict(zip(reversed(plain), reversed(takes.defaults), strict=False))
        usual |= {a: d for a, d in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if d}
        given = {argument.arg: value for argument, value in usual.items()}
        sites = self._sites.get(self._makers.get(id(function), function.name), [])
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
            else settings_of(given[name], fixed) or value_of(given[name], fixed)
            for name in (argument.arg for argument in (*plain, *takes.kwonlyargs))
            if not isinstance(fixed.get(name), Settings)
        }  # fmt: skip


def _taken(node: ast.AST, known: Section) -> Iterable[ast.AST]:
    test = value_of(node.test, known) if isinstance(node, ast.If) else None
    if not isinstance(node, ast.If) or not isinstance(test, bool):
        return ast.iter_child_nodes(node)
    return [node.test, *(node.body if test else node.orelse)]
