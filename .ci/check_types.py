"""Checks the types of the package as it is installed, and of what the lab's commands import.

    python .ci/check_types.py [ARGUMENTS OF MYPY]

Four folders stand at the top level and install below `rksp`, so mypy sees the package only in a
tree that is put together as the installation does it. The tree is made of links in a temporary
folder, and the messages name the files of the repository. `MYPY_CACHE_DIR` moves the cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def homes() -> list[str]:
    """Return the top-level folders that install as `rksp.NAME`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    places = project["tool"]["setuptools"]["package-dir"]
    return [place for name, place in places.items() if name == f"rksp.{place}"]


def assemble(folder: Path) -> None:
    """Put the package together in a folder, as links to what the repository holds."""
    package = folder / "rksp"
    package.mkdir()
    for path in (ROOT / "rksp").iterdir():
        (package / path.name).symlink_to(path)
    for home in homes():
        (package / home).symlink_to(ROOT / home)
    (folder / "lab").symlink_to(ROOT / "lab")


def real_paths(text: str) -> str:
    """Name the files as the repository does."""
    return re.sub(rf"^rksp/(?=(?:{'|'.join(homes())})/)", "", text, flags=re.M)


def main(arguments: list[str]) -> int:
    """Run mypy over the package and return its exit code."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    cache = {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")} | os.environ
    with tempfile.TemporaryDirectory() as folder:
        assemble(Path(folder))
        command += [*arguments, "-p", "rksp", "-m", "lab.commands"]
        done = subprocess.run(command, cwd=folder, env=cache, stdout=subprocess.PIPE, text=True)
    print(real_paths(done.stdout), end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
