"""Load the scripts of benchmarks/ by their path, because they belong to no package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks"


def harness(name: str) -> ModuleType:
    """Return a module of the harness of faults."""
    return importlib.import_module(f"faults.{name}")


def script(name: str) -> ModuleType:
    """Return a script as a module without running its `main`."""
    known = f"benchmarks_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, FOLDER / f"{name}.py")
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]
