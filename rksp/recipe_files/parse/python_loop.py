"""Training scripts with a loop of their own: their options, and what they build with them.

Options count at the defaults of the command line (argparse, absl, click, typer, Fire, dataclasses).
An optimizer, a schedule, a clipping norm and a model count with what their calls are given. Nothing
is run.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap, Counter
from collections.abc import Mapping
from typing import Any

from rksp.models.names import is_type
from rksp.recipe.optimizers.table import optimizer_named
from rksp.recipe_files.parse.python_script import names_of
from rksp.recipe_files.parse.python_values import called, value_of
from rksp.recipe_files.parse.values import Unresolved

OPTIMIZERS = "optimizers"  # key of the optimizers that are built
OPTIONS = "args"  # key of the options of a command line
NAMES = "names()"  # key of the names that a script defines and calls, as one text
_OPTIMIZER = re.compile(r"^[A-Z]\w*$|^(optax|optim)\.\w+$")
_NO_OPTIMIZER = re.compile(
    r"(Config|Args|Arguments|Wrapper|Callback|Classifier|Regressor|LR)$|[Ss]chedule"
)
_SCHEDULE = re.compile(r"^\w+LR$|_schedule(_|$)|^get_\w+_with_warmup$|^\w+_decay$")
_SECOND = re.compile(r"critic|value_|discrim|teacher|_ema|net_?d\b|probe", re.I)
_NOT_TRAINED = re.compile(r"ref|reward|judge|eval")
_LOADS = re.compile(r"(Model|LM|For\w+|Transformer)\w*\.from_pretrained$")


class _Loop:
    """The settings that the calls of one script give."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known
        self.data: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self._taken: Counter[str] = Counter()

    def keep(self, node: ast.Call, section: str, named: Mapping[str, ast.expr]) -> None:
        """Keep arguments of a call; of those that another place gives, rates alone."""
        home = self.data
        for part in section.split("."):
            home = home.setdefault(part, {})
        self.lines.setdefault(section, node.lineno)
        for name, given in named.items():
            value = value_of(given, self.known)
            parts = value if isinstance(value, list) else [value]
            if name in _RATES or not any(isinstance(one, Unresolved) for one in parts):
                home[name] = value
                self.lines[f"{section}.{name}"] = given.lineno

    def read(self, node: ast.Call, target: str) -> None:
        """Read one call; `target` is what it is assigned to."""
        name = called(node)
        short = name.rpartition(".")[2]
        words = {str(one.arg): one.value for one in node.keywords if one.arg is not None}
        first = ast.unparse(node.args[0]) if node.args else ""
        is_second = _SECOND.search(first) is not None or _SECOND.search(target) is not None
        if short == "clip_grad_norm_" and (len(node.args) > 1 or "max_norm" in words):
            self.keep(node, short, {"max_norm": words.get("max_norm", node.args[-1])})
        elif _SCHEDULE.search(short) and (node.args or words):
            if is_second:
                return
            self.data.setdefault("lr_scheduler", {}).setdefault("name", short)
            self.data[target or short] = short
            self.keep(node, "lr_scheduler", words)
        elif _is_optimizer(name) and (node.args or words):
            self._taken[short] += 1
            self.data[target or short] = short
            label = f"{short} {self._taken[short]}" if self._taken[short] > 1 else short
            of = "critic." if is_second else ""
            given = {"lr": node.args[1]} if len(node.args) > 1 else {}
            self.keep(node, f"{OPTIMIZERS}.{of}{label}", given | words)
        elif _LOADS.search(name) and node.args and not is_second:
            if not _NOT_TRAINED.search(target):
                self.keep(node, "model", {"model_name_or_path": node.args[0]})
        elif short.endswith("Config") and is_type(short.removesuffix("Config").lower()):
            self.keep(node, "model_config", words)
            self.data["model_config"]["_call"] = short


_RATES = ("lr", "learning_rate")
_TRAINS = re.compile(r"\b(backward|step|value_and_grad|apply_gradients|training_step)( |$)")


def _is_optimizer(name: str) -> bool:
    path, _, short = name.rpartition(".")
    written = f"{path.rpartition('.')[2]}.{short}" if path else short
    if not (_OPTIMIZER.match(written) or _OPTIMIZER.match(short)) or _NO_OPTIMIZER.search(name):
        return False
    return optimizer_named(short)[0] is not None


def read_loop(
    tree: ast.Module, imported: Mapping[str, ast.Module], literals: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the settings of a script and the line of each dotted key.

    Args:
        tree: The script.
        imported: The modules beside it that it imports from, by name.
        literals: What is assigned at its top level.
    """
    known, options, lines = names_of(tree, imported)
    loop = _Loop(ChainMap(known, dict(literals)))
    targets: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets[id(node.value)] = ast.unparse(node.targets[0])
        elif isinstance(node, ast.Call):
            loop.read(node, targets.get(id(node), ""))
    if options:
        loop.data[OPTIONS] = options
        loop.lines |= {f"{OPTIONS}.{name}": line for name, line in lines.items()}
    names = mentioned(tree)
    if OPTIMIZERS in loop.data or _TRAINS.search(names):
        loop.data[NAMES] = names
    return loop.data, loop.lines


def mentioned(tree: ast.Module) -> str:
    """Return the names that a script defines and calls, as one text."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Call):
            names.add(called(node))
    return " ".join(sorted(names))
