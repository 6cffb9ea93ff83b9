"""The position of a finding in a model's configuration file."""

from __future__ import annotations

import re
from pathlib import Path

from rksp.checks.registry import blamed_settings


def setting_line(path: Path, code: str) -> int:
    """Find the line, counted from 1, of the setting that the findings of a code blame.

    The first line where the file names none of them, or cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not text, or no name of a file
        return 1
    for name in blamed_settings(code):
        stated = re.compile(rf'"{re.escape(name)}"\s*:')
        for number, line in enumerate(lines, start=1):
            if stated.search(line):
                return number
    return 1
