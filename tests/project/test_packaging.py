"""What is installed, under which names, and what builds it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zlib
from importlib.resources import files

import pytest
from support.places import ROOT

HOMES = {"cli", "kernels", "classifiers", "datasets"}
PLACES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
# Collects what a wheel would hold, without building one.
_COLLECTED = """
import json, sys, setuptools
from distutils.core import run_setup
whole = run_setup("setup.py", ["--quiet", "build_py"], stop_after="commandline")
build = whole.get_command_obj("build_py")
build.ensure_finalized()
data = [f"{source}/{name}" for _, source, _, names in build.data_files for name in names]
sources = [*build.get_source_files(), *data]
json.dump([whole.metadata.version, sources, whole.packages], sys.stdout)
"""


@pytest.fixture(scope="module")
def collected() -> tuple[str, set[str], set[str]]:
    """The release, the files and the packages of a wheel."""
    pytest.importorskip("setuptools", "77")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COLLECTED],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    release, sources, packages = json.loads(done.stdout)
    return release, {name.replace("\\", "/") for name in sources}, set(packages)


def test_every_folder_with_an_init_is_found(collected):
    found = set()
    for package, place in PLACES.items():
        for init in (ROOT / place).rglob("__init__.py"):
            found.add(".".join((package, *init.parent.relative_to(ROOT / place).parts)))
    assert found == collected[2]
    assert set(PLACES.values()) == {"rksp"} | HOMES


def test_a_wheel_holds_all_code_of_its_roots_and_nothing_else(collected):
    release, sources, _ = collected
    code = {
        path.relative_to(ROOT).as_posix()
        for place in PLACES.values()
        for path in (ROOT / place).rglob("*.py")
    }
    assert code == {name for name in sources if name.endswith(".py")}
    assert {name.split("/")[0] for name in sources} == set(PLACES.values())
    assert {"rksp/py.typed", "rksp/report/glossary.toml", "classifiers/fitted/edge.json"} <= sources
    said = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {release}\n" in said


def test_a_wheel_is_small_and_holds_nothing_of_the_authors(collected):
    data = {name.split("/")[1] for name in collected[1] if name.startswith("datasets/")}
    assert {name for name in data if "." not in name} == {"images", "text"}
    assert all((ROOT / "datasets" / name).is_dir() for name in ("plans", "real", "runs"))
    size = sum(len(zlib.compress((ROOT / name).read_bytes())) for name in collected[1])
    assert 1e6 < size < 2e6


def test_the_top_level_is_what_was_agreed():
    tracked = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked.stdout.split() if "/" in name}
    assert folders <= HOMES | {"rksp", "lab", "tests", "examples", ".ci", ".github"}


def test_package_data_loads_through_importlib_resources():
    assert (files("rksp.datasets") / "text" / "shakespeare.txt").is_file()
    assert (files("rksp.datasets") / "images" / "digits.npz").is_file()
    assert not (files("rksp.datasets") / "text" / "absent.txt").is_file()
