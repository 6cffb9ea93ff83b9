"""CONTRIBUTING.md tells the truth: a toy of each kind needs the files it names, and works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
# Each trains or measures, in a process of its own; the others share one, with all their files.
SLOW = ("a monitor", "an intervention", "a fault", "an optimizer", "a lab family")
SHARED = [kind for kind in TOYS if kind not in SLOW]
KNOWN_BY_LINES = ("a check", "a recipe reader", "a model type")
_DRIVER = """
import contextlib, io, json, traceback
found = {}
for kind, code in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(code, {})
        except BaseException:
            error = traceback.format_exc()
        else:
            error = ""
    found[kind] = (out.getvalue().strip(), error)
print(json.dumps(found))
"""


def _copied(folder: Path) -> Path:
    """Copy the packages as they are installed, and the lab."""
    stored = shutil.ignore_patterns("corpus", "__pycache__")
    shutil.copytree(ROOT / "rksp", folder / "rksp", ignore=stored)
    for home in HOMES:
        keep = shutil.ignore_patterns("runs", "images", "__pycache__")
        shutil.copytree(ROOT / home, folder / "rksp" / home, ignore=keep)
    shutil.copytree(ROOT / "lab", folder / "lab", ignore=stored)
    return folder


def _changed(text: str, change: Change) -> str:
    """Add the text of a change, at the end or behind the line that it names."""
    if isinstance(change, str):
        return text + change
    line, added = change
    assert text.count(f"\n{line}\n") == 1
    return text.replace(f"\n{line}\n", f"\n{line}\n{added}\n")


def _add(copy: Path, kind: str) -> None:
    for name, change in TOYS[kind].changes.items():
        path = copy / name
        path.write_text(_changed(path.read_text() if path.exists() else "", change))


def _shown(copy: Path, kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return what the proofs of these kinds print, and the error they end with."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(copy)!r})\n{_DRIVER}"],
        input=json.dumps([(kind, TOYS[kind].proof) for kind in kinds]),
        capture_output=True,
        text=True,
        check=True,
        cwd=copy,
    )
    return {kind: tuple(shown) for kind, shown in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def with_all(tmp_path_factory) -> dict[str, tuple[str, str]]:
    copy = _copied(tmp_path_factory.mktemp("with"))
    for kind in SHARED:
        _add(copy, kind)
    return _shown(copy, SHARED)


@pytest.fixture(scope="module")
def with_none(tmp_path_factory) -> dict[str, tuple[str, str]]:
    return _shown(_copied(tmp_path_factory.mktemp("without")), KNOWN_BY_LINES)


def test_every_kind_of_the_table_has_a_toy():
    has_its_own = {"an advisory"}  # its two recipes are in tests/checks/test_advisories.py
    assert {*TABLE} - has_its_own == {*TOYS}
    assert has_its_own < {*TABLE}


@pytest.mark.parametrize("kind", TOYS)
def test_a_toy_needs_no_more_files_than_the_table_names(kind):
    named = [
        re.sub(r"NAME|TOPIC", r"\\w+", re.escape(path))
        for path in re.findall(r"`([\w./]+\.(?:py|toml))`", TABLE[kind])
    ]
    for name in TOYS[kind].changes:
        assert any(re.fullmatch(path, name) for path in named), f"{kind}: {name}"


@pytest.mark.parametrize("kind", SHARED)
def test_a_toy_works(with_all, kind):
    assert with_all[kind] == (TOYS[kind].shown, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_a_toy_that_measures_works(tmp_path, kind):
    _add(_copied(tmp_path), kind)
    assert _shown(tmp_path, [kind])[kind] == (TOYS[kind].shown, "")


@pytest.mark.parametrize("kind", KNOWN_BY_LINES)
def test_without_its_lines_a_toy_is_unknown(with_none, kind):
    assert with_none[kind][0] != TOYS[kind].shown
