"""rksp starts where the modules of POSIX are missing: on Windows nobody has them."""

from __future__ import annotations

import subprocess
import sys

import yaml
from support.places import ROOT

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


def test_nothing_needs_a_module_of_posix():
    starts_processes = "import rksp.grid.run, rksp.confirm.confirm, rksp.lab.run\n"
    code = starts_processes + "from rksp.cli import main\nmain(sys.argv[1:])"
    done = _blocked(code, "score", *MINIATURE.split())
    assert done.returncode == 0, done.stderr
    assert "P(failed)" in done.stdout


def test_that_check_can_fail():
    assert _blocked("import resource").returncode == 1


def test_continuous_integration_tries_windows_and_macos():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    assert jobs["systems"]["strategy"]["matrix"]["system"] == ["windows-latest", "macos-latest"]
    parts = jobs["systems"]["steps"][-1]["run"].split()[2:]
    assert all((ROOT / part).is_dir() for part in parts) and "tests/cli" in parts


def test_the_hook_of_pre_commit_builds_nothing():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "rksp score --evidence config"
