"""Run a command of rksp in this process."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest

from rksp.cli import main

POSIX = ("fcntl", "grp", "posix_ipc", "pwd", "resource", "termios", "tty")
# Lines in front of a program. psutil has a module for each system, and Linux's reads `resource`.
WITHOUT_POSIX = f"import sys, psutil\nsys.modules.update(dict.fromkeys({POSIX!r}))\n"


def left_with(arguments: list[str], program: Callable[[list[str]], None] = main) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as left:
        program(arguments)
    return left.value.code


def run_rksp(
    *arguments: str, cwd: Path | None = None, program: Callable[[list[str]], None] = main
) -> CompletedProcess[str]:
    """Run a command as from a shell of 100 columns; starting Python would cost six seconds."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100"),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = left_with(list(arguments), program)
    return CompletedProcess(arguments, int(code or 0), out.getvalue(), err.getvalue())
