"""Where the files of the repository and of the tests lie."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
CONFIGS = TESTS / "configs"
RUN_CONFIGS = TESTS / "run_configs"
SCHEMAS = TESTS / "schemas"
SUPPORT = TESTS / "support"
