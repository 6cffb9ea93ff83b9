"""Give way to an installed package whose name a folder of the checkout's root has.

Where Python starts in the root of the repository, `import datasets` and `import kernels` find our
folders first. Whoever imports those bare names means Hugging Face's packages.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path


def give_way(name: str) -> None:
    """Import the installed package in place of a folder of ours that is being imported.

    Where no other package has the name the import succeeds, because libraries that found the
    folder import it when they load themselves; whoever then uses it learns what it is.

    Args:
        name: The bare name under which the folder is being imported.
    """
    spec = _found_elsewhere(name)
    if spec is None or spec.loader is None:
        sys.modules[name].__getattr__ = partial(_refuse, name)  # type: ignore[method-assign]  # PEP 562
        return
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _found_elsewhere(name: str) -> ModuleSpec | None:
    """Return where else the name is found: in no checkout of rksp, this one or another."""
    marks = ("pyproject.toml", "rksp/__init__.py")  # of a checkout
    places = [one for one in sys.path if not all(Path(one, mark).is_file() for mark in marks)]
    specs = (finder.find_spec(name, places) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _refuse(name: str, attribute: str) -> object:
    raise AttributeError(
        f"{name}.{attribute} does not exist: {name} is a folder of rksp's repository here; "
        f"pip install {name}, or start Python in another folder."
    )
