"""The application: its commands, and one place that turns errors into exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from rksp.cli import defaults
from rksp.cli.commands import COMMANDS, CommandTable
from rksp.ground.errors import RkspError, nearest
from rksp.ground.text import one_line

# Typer brings its own click since 0.20 and used the package before: this class serves both.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_CLOSED_PIPE = 141  # what a shell sees of a program that SIGPIPE ended

app = typer.Typer(
    name="rksp",
    cls=CommandTable,
    help="The pre-flight check of a training run.\n\n"
    "Exit codes: 0 below the bar; 1 P(failed) at or above the bar, or a finding of level error; "
    "2 wrong usage or unreadable input; 3 rksp could not finish; 130 interrupted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

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
    found = None if no_config else defaults.find_defaults(Path.cwd())
    if found is not None:
        file, tables = found
        context.default_map = defaults.default_map(file, tables, context.command)
        print(f"rksp: defaults from {one_line(str(file))}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code; errors are one sentence on stderr."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="rksp", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(_say("interrupted", 130))
    except _UsageError as error:
        error.message = _plain(one_line(error.message))
        names = getattr(getattr(error, "param", None), "opts", ())
        if names and names[0].startswith("--"):
            error.param_hint = f"'{names[0]}'"  # its own name, without those of one word
            if "valid number" in error.message:
                error.message = _no_number(arguments or sys.argv[1:], names)
        error.show()
        sys.exit(error.exit_code)
    except RkspError as error:
        if os.environ.get("RKSP_TRACEBACK") and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)  # of the user's own code, or of a library
        sys.exit(_say(str(error), error.exit_code))
    except BrokenPipeError:
        sys.exit(_closed_pipe())
    except SystemExit as error:
        # Click leaves with 1 when a pipe is closed, which would read as "at risk".
        if isinstance(error.__context__, BrokenPipeError):
            sys.exit(_closed_pipe())
        if _left_by_typer(error):
            raise
        sys.exit(_say("Code outside rksp tried to end the program.", 2))
    except Exception as error:  # the last resort: CI must not read a crash as "risky"
        if os.environ.get("RKSP_TRACEBACK"):
            traceback.print_exc()
        first = (str(error) or type(error).__name__).splitlines()[0]
        hint = "RKSP_TRACEBACK=1 shows where"
        sys.exit(_say(f"unexpected {type(error).__name__}: {first} ({hint})", 3))
    sys.exit(code if isinstance(code, int) else 0)


def _left_by_typer(error: SystemExit) -> bool:
    """Tell whether typer itself raised the error, as it does after it printed completions."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] == "typer"


def _closed_pipe() -> int:
    """Return the exit code of a program whose reader went away, as `| head` does."""
    with contextlib.suppress(OSError, ValueError):
        # What is still in the buffer would raise once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _CLOSED_PIPE


def _plain(message: str) -> str:
    """Put a wrong value into rksp's own words, with the nearest of the known choices."""
    said = message.replace("Value error, ", "").replace("Input should be", "it should be")
    said = re.sub(r", unable to parse .*", "", said)
    command = re.search(r"No such command '([^']*)'", said)
    if command is not None and not nearest(command[1], [name for name, *_ in COMMANDS]):
        return f"{said.rstrip('.')}; did you mean rksp score {command[1]}?"
    choices = re.search(r"'([^']*)' is not one of ((?:'[^']*'(?:, )?)+)\.?$", said)
    if choices is None:
        return said
    known = re.findall(r"'([^']*)'", choices[2])
    hint = nearest(choices[1], known, count=1).lstrip("; ")
    return f"{said.rstrip('.')}.{f' D{hint[1:]}' if hint else ''}"


def _no_number(arguments: list[str], names: Sequence[str]) -> str:
    """Say what was typed where a number should be, and how to write it."""
    pairs = [one.split("=", 1) for one in arguments if "=" in one] + list(pairwise(arguments))
    value = next((value for name, value in pairs if name in names), "")
    several = f"for several values use rksp grid TARGET {names[0].lstrip('-')}={value}"
    return f"{value!r} is no number; {several if ',' in value else 'write it as 6e-4 or 0.0006'}."


def _say(sentence: str, code: int) -> int:
    print(f"rksp: {one_line(sentence)}", file=sys.stderr)
    return code
