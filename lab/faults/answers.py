"""One command on one folder of files, in this process, and what is wrong with its answer."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from lab.faults.commands import rksp

DRY = ("--dry-run", "--max-cells", "500")
EXPECTED = (0, 1, 2)
_OPEN = "cells are not done; run the same command to resume"
MOST_SECONDS = 60.0  # of the processor
_LONGEST = 2000  # characters of a refusal
_ESCAPES = frozenset("\x1b\x00\x9b\u202e\u2066")
_EVIL = 'import pathlib\npathlib.Path("imported").touch()\ndef run():\n    pass\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command and the files that it finds in its folder.

    Attributes:
        command: Words after `rksp`, or `lab` and words of the lab.
        files: Content by name.
        writes: Names that the command may add to the folder.
    """

    command: tuple[str, ...]
    files: Mapping[str, bytes]
    writes: tuple[str, ...] = ()


def each(
    commands: Sequence[Sequence[str]], files: st.SearchStrategy[Mapping[str, bytes]]
) -> st.SearchStrategy[Case]:
    """Return cases of one of the commands on one of the sets of files."""
    return st.builds(
        lambda command, found: Case(command=tuple(command), files=found),
        st.sampled_from(commands),
        files,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said; `seconds` are of the processor."""

    code: int
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    found: tuple[str, ...] = ()  # what it left in the folder and must not
    connected: tuple[str, ...] = ()


def answer(case: Case) -> Answer:
    """Run a command in the working folder, which is emptied first."""
    _lay_out(case)
    out, err = io.StringIO(), io.StringIO()
    started, code = time.process_time(), 3
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _network_watched() as connected,
    ):
        try:
            rksp(list(case.command))
        except SystemExit as left:
            code = left.code
        except BaseException as error:  # whatever gets past rksp is what is looked for
            err.write(f"Traceback: {error!r}")
    seconds = time.process_time() - started
    known = {Path(name).parts[0] for name in ("evil.py", *case.files, *case.writes)}
    extra = tuple(sorted(p.name for p in Path().iterdir() if p.name not in known))
    return Answer(
        code=code,
        out=out.getvalue(),
        err=err.getvalue(),
        seconds=seconds,
        found=extra,
        connected=tuple(connected),
    )


def complaint(given: Answer, *, is_json: bool = False) -> str | None:
    """Say what is wrong with an answer to damaged input; None if nothing is."""
    if "Traceback" in given.err:
        return f"traceback: {given.err.strip()[-300:]}"
    is_open = given.code == 3 and _OPEN in given.err  # a store that says so is not damaged
    if given.code not in EXPECTED and not is_open:
        return f"exit {given.code}: {given.err.strip()[-300:]}"
    if given.found:
        return f"left {', '.join(given.found)} in the folder"
    if given.connected:
        return f"connected to {given.connected[0]}"
    sentences = [line for line in given.err.splitlines() if not line.endswith("…")]  # but progress
    if given.code == 2 and (given.out or not sentences):
        return f"exit 2 with {len(given.out)} characters on stdout, {len(sentences)} sentences"
    if given.code == 2 and len(sentences[-1]) > _LONGEST:
        return f"a refusal of {len(sentences[-1])} characters"
    if given.code == 1 and "exit 1: " not in given.err:
        return "exit 1 without a reason"
    if _ESCAPES & set(given.out + given.err):
        return "a control character was printed"
    if is_json and given.code in (0, 1) and (reason := _not_json(given.out)):
        return reason
    if given.seconds > MOST_SECONDS:
        return f"{given.seconds:.0f} CPU seconds"
    return None


def signature(said: str) -> str:
    """Return a complaint without what differs between inputs of one cause."""
    kind = re.search(r"unexpected \w+: .{0,30}|Traceback: \w+\(.{0,30}", said)
    return re.sub(r"\d+|'[^']*'", "#", kind[0] if kind else said[:60])


def _not_json(text: str) -> str | None:
    def refused(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refused)
    except ValueError as error:
        return f"not strict JSON: {error!s:.100}"
    return None


def _lay_out(case: Case) -> None:
    for path in list(Path().iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    Path("evil.py").write_text(_EVIL)
    for name, content in case.files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextlib.contextmanager
def _network_watched() -> Iterator[list[str]]:
    """Refuse every connection, and note where it would have gone."""
    asked: list[str] = []

    def refuse(*place: object, **more: object) -> None:
        asked.append(str(place[1:] or place)[:100])
        raise OSError("no network in the harness")

    connect, look_up = socket.socket.connect, socket.getaddrinfo
    socket.socket.connect, socket.getaddrinfo = refuse, refuse
    try:
        yield asked
    finally:
        socket.socket.connect, socket.getaddrinfo = connect, look_up
