"""What rksp keeps for the user between commands: a folder of entries that may vanish at any time.

Nothing may depend on it. An entry is either whole or not there: it is written beside its name and
then renamed, and begins with the digest of the rest. A folder that cannot be written keeps nothing.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from rksp.ground.errors import RkspError
from rksp.ground.files import ResultFolder, digest

FOLDER_VARIABLE = "RKSP_CACHE"  # a folder in place of the usual one
_DIGEST = 64  # hexadecimal digits at the start of an entry, and the end of the line


def user_cache() -> Path | None:
    """Return the folder of rksp's caches, whether or not it exists; None for nobody's home.

    It is what `RKSP_CACHE` names, or `rksp` in the system's place for caches: `$XDG_CACHE_HOME`,
    and without it `~/.cache`, `~/Library/Caches` or `%LOCALAPPDATA%`.
    """
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # the specification ignores a relative one
        return Path(shared) / "rksp"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "rksp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "rksp"
    return home / ".cache" / "rksp"


class Cache:
    """A folder of entries by name, the oldest of which go when it grows too large.

    Any number of processes may use it at once. No method raises for what the disk does.

    Args:
        folder: The folder; it is made when the first entry is written.
        most_bytes: What all entries may take together.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def read(self, name: str) -> bytes | None:
        """Return an entry; None if there is none or it is damaged. Reading makes it young."""
        path = self._path(name)
        try:
            head, _, content = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if head != digest(content, length=_DIGEST).encode():
            return None
        with suppress(OSError):
            os.utime(path)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Keep an entry, and drop the oldest beyond the size of the folder."""
        if len(content) > self.most_bytes:
            return
        with suppress(OSError, RkspError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = ResultFolder(self.folder)
            kept.write(name, f"{digest(content, length=_DIGEST)}\n".encode() + content)
            kept.clean()
            self._shrink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _shrink(self) -> None:
        found = []
        for path in self.folder.glob("*.json"):
            with suppress(OSError):  # another process dropped it
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, path))
        size = sum(bytes_ for _, bytes_, _ in found)
        for _, bytes_, path in sorted(found):
            if size <= self.most_bytes:
                return
            with suppress(OSError):
                path.unlink()
            size -= bytes_
