"""Commands in forked processes that may hold and take only so much, from one that is warm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY, SECONDS = 10**9, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """How a command left: its exit code (negative: the signal that ended it), and its words."""

    code: int
    out: str = ""
    err: str = ""


class Limited:
    """A process that has imported what commands need, and forks for each."""

    def __init__(self, folder: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "RKSP_TRACEBACK"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment | {"COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        )

    def run(self, command: str, folder: Path, memory: int = MEMORY) -> Left:
        """Run a command, or Python code after `python `, in a folder."""
        job = {"command": command, "folder": str(folder), "memory": memory}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return Left(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)


@contextlib.contextmanager
def limited(folder: Path) -> Iterator[Limited]:
    """Yield a warm process, which uses the folder once."""
    found = Limited(folder)
    try:
        yield found
    finally:
        found.close()


def _left(job: dict) -> tuple[int, str, str]:
    """Run a job in this process."""
    from rksp.cli import main

    os.chdir(job["folder"])
    out, err, code = io.StringIO(), io.StringIO(), 1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if job["command"].startswith("python "):
                exec(job["command"].removeprefix("python "), {})
                code = 0
            else:
                main(job["command"].split())
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            print(f"Traceback: {error!r}", file=err)
    return code, out.getvalue(), err.getvalue()


def _forked(job: dict) -> dict:
    import resource

    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_DATA, (job["memory"],) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code, out, err = _left(job)
        os.write(writes, json.dumps({"code": code, "out": out[:5000], "err": err[-5000:]}).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(said) if said else {"code": status}


def _serve() -> None:
    Path("warm.csv").write_text("target,lr,loss\ngpt2,1e-4,3\ngpt2,1e-3,2\n")
    Path("warm.py").write_text("a = 1\n")
    for command in ("runs warm.csv", "explain warm.py", "grid warm.csv --dry-run"):
        _left({"command": command, "folder": "."})
    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
