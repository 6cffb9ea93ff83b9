"""All readers of past runs, and the function that finds and reads the runs under paths."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rksp.ground.budgets import ENTRIES, RUNS
from rksp.ground.errors import InputError
from rksp.ground.files import absent
from rksp.own_runs.readers import binary, logs
from rksp.own_runs.run import RawRun, RunReader

# The first that matches reads; the most particular come first.
READERS: tuple[RunReader, ...] = (binary.WANDB, binary.TENSORBOARD, logs.LOGS)
_TITLES = (
    "text logs, CSV, JSON Lines, JSON, Parquet, TensorBoard, W&B, what trainers and rksp record"
)


def read_raw_runs(paths: Sequence[Path]) -> list[RawRun]:
    """Read every run in files and folders; names that files share get their folders in front.

    Raises:
        InputError: A path does not exist, a named file is of no format that is read, a folder holds
            none, or a file is damaged.
    """
    found: list[RawRun] = []
    for path in paths:
        before = len(found)
        for run in _runs_of(path):
            found.append(run)
            RUNS.check(len(found), path)
        if len(found) == before:
            raise InputError(
                f"{path} holds nothing in a format of runs that rksp reads: {_TITLES}."
            )
    files = Counter(name for name, _ in {(run.name, run.file) for run in found})
    return [
        replace(run, name=f"{run.file.parent.name}/{run.name}") if files[run.name] > 1 else run
        for run in found
    ]


def _runs_of(path: Path) -> Iterator[RawRun]:
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        is_folder = exists = False
    if not exists:
        raise InputError(absent(path))
    for file in _walk(path) if is_folder else [path]:
        reader = next((reader for reader in READERS if reader.matches(file)), None)
        if reader is not None:
            yield from reader.read(file)


def _walk(top: Path) -> Iterator[Path]:
    """Yield the files under a folder, by name; links are not followed."""
    seen = 0
    for where, folders, files in os.walk(top):
        seen += len(folders) + len(files)
        ENTRIES.check(seen, top)
        folders.sort()
        paths = (Path(where) / name for name in sorted(files))
        yield from (path for path in paths if not path.is_symlink())
