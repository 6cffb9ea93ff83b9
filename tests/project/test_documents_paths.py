"""Every file, module and link that a document names exists."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from os.path import normpath
from pathlib import Path

import pytest
from support.places import ROOT

_HOMES = ("rksp", "cli", "kernels", "classifiers", "datasets")
_TOP = rf"(?:{'|'.join(_HOMES)}|lab|tests|\.ci|\.github)"
_PATH = re.compile(rf"(?<![\w/.:-]){_TOP}/[\w./-]*\w(?![\w*{{])")
_MODULE = re.compile(r"(?<![\w./])rksp(?:\.\w+)+")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
# Files and columns that users name themselves, and outputs of a job.
_OTHERS = ("rksp.toml", "rksp.width", "rksp.html", "rksp.xml", "rksp.outputs.sarif")
_HISTORY = ("CHANGELOG.md", "lab/LOG.md")  # name what was
_PLACEHOLDER = re.compile(r"NAME|TOPIC")


def _documents() -> list[Path]:
    """Every tracked document, without the history and the files of other projects."""
    done = subprocess.run(
        ["git", "ls-files", "*.md"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = [
        Path(line)
        for line in done.stdout.splitlines()
        if line not in ("CHANGELOG.md", "lab/LOG.md")
    ]
    return [path for path in found if path.parts[:2] != ("tests", "run_configs")]


@cache
def _modules() -> dict[str, str]:
    """Dotted name of every module → its text."""
    found = {}
    for home in _HOMES:
        for path in (ROOT / home).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if home == "rksp" else ("rksp", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def _missing(text: str, folder: Path) -> Iterator[str]:
    """Yield what a document in a folder names and does not exist."""
    for path in _PATH.findall(text):
        if not _PLACEHOLDER.search(path) and not (ROOT / path).exists():
            yield path
    for link in _LINK.findall(text):
        if not (ROOT / normpath(folder / link)).exists():
            yield link
    for name in _MODULE.findall(text):
        parts = name.split(".")
        known = max(n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in _modules())
        home, rest = _modules()[".".join(parts[:known])], parts[known:]
        if name not in _OTHERS and rest and not re.search(rf"\b{rest[0]}\b", home):
            yield name


@pytest.mark.parametrize("path", _documents(), ids=str)
def test_what_a_document_names_exists(path):
    in_the_site = Path("tutorials") if path.parent.name == "tutorials" else path.parent
    assert list(_missing((ROOT / path).read_text(), in_the_site)) == []


def test_a_stale_name_is_found():
    stale = "rksp/monitors/base.py and `rksp.score_report`, [here](../confirm/README.md)"
    found = ["rksp/monitors/base.py", "../confirm/README.md", "rksp.score_report"]
    assert list(_missing(stale, Path("rksp/watch"))) == [found[0], found[2]]
    assert list(_missing(stale, Path("rksp/watch/monitors"))) == found
    fine = "rksp/watch/NAME.py, `rksp.score`, rksp.ground.errors.InputError, [site](https://x.y)"
    assert list(_missing(fine, Path("rksp"))) == []
