"""rksp starts where the modules of POSIX are missing: on Windows nobody has them."""

from __future__ import annotations

import subprocess
import sys

import yaml
from support.commands import WITHOUT_POSIX
from support.places import ROOT

from rksp.question.run import RUN_SUFFIXES


def test_a_module_of_posix_can_be_taken_away():
    """tests/cli scores without all of them."""
    command = [sys.executable, "-c", f"{WITHOUT_POSIX}import resource"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_continuous_integration_tries_windows_and_macos():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    assert jobs["systems"]["strategy"]["matrix"]["system"] == ["windows-latest", "macos-latest"]
    parts = jobs["systems"]["steps"][-1]["run"].split()[2:]
    assert all((ROOT / part).is_dir() for part in parts) and "tests/cli" in parts


def test_the_hook_of_pre_commit_builds_nothing():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    suffixes = sorted(suffix[1:] for suffix in (*RUN_SUFFIXES, ".json"))
    assert hook["pass_filenames"] and hook["files"] == rf"\.({'|'.join(suffixes)})$"
    assert hook["entry"] == "rksp score --evidence config"
