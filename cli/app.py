"""The application: its commands, and one place that turns errors into exit codes.

`rksp --help` lists the commands from a table: it waits neither for torch nor for the options of
all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.cli import defaults
from rksp.cli.process import own_streams
from rksp.ground.allocator import loading
from rksp.ground.errors import InputError, RkspError, summary
from rksp.ground.text import one_line

# What each does, the first line of its docstring, by where it is in rksp.cli.
_SUMMARIES = {
    "score": "Say how likely the run is to fail, why, and at which learning rate to start.",
    "run_files:fix": "Show what would remove the findings of a run file, as a diff; "
    "--write changes the file.",
    "grid": "Rank all settings of a grid by risk; exit with 1 if one is at or above the bar.",
    "training:confirm": "Train briefly with all monitors: test the prediction, and what "
    "would have helped.",
    "watch": "Run a command that trains with every monitor on it, unchanged; "
    "pass its exit code on.",
    "why": "Say what became of past runs: whether they failed, when, why, and what to change.",
    "report:diff": "Compare two runs: which settings and issues differ, "
    "and what each difference moves.",
    "report": "Show a stored report in any format, or a page whose sliders move the answer.",
    "run_files:audit": "Name the known faults of the software that trains; exit with 1 at one of "
    "level error.",
    "explain": "Explain a word of the output or a run file; without one, list all checks.",
    "mcp": "Serve score, fix, explain and grid to an agent over standard input and output.",
    "explain:reproduce": "Print a published experiment beside our results, as Markdown.",
}
# name, module and function (mostly of the same name), what it does
COMMANDS = tuple(
    (where.rpartition(":")[2], f"rksp.cli.{module}:{where.rpartition(':')[2]}", summary)
    for where, summary in _SUMMARIES.items()
    for module in (where.partition(":")[0],)
)
HIDDEN = ("mcp", "reproduce")  # whoever only trains needs none of them
# Old name → the words that stand for it now; it goes on to work, and no help lists it.
OLD = {
    "transfer": ("score", "--tuned"),
    "calibrate": ("confirm", "--sweep"),
    "playground": ("report", "--sliders"),
    "schema": ("report", "--schema"),
    "runs": ("why",),
    "checks": ("explain",),
    "explain-config": ("explain",),
}


class BriefCommand(typer.core.TyperCommand):
    """A command whose `--help` shows only the options of `brief`, if it names any.

    Attributes:
        brief: Names of the parameters that people use; empty shows all.
    """

    brief: tuple[str, ...] = ()

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Keep the words for what is said of them."""
        from rksp.cli.mistakes import TYPED

        context.meta[TYPED] = [*arguments]
        try:
            return super().parse_args(context, arguments)
        except _UsageError as error:
            error.ctx = context
            raise

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
        super().__init__(name, help=summary, rich_markup_mode="rich", hidden=name in HIDDEN)

    @functools.cached_property
    def loaded(self) -> Any:
        """The command itself, imported on first use."""
        module, _, attribute = self._where.partition(":")
        found = getattr(import_module(module), attribute)
        single = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
        )
        # What stands behind a watched program is the program's own.
        settings = {"allow_interspersed_args": self.name != "watch"}
        single.command(self.name, cls=BriefCommand, context_settings=settings)(found)
        command: Any = typer.main.get_command(single)
        command.brief = getattr(found, "brief", ())
        command.from_file = getattr(found, "from_file", frozenset())
        command.also = getattr(found, "also", {})
        return command

    @property
    def params(self) -> list[Any]:
        """Parameters of the loaded command."""
        found: list[Any] = self.loaded.params
        return found

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
        """Find the command, also by its old name.

        Raises:
            InputError: There is no such command.
        """
        name, *others = arguments
        if name in OLD:
            now = " ".join(OLD[name])
            said = f"rksp: rksp {name} is now rksp {now}; the old name works through 0.13."
            print(said, file=sys.stderr)
            return super().resolve_command(context, [*OLD[name], *others])
        if f"--{name}" in ("--help", "--version"):
            raise InputError(f"There is no command {name!r}; type rksp --{name}.")
        if name not in self.commands and not name.startswith("-"):
            if name == "rksp":
                raise InputError("rksp was typed twice; leave one out.")
            from rksp.cli.mistakes import unknown_command

            raise InputError(unknown_command(name, self.commands))
        return super().resolve_command(context, arguments)


# Typer brings its own click since 0.20 and used the package before: this class serves both.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_CLOSED_PIPE = 141  # what a shell sees of a program that SIGPIPE ended

app = typer.Typer(
    name="rksp",
    cls=CommandTable,
    help="The pre-flight check of a training run.\n\n"
    "Exit codes: 0 below the bar; 1 P(failed) at or above the bar, or a finding of level error; "
    "2 wrong usage or unreadable input; 3 rksp could not finish; 4 rksp cannot tell (with "
    "--fail-on unknown); 130 interrupted; 141 a closed pipe.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from rksp.ground.versions import version

        print(f"rksp {version('rksp')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    no_config: Annotated[
        bool, typer.Option("--no-config", help="Ignore .rksp.toml and \\[tool.rksp].")
    ] = False,
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the defaults of options from the nearest file of defaults."""
    try:
        found = None if no_config else defaults.find_defaults(Path.cwd())
    except FileNotFoundError as error:
        raise InputError("The working folder is gone; change to another one.") from error
    if found is not None:
        file, tables = found
        context.default_map = defaults.default_map(file, tables, context.command)
        print(f"rksp: defaults from {one_line(str(file))}", file=sys.stderr)


def main(
    arguments: list[str] | None = None, *, program: typer.Typer = app, name: str = "rksp"
) -> None:
    """Run a command and leave with its exit code; errors are one sentence on stderr.

    Where stderr cannot be written, the sentence goes to stdout.
    """
    with own_streams() as (out, err):
        code, sentence = _ended(arguments, program, name)
        if sentence:
            print(sentence, file=err, flush=True)
        if sentence and err.is_lost:
            print(sentence, file=out)
        with contextlib.suppress(BrokenPipeError, RkspError):
            out.flush()
    sys.exit(code)


def _ended(arguments: list[str] | None, program: typer.Typer, name: str) -> tuple[int, str]:
    command = typer.main.get_command(program)
    try:
        code = command.main(args=arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return 130, _said("interrupted")
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return error.exit_code, ""
        from rksp.cli.mistakes import complaint

        return error.exit_code, _said(complaint(error, arguments or sys.argv[1:]))
    except RkspError as error:
        if os.environ.get("RKSP_TRACEBACK") and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)  # of the user's own code, or of a library
        return error.exit_code, _said(str(error))
    except BrokenPipeError:
        return _CLOSED_PIPE, ""
    except SystemExit as error:
        # Click leaves with 1 when a pipe is closed, which would read as "at risk".
        if isinstance(error.__context__, BrokenPipeError):
            return _CLOSED_PIPE, ""
        if _left_by_typer(error):  # 1 is of completions that a variable asks for in no known way
            return 2 if error.code else 0, ""
        return 2, _said("Code outside rksp tried to end the program.")
    except MemoryError:
        return 3, _said("there is not enough memory for this; give it more, or ask for less")
    except BaseException as error:  # the last resort: CI must not read a crash as "risky"
        if os.environ.get("RKSP_TRACEBACK"):
            traceback.print_exc()
        hint = "RKSP_TRACEBACK=1 shows where"
        return 3, _said(f"unexpected {summary(error, 300)} ({hint})")
    return code if isinstance(code, int) else 0, ""


def _left_by_typer(error: SystemExit) -> bool:
    """Tell whether typer itself raised the error, as it does after it printed completions."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] == "typer"


def _said(sentence: str) -> str:
    return f"rksp: {one_line(sentence)}"
