"""The table of commands, each loaded when it is first needed.

`rksp --help` lists them from this table: it waits neither for torch nor for the options of all.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import typer

from rksp.ground.allocator import loading
from rksp.ground.errors import InputError, nearest

# What each does, the first line of its docstring, by where it is in rksp.cli.
_SUMMARIES = {
    "score": "Say how likely the run is to fail, why, and at which learning rate to start.",
    "fix": "Show what would remove the findings of a run file, as a diff; "
    "--write changes the file.",
    "grid": "Rank all settings of a sweep by risk; exit with 1 if one is at or above the bar.",
    "confirm": "Train briefly with all monitors: test the prediction, and what would have helped.",
    "watch": "Run a command that trains with every monitor on it, unchanged; "
    "pass its exit code on.",
    "transfer": "Scale the learning rate tuned on SMALL to LARGE by the ratio of their edges.",
    "playground": "Write a page whose sliders move the answer: "
    "rate, warm-up, steps, batch, width, depth.",
    "calibrate": "Train a short sweep of learning rates, on the model or its tiny twin, "
    "and answer with it.",
    "runs": "Show what past runs say: their labels, their sweeps, and how well rksp predicts them.",
    "report": "Show a stored report in any format.",
    "report:diff": "Compare two runs: which settings and issues differ, "
    "and what each difference moves.",
    "audit": "Name the known faults of the software that trains; exit with 1 at one of level "
    "error.",
    "explain:checks": "List all checks with their codes, worst levels, names and titles.",
    "explain": "Explain a word of the output: what it means, what is healthy, how to fix it.",
    "explain_config": "Show the recipe in a file: each field, its origin, and all assumptions.",
    "mcp": "Serve score, fix, explain and grid to an agent over standard input and output.",
    "reproduce": "Print a published experiment beside our results, as Markdown.",
    "report:schema": "Print the JSON Schema of the report that a command makes.",
}


_MOVED = {"lab": "python -m lab", "bench": "python -m lab bench"}
# name, module and function (mostly of the same name), what it does
COMMANDS = tuple(
    (name.replace("_", "-"), f"rksp.cli.{where.partition(':')[0]}:{name}", summary)
    for where, summary in _SUMMARIES.items()
    for name in (where.rpartition(":")[2],)
)
AUTHORS = ("reproduce", "schema")  # whoever only trains needs none of them


class BriefCommand(typer.core.TyperCommand):
    """A command whose `--help` shows only the options of `brief`, if it names any.

    Attributes:
        brief: Names of the parameters that people use; empty shows all.
    """

    brief: tuple[str, ...] = ()

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help; parameters that are left out of it are only hidden while it is made."""
        shown = (*self.brief, "help", "help_all")
        parameters: list[Any] = self.params
        left_out = [p for p in parameters if self.brief and p.name not in shown and not p.hidden]
        for parameter in left_out:
            parameter.hidden = True
        super().format_help(context, formatter)
        for parameter in left_out:
            parameter.hidden = False


class DeferredCommand(typer.core.TyperCommand):
    """A command that is listed by its summary and loaded when it is needed."""

    def __init__(self, name: str, where: str, summary: str) -> None:
        self._where = where
        panel = "For authors" if name in AUTHORS else None
        super().__init__(name, help=summary, rich_markup_mode="rich", rich_help_panel=panel)

    @functools.cached_property
    def loaded(self) -> Any:
        """The command itself, imported on first use."""
        module, _, attribute = self._where.partition(":")
        found = getattr(import_module(module), attribute)
        single = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
        )
        single.command(self.name, cls=BriefCommand)(found)
        command: Any = typer.main.get_command(single)
        command.brief = getattr(found, "brief", ())
        command.from_file = getattr(found, "from_file", frozenset())
        return command

    @property
    def params(self) -> list[Any]:
        """Parameters of the loaded command."""
        return self.loaded.params

    @params.setter
    def params(self, value: list[Any]) -> None:
        """Ignore the empty list that the base class starts from."""

    @property
    def from_file(self) -> frozenset[str]:
        """Names of the parameters that a file of defaults may set."""
        return getattr(self.loaded, "from_file", frozenset())

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Load the command and let it parse the arguments."""
        with loading():
            return self.loaded.make_context(*arguments, **more)


class CommandTable(typer.core.TyperGroup):
    """The group of all commands of `COMMANDS`."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = {name: DeferredCommand(name, *rest) for name, *rest in COMMANDS}

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the options before the command's name; typer loads what reads them."""
        with loading():
            return super().make_context(*arguments, **more)

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find the command; those that left the package are named with where they went.

        Raises:
            InputError: There is no such command, or it runs in a checkout alone.
        """
        name = arguments[0]
        if name in _MOVED:
            raise InputError(
                f"rksp {name} is not part of the package any more; in a checkout of rksp's "
                f"repository, run {_MOVED[name]}."
            )
        if name not in self.commands and not name.startswith("-"):
            hint = nearest(name, self.commands) or f"; did you mean rksp score {name}?"
            raise InputError(f"There is no command {name!r}{hint}")
        return super().resolve_command(context, arguments)
