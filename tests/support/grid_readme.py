"""The Python samples of the README of grids."""

from __future__ import annotations

import re

from support.places import ROOT


def example(word: str) -> str:
    """Return the Python block of the grids' page that holds a word."""
    page = (ROOT / "rksp" / "grid" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if word in block)
