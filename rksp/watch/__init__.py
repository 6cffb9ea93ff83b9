"""A run under watch: training, monitors, interventions and faults; and the door to it.

    with rksp.watch(model, optimizer):
        train()

    Trainer(model, args, callbacks=[rksp.watch.Callback()])  # of transformers
    Trainer(callbacks=[rksp.watch.LightningCallback()])

All are what `rksp watch -- COMMAND` is to a command: the same monitors, causes and log.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Door(ModuleType):
    """This package, which can be called."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return a block that is watched; see `rksp.watch.attach.door.Watched`."""
        return importlib.import_module("rksp.watch.attach.door").Watched(*args, **options)

    def __getattr__(self, name: str) -> Any:
        kinds = {"Callback": "callback", "LightningCallback": "lightning_callback"}
        if name in kinds:
            return getattr(importlib.import_module("rksp.watch.attach.door"), kinds[name])
        raise AttributeError(f"module 'rksp.watch' has no attribute {name!r}")


sys.modules[__name__].__class__ = _Door
