"""Say which release of a package runs here."""

from __future__ import annotations

import importlib.metadata

__version__ = "0.12.0"  # of rksp; pyproject.toml reads it here


def version(package: str) -> str:
    """Return the release of a package; of rksp the one that was imported, installed or not.

    Raises:
        PackageNotFoundError: Another package is not installed.
    """
    return __version__ if package == "rksp" else importlib.metadata.version(package)
