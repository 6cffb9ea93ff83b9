"""Kills while files are written, full disks, closed pipes: the old file or the new one."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from lab.faults import counts
from lab.faults.commands import CONFIG, JSON, PLAN, RATE, rksp, said
from lab.faults.originals import made
from lab.faults.processes import code_of, exit_code, forked
from lab.ladders.ladder import run_ladder
from lab.ladders.plan import Plan
from lab.ladders.store import write_ladder
from rksp.ground.errors import RkspError
from rksp.ground.files import ResultFolder, atomic_write
from rksp.watch.run_state import Checkpoints

Write = Callable[[int], None]  # the first or the second content, by turns
COLUMNS = counts.named("kills", "between", "half", "full", "read_only", "wrong", "leftovers")
# Commands whose reader is gone.
_PIPED: Mapping[str, Sequence[str]] = {
    "checks": ("checks",),
    "explain": ("explain", "RKSP001"),
    "report": ("report", "score.json", "--format", "html"),
    "diff": ("diff", "score.json", "risky.json", *JSON),
    "grid": ("grid", "grid.db", *JSON),
    "schema": ("schema", "score"),
    "score": ("score", "gpt2", *RATE, *CONFIG, *JSON),
}


@dataclass(slots=True, kw_only=True)
class Writes:
    """What kills and full disks did to one way of writing.

    Attributes:
        kills: That met the process while it wrote: its partial file remained.
        between: That met it between two writes.
        half: Files that were neither the old nor the new content.
        full: Attempts on a disk without room.
        read_only: Attempts on a disk that is mounted read-only.
        wrong: Of these, exit codes other than 2 and 3, or an old file that changed.
        leftovers: Partial files that an attempt on a full disk left behind.
    """

    name: str
    kills: int = 0
    between: int = 0
    half: int = 0
    full: int = 0
    read_only: int = 0
    wrong: int = 0
    leftovers: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Return the number of broken promises."""
        return self.half + self.wrong + self.leftovers


def ways(folder: Path) -> dict[str, tuple[Path, Write]]:
    """Return each way in which rksp writes a file into the working folder: where, and how."""
    _lay_out(folder)
    _with_fewer_cells(folder / "grid.db", folder / "fewer.db")
    for number, spec in enumerate(Plan.model_validate(PLAN).expand()):
        (folder / f"ladders-{number}").mkdir()
        write_ladder(folder / f"ladders-{number}", run_ladder(spec), {})
    results = ResultFolder(folder / "cache")
    report, ladders = ("report", ("score.json", "risky.json"), "-o"), ("ladders-0", "ladders-1")
    stores, edge = ("grid.db", "fewer.db"), folder / "edge.json"
    export = ("grid", stores, "--export")
    return {
        "-o html": _by_command(*report, folder / "o.html"),
        "-o json": _by_command(*report, folder / "o.json"),
        "-o md": _by_command(*report, folder / "o.md"),
        "--export csv": _by_command(*export, folder / "e.csv"),
        "--export jsonl": _by_command(*export, folder / "e.jsonl"),
        "lab pack": _by_command("lab", "pack", ladders, "-o", folder / "all.parquet"),
        "lab fit": (edge, lambda turn: atomic_write(edge, "ab"[turn] * 300_000)),
        "cache": (folder / "cache" / "x.json", lambda turn: results.write("x", "ab"[turn] * 9000)),
        "checkpoint": (folder / "c" / "before-step-7.safetensors", _checkpointed(folder)),
    }


def _by_command(*words: str | tuple[str, str] | Path) -> tuple[Path, Write]:
    """Return a command that writes its last word from the first or the second of two files."""
    path = Path(str(words[-1]))

    def write(turn: int) -> None:
        command = [word[turn] if isinstance(word, tuple) else str(word) for word in words]
        code, _ = said(command, allowed=(0, 1, 2, 3))
        if code > 1:
            raise SystemExit(code)

    return path, write


def _checkpointed(folder: Path) -> Write:
    model = nn.Linear(200, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def write(turn: int) -> None:
        with torch.no_grad():
            model.weight.fill_(turn + 1.0)
        kept = Checkpoints(folder / "c", every=1)
        kept.keep(0, model, optimizer)
        kept.write(7, model)

    return write


def _lay_out(folder: Path) -> None:
    for name, content in made().items():
        (folder / name).write_bytes(content)


def _with_fewer_cells(store: Path, copy: Path) -> None:
    shutil.copy(store, copy)
    with contextlib.closing(sqlite3.connect(copy)) as base:
        base.execute("DELETE FROM cells WHERE position > 1")
        base.commit()


def kill_writers(count: int, *, seed: int = 0) -> list[Writes]:
    """Kill processes that write without a pause, and look at what they leave."""
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        found = []
        written = ways(Path(place))
        each = -(-count // len(written))
        for name, (path, write) in written.items():
            tally = Writes(name=name)
            wholes = wholes_of(path, write)
            while tally.kills < each and tally.between < 5 * each:
                kill_one(path, write, tally, source)
                tally.half += path.read_bytes() not in wholes
            without_room(path, write, tally, wholes)
            found.append(tally)
        return found


def wholes_of(path: Path, write: Write) -> list[bytes]:
    """Return the two contents that a file may have."""
    found = []
    for turn in (0, 1):
        write(turn)
        found.append(path.read_bytes())
    assert found[0] != found[1], path
    return found


def kill_one(path: Path, write: Write, tally: Writes, source: random.Random) -> None:
    """Let a process write by turns, and kill it soon after a partial file has appeared."""
    before = path.stat().st_ino
    pid = forked(lambda: _forever(write))
    end = time.monotonic() + 60
    while path.stat().st_ino == before and time.monotonic() < end:
        time.sleep(0.001)
    while not _partials(path.parent) and time.monotonic() < end:
        pass
    time.sleep(source.choice((0.0, source.uniform(0, 0.002))))
    os.kill(pid, signal.SIGKILL)
    exit_code(pid)
    left = _partials(path.parent)
    tally.kills += bool(left)
    tally.between += not left
    for partial in left:
        partial.unlink()


def _partials(folder: Path) -> list[Path]:
    """Return the files of a folder that are not written to their end."""
    return [path for path in folder.iterdir() if path.suffix == ".partial"]


def _forever(write: Write) -> None:
    while True:
        write(0)
        write(1)


def without_room(path: Path, write: Write, tally: Writes, wholes: Sequence[bytes]) -> None:
    """Write where no file may grow beyond some size."""

    def limited(size: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        write(1)

    write(0)
    for size in (0, 1, len(wholes[1]) // 2, len(wholes[1]) - 1):
        tally.full += 1
        refused(path, lambda size=size: limited(size), tally, f"{size} bytes of room")


def refused(path: Path, attempt: Callable[[], object], tally: Writes, where: str) -> None:
    """Attempt a write that cannot succeed: it must say so and leave all files as they were."""

    def attempted() -> None:
        try:
            attempt()
        except RkspError as error:
            raise SystemExit(error.exit_code) from None

    before, beside = path.read_bytes(), set(path.parent.iterdir())
    code = code_of(attempted)
    if code not in (2, 3) or path.read_bytes() != before:
        tally.wrong += 1
        tally.said.append(f"{tally.name} with {where} left with {code}")
    tally.leftovers += len(set(path.parent.iterdir()) - beside)


def closed_pipes() -> dict[str, int | None]:
    """Return the exit code of each command whose reader is gone."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        _lay_out(Path(place))
        return {
            name: code_of(lambda words=words: _into_a_closed_pipe(words))
            for name, words in _PIPED.items()
        }


def _into_a_closed_pipe(command: Sequence[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    rksp(list(command))


# Words, stdout, stderr and the exit code that is due; None closes a stream.
_STREAMS: Mapping[str, tuple[Sequence[str], str | None, str | None, int]] = {
    "refusal, full stderr": (("score", "nope"), os.devnull, "/dev/full", 2),
    "refusal, no stderr": (("score", "nope"), os.devnull, None, 2),
    "answer, full stderr": (("score", "gpt2", *RATE, *CONFIG), os.devnull, "/dev/full", 0),
    "answer, no stderr": (("score", "gpt2", *RATE, *CONFIG), os.devnull, None, 0),
    "answer, full stdout": (("score", "gpt2", *RATE, *CONFIG), "/dev/full", os.devnull, 3),
    "answer, no stdout": (("score", "gpt2", *RATE, *CONFIG), None, os.devnull, 3),
}


def broken_streams() -> dict[str, str]:
    """Return by name the exit code of a command whose streams fail, and the one that is due."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        return {
            name: f"{code_of(lambda found=found: _into(*found[:3]))} of {found[3]}"
            for name, found in _STREAMS.items()
        }


def _into(command: Sequence[str], *places: str | None) -> None:
    streams = zip((1, 2), ("stdout", "stderr"), places, strict=True)
    # What is closed comes last, or the next file to be opened would take its number.
    for number, name, place in sorted(streams, key=lambda stream: stream[2] is None):
        if place is None:
            os.close(number)
            setattr(sys, name, None)  # as Python does when it starts without one
        else:
            os.dup2(os.open(place, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
    rksp(list(command))


def table(
    found: Sequence[Writes], pipes: Mapping[str, int | None], streams: Mapping[str, str]
) -> str:
    """Return the tallies as text, with their sum."""
    lines = [counts.table("written by", found, COLUMNS)]
    lines += [line for tally in found for line in tally.said]
    lines.append("closed pipe: " + ", ".join(f"{name} {code}" for name, code in pipes.items()))
    lines.append("streams: " + "; ".join(f"{name} {code}" for name, code in streams.items()))
    return "\n".join(lines)
