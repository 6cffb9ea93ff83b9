"""Find the `datasets` library of Hugging Face, whatever else on the path has its name.

Our folder of the same name shadows it where Python is started in the root of the repository, and
so does any folder `datasets` of the user's with an `__init__.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from rksp.ground.errors import InputError

_NAME = "datasets"
_held: dict[str, ModuleType] = {}  # its modules, between two uses


@contextmanager
def hugging_face_datasets() -> Iterator[ModuleType]:
    """Lend the library under its own name; what had that name before has it again afterwards.

    Where nothing had it the library keeps it, as after an import: it cannot be imported twice.

    Yields:
        The library. Nothing of it may be read lazily after the context has ended.

    Raises:
        InputError: It is not installed.
    """
    try:
        home = Path(str(distribution(_NAME).locate_file(""))).resolve()
    except PackageNotFoundError:
        raise InputError("--data needs the datasets library; pip install 'rksp[data]'.") from None
    if _is_library(sys.modules.get(_NAME), home):
        yield sys.modules[_NAME]
        return
    others = _taken()
    sys.modules.update(_held)
    try:
        yield sys.modules.get(_NAME) or _imported(home)
    finally:
        if others:
            _held.update(_taken())
            sys.modules.update(others)


def _is_library(module: ModuleType | None, home: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().parent == home / _NAME


def _taken() -> dict[str, ModuleType]:
    """Take all modules of that name out of Python's table and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == _NAME]
    return {name: sys.modules.pop(name) for name in names}


def _imported(home: Path) -> ModuleType:
    spec = PathFinder.find_spec(_NAME, [str(home)])
    if spec is None or spec.loader is None:
        raise InputError("The datasets library is damaged; pip install --force-reinstall datasets.")
    library = module_from_spec(spec)
    sys.modules[_NAME] = library
    try:
        spec.loader.exec_module(library)
    except BaseException:  # an interrupt too: half an import is no library
        _taken()
        raise
    return library
