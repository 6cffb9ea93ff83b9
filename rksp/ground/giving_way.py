"""Give way to an installed package whose name a folder of the checkout's root has.

Where Python starts in the root of the repository, `import datasets` and `import kernels` find our
folders first. Whoever imports those bare names means Hugging Face's packages.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def give_way(name: str, file: str) -> None:
    """Import the installed package in place of a folder of ours that is being imported.

    Where no other package has the name nothing happens, and the folder stays what was imported.

    Args:
        name: The bare name under which the folder is being imported.
        file: `__file__` of the folder's `__init__.py`.
    """
    root = Path(file).resolve().parents[1]
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != root]
    spec = PathFinder.find_spec(name, elsewhere)
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
