"""Python loads this as it starts below `rksp watch`: it waits for torch, and then attaches.

It runs on any Python that the command starts, with or without rksp, so it imports nothing but the
standard library. It then loads the `sitecustomize` that it stands in front of.
"""

import contextlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_HERE = Path(__file__).absolute().parent  # not that of a linked file
_OPTIONS = json.loads(os.environ.get("RKSP_WATCH") or "{}")
_FOLDER = _OPTIONS.get("folder", "")
_LOOKS = 1.0  # seconds between two looks whether `rksp watch` was killed


def _note(event: str) -> None:
    with contextlib.suppress(OSError):  # the command has outlived `rksp watch`
        Path(_FOLDER, f"{os.getpid()}.{event}").touch()


def _end_with(watcher: int) -> None:
    """End this process once `rksp watch` was killed: its folder is still there then."""
    while True:
        time.sleep(_LOOKS)
        try:
            os.kill(watcher, 0)
        except ProcessLookupError:
            if Path(_FOLDER).exists():
                os.kill(os.getpid(), signal.SIGTERM)
            return
        except OSError:
            return


class _Torch:
    """Finds torch where Python would, and attaches once torch is imported."""

    is_asking = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of torch, to whoever only asks for it too; None for other modules."""
        if name != "torch" or self.is_asking:
            return None
        self.is_asking = True
        if "watcher" in _OPTIONS:
            ending = threading.Thread(target=_end_with, args=(_OPTIONS["watcher"],), daemon=True)
            ending.start()
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_asking = False
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: object) -> None:
                run(module)
                del loader.exec_module
                sys.meta_path.remove(self)
                _attach()

            loader.exec_module = exec_module
        return spec


def _attach() -> None:
    _note("torch")
    try:
        from rksp.watch.attach.finder import Finder

        Finder.attach()
    except Exception as error:
        if os.environ.get("RANK", "0") == "0":
            said = f"{sys.executable} cannot import rksp ({type(error).__name__}: {error})"
            print(f"rksp watch: {said}, so nothing is watched", file=sys.stderr, flush=True)


def _load_own() -> None:
    """Load the `sitecustomize` that Python would have loaded without this folder."""
    sys.path[:] = [place for place in sys.path if Path(place).absolute() != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if _FOLDER:
        _note("python")
        sys.meta_path.insert(0, _Torch())
    _load_own()
