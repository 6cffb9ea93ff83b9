"""A package that can be called: `rksp.grid(...)` beside `import rksp.grid.plan`."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class Door(ModuleType):
    """A package that passes a call, and names it lacks, on to what it is the door of."""

    called: str
    lent: dict[str, str]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call what is behind the door; see there."""
        return _found(self.called)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # what shows its arguments and its text to `inspect`
            return _found(self.called)
        if name in self.__dict__.get("lent", {}):
            return _found(self.lent[name])
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def open_door(package: str, called: str, **lent: str) -> None:
    """Let a package be called.

    Args:
        package: Its name.
        called: What a call calls, as `module:name`; it is imported then.
        **lent: Names that it has beside its own, in the same form.
    """
    door: Any = sys.modules[package]
    door.__class__ = Door
    door.called, door.lent = called, lent


def _found(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
