"""Load modules of the lab when a test that needs them runs."""

from __future__ import annotations

import importlib
from types import ModuleType


def harness(name: str) -> ModuleType:
    """Return a module of the harness of faults."""
    return importlib.import_module(f"lab.faults.{name}")


def script(name: str) -> ModuleType:
    """Return a script as a module without running its `main`."""
    return importlib.import_module(f"lab.bench.{name}")
