"""Kills while files are written, full disks, closed pipes: the old file or the new one."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from faults.originals import made
from faults.processes import exit_code, forked
from rksp.cli import main as rksp
from rksp.ground.errors import RkspError
from rksp.ground.files import ResultFolder, atomic_write
from rksp.watch.training.checkpoints import Checkpoints

Write = Callable[[int], None]  # the first or the second content, by turns


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
    """Return each way in which rksp writes a file: where to, and what writes it."""
    for name, content in made().items():
        (folder / name).write_bytes(content)
    (folder / "fewer.db").write_bytes(_with_fewer_cells(folder / "grid.db"))
    reports = ("score.json", "risky.json")

    def command(*words: str) -> Write:
        return lambda turn: _quietly([w.replace("REPORT", reports[turn]) for w in words])

    results = ResultFolder(folder / "cache")
    ladders = _ladders(folder)
    model = nn.Linear(200, 200)
    return {
        "-o html": (folder / "o.html", command("report", "REPORT", "-o", "o.html")),
        "-o json": (folder / "o.json", command("report", "REPORT", "-o", "o.json")),
        "-o md": (folder / "o.md", command("report", "REPORT", "-o", "o.md")),
        "--export csv": (folder / "e.csv", _exported(folder / "e.csv")),
        "--export parquet": (folder / "e.parquet", _exported(folder / "e.parquet")),
        "lab pack": (
            folder / "all.parquet",
            lambda turn: _quietly(["lab", "pack", ladders[turn], "-o", "all.parquet"]),
        ),
        "lab fit": (
            folder / "edge.json",
            lambda turn: atomic_write(folder / "edge.json", "ab"[turn] * 300_000),
        ),
        "cache": (folder / "cache" / "x.json", lambda turn: results.write("x", "ab"[turn] * 9000)),
        "checkpoint": (folder / "c" / "before-step-7.safetensors", _checkpointed(folder, model)),
    }


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
    while not partials(path.parent) and time.monotonic() < end:
        pass
    time.sleep(source.choice((0.0, source.uniform(0, 0.002))))
    os.kill(pid, signal.SIGKILL)
    exit_code(pid)
    left = partials(path.parent)
    tally.kills += bool(left)
    tally.between += not left
    for partial in left:
        partial.unlink()


def partials(folder: Path) -> list[Path]:
    """Return the files of a folder that are not written to their end."""
    return [path for path in folder.iterdir() if path.suffix == ".partial"]


def _forever(write: Write) -> None:
    turn = 0
    while True:
        write(turn)
        turn = 1 - turn


def without_room(path: Path, write: Write, tally: Writes, wholes: Sequence[bytes]) -> None:
    """Write where no file may grow beyond some size."""
    write(0)
    for size in (0, 1, len(wholes[1]) // 2, len(wholes[1]) - 1):
        tally.full += 1
        refused(path, lambda size=size: _limited(write, size), tally, f"{size} bytes of room")


def refused(path: Path, attempt: Callable[[], object], tally: Writes, where: str) -> None:
    """Attempt a write that cannot succeed: it must say so and leave all files as they were."""
    before, beside = path.read_bytes(), set(path.parent.iterdir())
    code = exit_code(forked(attempt))
    if code not in (2, 3) or path.read_bytes() != before:
        tally.wrong += 1
        tally.said.append(f"{tally.name} with {where} left with {code}")
    tally.leftovers += len(set(path.parent.iterdir()) - beside)


def _limited(write: Write, size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    attempted(write)


def attempted(write: Write) -> None:
    """Write the second content; leave with the exit code of a refusal."""
    try:
        write(1)
    except RkspError as error:
        raise SystemExit(error.exit_code) from None


def _quietly(command: Sequence[str]) -> None:
    """Run a command; raise its exit code unless it is 0 or 1."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            rksp(list(command))
        except SystemExit as left:
            if left.code not in (0, 1):
                raise


def _exported(path: Path) -> Write:
    stores = ("grid.db", "fewer.db")
    return lambda turn: _quietly(["grid", stores[turn], "--export", str(path)])


def _with_fewer_cells(store: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(store, folder)
        with contextlib.closing(sqlite3.connect(copy)) as base:
            base.execute("DELETE FROM cells WHERE position > 1")
            base.commit()
        return Path(copy).read_bytes()


def _checkpointed(folder: Path, model: nn.Module) -> Write:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def write(turn: int) -> None:
        with torch.no_grad():
            model.weight.fill_(turn + 1.0)
        kept = Checkpoints(folder / "c", every=1)
        kept.keep(0, model, optimizer)
        kept.write(7, model)

    return write


def _ladders(folder: Path) -> list[str]:
    """Return two folders of stored ladders."""
    from faults.scenes import LabScene
    from rksp.lab.ladder import run_ladder
    from rksp.lab.store import write_ladder

    names = ["ladders-a", "ladders-b"]
    for name, spec in zip(names, LabScene().plan().expand(), strict=False):
        (folder / name).mkdir()
        write_ladder(folder / name, run_ladder(spec), {})
    return names


def closed_pipes() -> dict[str, int | None]:
    """Return the exit code of each command whose reader is gone."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name, content in made().items():
            Path(name).write_bytes(content)
        commands: Mapping[str, Sequence[str]] = {
            "checks": ("checks",),
            "explain": ("explain", "RKSP001"),
            "report": ("report", "score.json", "--format", "html"),
            "diff": ("diff", "score.json", "risky.json", "--format", "json"),
            "grid": ("grid", "grid.db", "--format", "json"),
            "schema": ("schema", "score"),
            "score": ("score", "gpt2", "--lr", "1e-3", "--evidence", "config", "--format", "json"),
        }
        return {
            name: exit_code(forked(lambda words=words: _into_a_closed_pipe(words)))
            for name, words in commands.items()
        }


def _into_a_closed_pipe(command: Sequence[str]) -> None:
    import sys

    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    rksp(list(command))


def table(found: Sequence[Writes], pipes: Mapping[str, int | None]) -> str:
    """Return the tallies as text, with their sum."""
    columns = ("kills", "between", "half", "full", "read_only", "wrong", "leftovers")
    lines = [f"{'written by':<22}" + "".join(f"{name:>10}" for name in columns)]
    for tally in found:
        counts = "".join(f"{getattr(tally, name):>10}" for name in columns)
        lines.append(f"{tally.name:<22}{counts}")
    whole = "".join(f"{sum(getattr(t, name) for t in found):>10}" for name in columns)
    lines += [f"{'all':<22}{whole}", *(line for tally in found for line in tally.said)]
    lines.append("closed pipe: " + ", ".join(f"{name} {code}" for name, code in pipes.items()))
    return "\n".join(lines)
