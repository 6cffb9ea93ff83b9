"""What is installed, under which names, and that the root stays off the path."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zlib
from importlib.resources import files
from pathlib import Path

import pytest
from support.places import ROOT

HOMES = {"cli", "kernels", "classifiers", "datasets"}
# Prints the files of the wheel as setuptools finds them: paths of the repository.
_PACKED = """
import json
from setuptools import Distribution
found = Distribution({"script_name": "setup.py"})
found.parse_config_files(["pyproject.toml"])
build = found.get_command_obj("build_py")
build.ensure_finalized()
modules = [file for *_, file in build.find_all_modules()]
data = [f"{folder}/{name}" for _, folder, _, names in build.data_files for name in names]
print(json.dumps([*modules, *data]))
"""


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


def _packed() -> list[Path]:
    done = subprocess.run(
        [sys.executable, "-c", _PACKED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [Path(name) for name in json.loads(done.stdout.splitlines()[-1])]


def test_the_wheel_holds_what_users_need_and_nothing_of_the_authors():
    pytest.importorskip("setuptools")
    found = _packed()
    assert {path.parts[0] for path in found} == HOMES | {"rksp"}
    data = {path.parts[1] for path in found if path.parts[0] == "datasets" and len(path.parts) > 2}
    assert data == {"images", "text"}
    assert all(
        (ROOT / "datasets" / name).is_dir() for name in ("plans", "real", "runs", "tokenizers")
    )
    assert {"datasets/text/shakespeare.txt", "classifiers/fitted/edge.json"} <= set(map(str, found))
    size = sum(len(zlib.compress((ROOT / path).read_bytes())) for path in found)
    assert 1e6 < size < 2e6


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
