"""rksp starts where the modules of POSIX are missing: on Windows nobody has them."""

from __future__ import annotations

import subprocess
import sys

POSIX = ("fcntl", "grp", "posix_ipc", "pwd", "resource", "termios", "tty")
MINIATURE = (
    "gpt2 --set n_layer=2 --set n_embd=32 --set n_head=2 --set vocab_size=256 --lr 1e-3 "
    "--snapshots 128 --exit-zero"
)
# psutil has a module of its own for each system, and Linux's reads `resource`.
BLOCK = f"import sys, psutil\nsys.modules.update(dict.fromkeys({POSIX!r}))\n"


def _blocked(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_score_needs_no_module_of_posix():
    done = _blocked("from rksp.cli import main\nmain(sys.argv[1:])", "score", *MINIATURE.split())
    assert done.returncode == 0, done.stderr
    assert "P(failed)" in done.stdout


def test_that_check_can_fail():
    assert _blocked("import resource").returncode == 1


def test_what_starts_processes_imports_without_posix():
    done = _blocked("import rksp.grid.run, rksp.confirm.confirm, rksp.lab.run")
    assert done.returncode == 0, done.stderr
