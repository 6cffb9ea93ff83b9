"""Write files atomically, keep folders of results that a run can resume, and caches for the user.

What rksp keeps for the user between commands is a folder of entries that may vanish at any time.
Nothing may depend on it. An entry is either whole or not there: it is written beside its name and
then renamed, and begins with the digest of the rest. A folder that cannot be written keeps nothing.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rksp.ground.budgets import KEY_PARTS, MIB
from rksp.ground.errors import Incomplete, InputError, RkspError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module or nothing

_LOCK = ".lock"
_PARTIAL = ".partial"
_STALE = 24 * 3600.0  # seconds; a younger partial file may belong to another run
# A run of names with dots between them; possessive, so that nothing is looked at twice.
_NAME = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DOTTED = re.compile(rf"(?<![\w\\-]){_NAME}(?:[ \t]*+\.[ \t]*+{_NAME})++")
_LONG_NUMBER = re.compile(r"\b0[xob][0-9a-fA-F_]{100}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def is_file(name: str | Path) -> bool:
    """Tell whether there is such a file; False for what no file system takes as a name."""
    return os.path.isfile(name)  # noqa: PTH113 - which raises for some names


def digest(content: str | bytes, *, length: int = 16) -> str:
    """Return the first `length` hexadecimal digits of the SHA-256 of text or bytes."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:length]


def with_home(name: str | Path) -> Path:
    """Return a path with `~` as the home folder; `./~x` and the `~` of no user stay as they are."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - pathlib reads ./~x as somebody's home


def absent(name: str | Path) -> str:
    """Say that there is no such file or folder, and which one of nearly that name there is."""
    path, found = with_home(name), list[str]()
    if os.path.exists(path):  # noqa: PTH110 - which raises for some names
        return f"{name!s:.200} cannot be read: it is not a regular file."
    with suppress(OSError, ValueError):
        found = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1, cutoff=0.7)  # noqa: PTH208 - names
        found = [str(path.with_name(one)) for one in found] or [
            str(one) for one in (Path(path.name), *Path().glob(f"*/{path.name}")) if one.exists()
        ][:1]
    hint = f"; did you mean {found[0]}?" if found else "."
    return f"{name!s:.200} cannot be read: there is no such file or folder{hint}"


def read_head(path: Path, most: int) -> bytes:
    """Read the first `most` bytes of a regular file, which is not waited for.

    Raises:
        InputError: It is missing, unreadable, a folder, a pipe or a device.
    """
    shown = f"{path!s:.200}"
    try:
        # Non-blocking, because opening a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{shown} is not a regular file.")
            content = file.read(most)
            if content is None:  # it does not wait, and there is nothing now
                raise InputError(f"{shown} is no file that ends.")
            return content
    except FileNotFoundError as error:
        raise InputError(absent(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{shown} cannot be read: {reason}.") from error


def read_limited(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        InputError: As in `read_head`, or it is too large.
    """
    content = read_head(path, limit + 1)
    if len(content) > limit:
        raise InputError(
            f"{path!s:.200} is larger than {limit // MIB} MiB, the largest size that is read."
        )
    return content


def read_text(path: Path, limit: int) -> str:
    """Read a regular UTF-8 file of at most `limit` bytes; a byte-order mark is dropped.

    Raises:
        InputError: As in `read_limited`, or the file is not UTF-8 text.
    """
    try:
        return read_limited(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path!s:.200} is not UTF-8 text ({error.reason}).") from error


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """Parse TOML.

    Args:
        path: Where it stands, for the message.
        text: The content.

    Raises:
        InputError: It is not TOML, or a key has more parts than `budgets.KEY_PARTS`: what one
            costs grows with the square of their number.
    """
    import tomllib  # most commands read none

    for key in _DOTTED.finditer(text):
        KEY_PARTS.check(1 + key[0].count("."), path)
    if _LONG_NUMBER.search(text):  # Python would not write it out again
        raise InputError(f"{path} holds a number of more than 100 digits; give a shorter one.")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error, or thousands of digits
        raise InputError(f"{path}: not valid TOML, {error!s:.200}.") from None


def check_writable(path: Path, option: str = "-o") -> None:
    """Check that a file can be written, before computing the result that goes there.

    Args:
        path: The file, which need not exist.
        option: The option that named it, for the message.

    Raises:
        InputError: The path is a folder, its folder is missing, or permission is denied.
    """
    try:
        if path.is_dir():
            raise InputError(f"{option} {path} is a folder; give the name of a file.")
        check_link(path)
        folder = path.absolute().parent
        if not folder.is_dir():
            raise InputError(f"{option} {path}: there is no folder {path.parent}; create it first.")
        may_not = not os.access(path if path.exists() else folder, os.W_OK)
        if may_not or (path.is_file() and not os.access(_real(path).parent, os.W_OK)):
            raise InputError(f"{option} {path} cannot be written: permission denied.")
        path.stat()  # raises for names that are too long
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{option} {path!s:.200} cannot be written: {reason}.") from None


def check_link(path: Path) -> None:
    """Refuse a path that a link leads elsewhere: the link may be a stranger's.

    A link in a folder may lead to a file of the same folder. The folders of a relative path may not
    lead out of the working folder. Devices and descriptors, such as /dev/stdout, are links of the
    system.

    Raises:
        InputError: It leads elsewhere.
    """
    place = path.absolute()
    by_words = Path(os.path.normpath(place))  # where `..` is the word before it, whatever that is
    if by_words.is_relative_to("/dev") or by_words.is_relative_to("/proc"):
        return
    bounds = [(place, place.parent)]
    if not path.is_absolute() and by_words.is_relative_to(Path.cwd()):
        bounds.append((place.parent, Path.cwd()))
    elif ".." in path.parts:
        bounds.append((place.parent, by_words.parent))
    for link, base in bounds:
        if not _real(link).is_relative_to(_real(base)):
            raise InputError(
                f"{path!s:.200} is not written: {link.name} is a link that leads to "
                f"{_real(link)!s:.200}; give that path, if you mean it."
            )


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file so that a kill or a full disk leaves either the old file or the new one.

    Args:
        path: The file. A link is followed within its folder; permissions of an existing file are
            kept.
        content: Text (UTF-8) or bytes.

    Raises:
        InputError: The file cannot be written at this path, or a link leads out of its folder.
        Incomplete: The disk is full or failed; an old file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        is_special = path.exists() and not path.is_file() and not path.is_dir()
        if is_special:  # a pipe or a device has no old content to keep
            _write_special(path, data)
            return
    except OSError as error:
        raise write_failure(path, error) from error
    with replacing(path) as partial:
        partial.write_bytes(data)


def _write_special(path: Path, data: bytes) -> None:
    """Write to a pipe or a device; opening a pipe that nobody reads would wait forever."""
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces `path` when the block succeeds.

    Raises:
        InputError: The file cannot be written at this path.
        Incomplete: The disk is full or failed; an old file is unchanged.
    """
    check_link(path)
    target = _real(path)
    # A short name, because the target's own name may already have the maximum length.
    partial = target.with_name(f".{os.getpid()}-{os.urandom(6).hex()}{_PARTIAL}")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o7777)
        partial.replace(target)
    except OSError as error:
        raise write_failure(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink()


class ResultFolder:
    """A folder of JSON results by name, so that interrupted work can continue.

    Every result is written atomically, even if several processes share the folder.

    Args:
        folder: The folder; it is created if missing.

    Raises:
        InputError: The folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        check_link(folder / _LOCK)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be used as a folder: {error.strerror}.") from None

    def path(self, name: str, suffix: str = ".json") -> Path:
        """Return the path of a result, whether or not it exists."""
        return self.folder / f"{name}{suffix}"

    def __contains__(self, name: str) -> bool:
        return self.path(name).is_file()

    def read(self, name: str) -> bytes | None:
        """Return the stored text of a result, or None if there is none."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: str | bytes) -> Path:
        """Store a result and return its path."""
        atomic_write(self.path(name), content)
        return self.path(name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder while the block runs; the lock also ends with the process.

        Raises:
            InputError: Another process holds the lock.
        """
        try:
            file = (self.folder / _LOCK).open("ab")
        except OSError as error:
            raise write_failure(self.folder / _LOCK, error) from error
        with file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise InputError(
                        f"Another run is using {self.folder}; wait for it, or give another folder."
                    ) from None
                except OSError:  # a file system without locks
                    pass
            yield

    def clean(self) -> None:
        """Remove partial files that a killed process left behind more than a day ago."""
        for partial in self.folder.glob(f".*{_PARTIAL}"):
            with suppress(OSError):
                if time.time() - partial.stat().st_mtime > _STALE:
                    partial.unlink()


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def write_failure(path: Path, error: OSError) -> RkspError:
    """Return the error for a file that could not be written: of the disk, or of the path."""
    sentence = f"{path!s:.200} cannot be written: {error.strerror or error}."
    return Incomplete(sentence) if error.errno in _NO_ROOM else InputError(sentence)


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
        path = self.folder / f"{name}.json"
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
