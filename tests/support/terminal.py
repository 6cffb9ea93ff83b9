"""A terminal for commands that draw on one: a pty, and the screen that its bytes leave."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

_PART = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(text: str) -> list[str]:
    """Return the lines that are left after the cursor's moves; colours do not count."""
    lines, row, column = [""], 0, 0
    for number, code, move, plain in _PART.findall(text):
        if move == "\r":
            column = 0
        elif move == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif plain:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + plain + line[column + len(plain) :]
            column += len(plain)
        elif code == "A":
            row -= int(number or 1)
            assert row >= 0, "the cursor left the screen"
        elif code == "K":
            assert number == "2", "another erasure than of a line"
            lines[row] = ""
        else:
            assert code in "mhl", f"a terminal of the tests does not know {code}"
    return lines


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield the end of a pty that a command writes to, and what was written so far."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals here")
    ours, theirs = pty.openpty()
    heard: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                return
            if not part:
                return
            heard.append(part)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    closed = False

    def text() -> str:
        nonlocal closed
        if not closed:
            os.close(theirs)
            closed = True
            listener.join(10)
        return b"".join(heard).decode()

    try:
        yield theirs, text
    finally:
        text()
        os.close(ours)


@contextmanager
def on_a_terminal() -> Iterator[Callable[[], str]]:
    """Let stdout of this process be a terminal inside; yield what was written, for afterwards."""
    with (
        terminal() as (end, text),
        os.fdopen(os.dup(end), "w", encoding="utf-8") as stdout,
        mock.patch.dict(os.environ, TERM="xterm", COLUMNS="100"),
        mock.patch.object(sys, "stdout", stdout),
    ):
        # An end that stays open lets the listener wait.
        yield lambda: (stdout.close(), text())[1]
