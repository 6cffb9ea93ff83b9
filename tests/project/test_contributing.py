"""CONTRIBUTING.md tells the truth: a toy of each kind needs the files it names, and works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from support.places import ROOT
from support.toys import TOYS, Change

HOMES = ("cli", "kernels", "classifiers", "datasets")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# What is added → the cells that say where.
TABLE = {
    kind.strip(): " ".join(rest)
    for kind, *rest in (
        line.strip("|").split("|") for line in CONTRIBUTING.splitlines() if line.startswith("| a")
    )
}


@pytest.fixture
def copy(tmp_path):
    """The packages as they are installed, in a folder of their own, and the experiments."""
    stored = shutil.ignore_patterns("corpus", "__pycache__")
    shutil.copytree(ROOT / "rksp", tmp_path / "rksp", ignore=stored)
    for home in HOMES:
        keep = shutil.ignore_patterns("runs", "images", "__pycache__")
        shutil.copytree(ROOT / home, tmp_path / "rksp" / home, ignore=keep)
    shutil.copytree(ROOT / "benchmarks" / "experiments", tmp_path / "benchmarks" / "experiments")
    return tmp_path


def _changed(text: str, change: Change) -> str:
    """Add the text of a change, at the end or behind the line that it names."""
    if isinstance(change, str):
        return text + change
    line, added = change
    assert text.count(f"\n{line}\n") == 1
    return text.replace(f"\n{line}\n", f"\n{line}\n{added}\n")


def _run(copy, code: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\nsys.path.insert(0, {str(copy)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=copy
    )


def test_every_kind_of_the_table_has_a_toy():
    assert sorted(TABLE) == sorted(TOYS)


# Each trains or measures, in a process of its own.
SLOW = ("a monitor", "an intervention", "a fault", "an optimizer", "a lab family")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in SLOW else ()) for k in TOYS]
)
def test_a_toy_needs_no_more_files_than_the_table_names(copy, kind):
    named = [
        re.sub(r"NAME|TOPIC", r"\\w+", re.escape(path))
        for path in re.findall(r"`([\w./]+\.py)`", TABLE[kind])
    ]
    for name, change in TOYS[kind].changes.items():
        assert any(re.fullmatch(path, name) for path in named), f"{kind}: {name}"
        path = copy / name
        path.write_text(_changed(path.read_text() if path.exists() else "", change))
    done = _run(copy, TOYS[kind].proof)
    assert done.stdout.strip() == TOYS[kind].shown, done.stderr


@pytest.mark.parametrize("kind", ["a check", "a recipe reader", "a model type"])
def test_without_its_lines_a_toy_is_unknown(copy, kind):
    assert _run(copy, TOYS[kind].proof).stdout.strip() != TOYS[kind].shown
