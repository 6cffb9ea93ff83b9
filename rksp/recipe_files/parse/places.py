"""Files beside a run file, and the folders above it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def beside(path: Path, name: str) -> Path | None:
    """Find the named file beside the run file or in a folder above it, within its repository."""
    if Path(name).is_absolute():
        return None
    folders = folders_above(path)
    top = folders[-1].resolve()
    places = [one / name for one in folders]
    if ".." in Path(name).parts:  # where a repository bounds it
        places = [path.parent / name] if (top / ".git").exists() else []
        places = [one for one in places if one.resolve().is_relative_to(top)]
    return next((one for one in places if is_there(one)), None)


def folders_above(path: Path) -> list[Path]:
    """Return the folder of a file and those above it in its repository, four at most."""
    found = [path.parent]
    for folder in list(path.resolve().parents)[1:5]:
        if (found[-1] / ".git").exists():
            break
        found.append(folder)
    return found


def is_there(path: Path) -> bool:
    """Tell whether a file is there; none has a name too long for the system."""
    with contextlib.suppress(OSError):
        return path.is_file()
    return False
