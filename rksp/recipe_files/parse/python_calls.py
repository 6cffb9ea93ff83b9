"""The calls of a training script: with which literal arguments it builds its trainer and model.

A script is read as a syntax tree and never run. Names count where a literal is assigned to them
just once, at whatever depth.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rksp.recipe_files.parse.python_source import called, flat, literal
from rksp.recipe_files.parse.values import Unresolved

_WANTED = re.compile(
    r"(TrainingArguments|Trainer|Config|get_peft_model|from_pretrained|SentenceTransformer"
    r"|CrossEncoder)$"
)
_HAS_BF16 = ("is_bfloat16_supported", "is_bf16_supported")  # yes, as for the word `auto`
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
    known = _assigned_once(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    wanted = [node for node in calls if _WANTED.search(called(node))]
    found = [_read(node, known) for node in sorted(wanted, key=lambda node: node.lineno)]
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


def _assigned_once(tree: ast.Module) -> dict[str, Any]:
    """Return the names that one assignment gives a value, anywhere in the script."""
    found = [
        (statement.targets[0].id, statement.value)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ]
    counts = Counter(name for name, _ in found)
    known: dict[str, Any] = {}
    for name, node in found:
        if counts[name] == 1:
            known[name] = _value(node, known)
    return known


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return a literal, `torch.bfloat16` as its name, and a question about bf16 as a yes."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in _NAMED:
        return node.attr
    if isinstance(node, ast.Call):
        name = called(node)
        if name.rsplit(".", 1)[-1] in _HAS_BF16:
            return True
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
    if isinstance(node, ast.IfExp):
        test = _value(node.test, known)
        if isinstance(test, bool):
            return _value(node.body if test else node.orelse, known)
    return literal(node, known)


def _part(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return a value within a dict."""
    return flat(node, known) if isinstance(node, ast.Name) else _value(node, known)
