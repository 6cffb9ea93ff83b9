"""What is installed, under which names, and that the root stays off the path."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files

import pytest
from support.places import ROOT

HOMES = {"cli", "kernels", "classifiers", "datasets"}


def _setuptools() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def _isolated(code: str) -> str:
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd="/"
    ).stdout.strip()


def test_every_folder_with_an_init_is_a_listed_package():
    found = set()
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts[0] in HOMES | {"rksp"}:
            found.add(".".join(parts if parts[0] == "rksp" else ("rksp", *parts)))
    assert found == set(_setuptools()["packages"])


def test_the_top_level_is_what_was_agreed():
    tracked = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked.stdout.split() if "/" in name}
    assert folders <= HOMES | {"rksp", "lab", "tests", ".ci", ".github"}


def test_the_homes_are_importable_only_below_rksp():
    code = (
        "import importlib.util as u\n"
        "print([n for n in ('cli', 'classifiers') if u.find_spec(n)],"
        " [bool(u.find_spec('rksp.' + n)) for n in ('cli', 'classifiers', 'kernels', 'datasets')])"
    )
    assert _isolated(code) == "[] [True, True, True, True]"


def test_package_data_loads_through_importlib_resources():
    assert (files("rksp.datasets") / "text" / "shakespeare.txt").is_file()
    assert (files("rksp.datasets") / "tokenizers" / "shakespeare-bpe-1k.json").is_file()
    assert (files("rksp.datasets") / "plans" / "first.yaml").is_file()
    assert not (files("rksp.datasets") / "text" / "absent.txt").is_file()
