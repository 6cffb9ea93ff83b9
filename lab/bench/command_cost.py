"""Measure what whole commands cost, each in a process of its own: processor time and memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rksp.ground.errors import Incomplete
from rksp.ground.processes import safe_path

_RATE, _OTHER_RATE = "6e-4", "3e-4"
_STEPS = 2, 6  # of two confirmations; their difference is steps alone
# A small body under the whole vocabulary, where training on this machine is quick.
_SHRUNK = ("--set", "n_layer=2", "--set", "n_embd=64", "--set", "n_head=2")
_PAGE = b"measuring"
# A process counts the memory of the one that it was forked from, so a small one starts it.
_METER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_KIB = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process and its own processes used.

    Attributes:
        seconds: Processor time, of the program and of the system for it.
        peak: The most memory of one of the processes, in bytes.
    """

    seconds: float
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one stage costs.

    Attributes:
        stage: Its name.
        usage: What it used; the peak of a difference is that of the longer command.
        starts: Its time in starts of Python, `python -c pass`.
    """

    stage: str
    usage: Usage
    starts: float


Run = Callable[[Sequence[str], Mapping[str, str]], Usage]


def command_cost(
    target: str = "gpt2", *, cells: int = 10_000, run: Run | None = None, page: Run | None = None
) -> list[Cost]:
    """Run each command that a user waits for, with a cache folder of their own.

    Args:
        target: As for `rksp score`.
        cells: Of the grid, rounded down to whole hundreds above one hundred.
        run: Runs a command to its end; default `used`.
        page: Runs a command until its first page; default `used_until_page`.

    Returns:
        A cost a stage, that of `python -c pass` first.

    Raises:
        Incomplete: A command did not answer.
    """
    run, page = run or used, page or used_until_page
    with tempfile.TemporaryDirectory() as folder:
        place = {"RKSP_CACHE": folder}
        rksp = (sys.executable, "-P", "-m", "rksp")
        score = (*rksp, "score", target, "--format", "json", "--exit-zero", "--lr")
        rates, warmups = (cells, 1) if cells <= 100 else (100, cells // 100)
        grid = (
            *(*rksp, "grid", target, f"lr=logspace(-5,-1,{rates})"),
            *(f"warmup_steps=range(0,{warmups})", "--evidence", "config", "--exit-zero"),
            *("--format", "html", "-o", str(Path(folder) / "grid.db")),
        )
        confirm = (
            *(*rksp, "confirm", target, *_SHRUNK, "--lr", _RATE, "--evidence", "config"),
            *("--arm", "baseline", "--seeds", "1", "--exit-zero", "--format", "json", "--steps"),
        )
        shown = (*rksp, "score", target, "--exit-zero", "--lr", _RATE)
        short, long = (run((*confirm, str(steps)), place) for steps in _STEPS)
        step = (long.seconds - short.seconds) / (_STEPS[1] - _STEPS[0])
        used_by = {
            "python -c pass": run((sys.executable, "-c", "pass"), place),
            "first page": page(shown, place),
            "score --evidence config": run((*score, _RATE, "--evidence", "config"), place),
            "score": run((*score, _RATE), place),
            "score, another rate": run((*score, _OTHER_RATE), place),
            f"grid of {rates * warmups:,} cells": run(grid, place),
            "a step of confirm": Usage(seconds=step, peak=long.peak),
        }
    start = used_by["python -c pass"].seconds
    return [
        Cost(stage=stage, usage=usage, starts=usage.seconds / start)
        for stage, usage in used_by.items()
    ]


def used(command: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run a command to its end.

    Args:
        command: The program and its arguments.
        environment: Variables in place of this process's own.

    Raises:
        Incomplete: It failed.
    """
    done = subprocess.run(
        (sys.executable, "-I", "-c", _METER, *command),
        capture_output=True,
        env=_environment(environment),
        check=False,
    )
    if done.returncode:
        raise _failed(command, done.stderr)
    seconds, peak = map(float, done.stdout.split())
    return Usage(seconds=seconds, peak=peak * _KIB)


def used_until_page(command: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Run a command on a terminal until it says that it measures, and end it there.

    Args:
        command: The program and its arguments.
        environment: Variables in place of this process's own.

    Raises:
        Incomplete: It ended without such a page.
    """
    import pty  # only where there are terminals

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=_environment({"TERM": "xterm", **environment}),
    )
    os.close(theirs)
    seen = b""
    try:
        with contextlib.suppress(OSError):  # it closed the terminal
            while _PAGE not in seen and (part := os.read(ours, 1 << 16)):
                seen += part
        if _PAGE not in seen:
            raise _failed(command, seen)
        status = psutil.Process(process.pid)
        times, memory = status.cpu_times(), status.memory_info()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return Usage(seconds=times.user + times.system, peak=memory.rss)


def _environment(changed: Mapping[str, str]) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **os.environ, **safe_path(), **changed}


def _failed(command: Sequence[str], words: bytes) -> Incomplete:
    lines = words.decode(errors="replace").strip().splitlines()
    why = lines[-1] if lines else "it said nothing"
    return Incomplete(f"{' '.join(command[1:])[:200]} did not answer: {why}")
