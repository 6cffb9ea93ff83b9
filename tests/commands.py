"""Run a command of rksp in this process."""

from __future__ import annotations

import pytest

from rksp.cli import main


def left_with(arguments: list[str]) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code
