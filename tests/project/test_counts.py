"""Counts of checks and trainers in a document are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rksp.checks.registry import CHECKS
from rksp.recipe_files.registry import READERS

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in ROOT.rglob("README.md") if not {".git", "build"} & {*path.parts})
COUNTED = {"checks": len(CHECKS), "trainers": len(READERS)}
SAID = re.compile(r"\b(\d{1,2})\s+(?:named\s+)?(checks|trainers)\b")


def wrong(text: str) -> list[str]:
    return [found[0] for found in SAID.finditer(text) if int(found[1]) != COUNTED[found[2]]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_counts_what_there_is(page):
    assert not wrong(page.read_text(encoding="utf-8"))


def test_a_wrong_count_is_seen():
    assert wrong(f"{len(CHECKS) - 1} checks and {len(READERS)} trainers") == [
        f"{len(CHECKS) - 1} checks"
    ]
    assert any(SAID.search(page.read_text(encoding="utf-8")) for page in PAGES)
