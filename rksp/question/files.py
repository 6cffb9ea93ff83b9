"""Several files and targets in one process: which they are, and their answers together."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rksp.documents.base import GateReport
from rksp.documents.score import FileRow, FilesReport, ScoreReport
from rksp.documents.verdict import worst
from rksp.ground.errors import InputError, RkspError
from rksp.ground.files import is_file
from rksp.question.run import RUN_SUFFIXES

UNREADABLE = "unreadable"
_MOST = 10_000  # files of one folder
_WILD = "*?"


def are_many(targets: Sequence[str]) -> bool:
    """Tell whether these are several targets: more than one, a pattern, or a folder of files."""
    several = len(targets) > 1 or are_handed_over()
    return several or any(_is_pattern(one) or _is_folder(one) for one in targets)


def are_handed_over() -> bool:
    """Tell whether pre-commit names the files: all of a commit, few of which are run files.

    It says so to its hooks by this variable (pre-commit.com, "Advanced features").
    """
    return os.environ.get("PRE_COMMIT") == "1"


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in _WILD) and "\0" not in name and not os.path.lexists(name)


def _is_folder(name: str) -> bool:
    return os.path.isdir(name) and not is_file(Path(name) / "config.json")  # noqa: PTH112 - as there


def expanded(targets: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield every file and target once, and whether it was found in a folder.

    What git ignores is left out, and so are hidden files. A file that pre-commit hands over counts
    as found.

    Raises:
        InputError: A pattern fits nothing, or a folder holds too many files.
    """
    seen: set[str] = set()
    for name in targets:
        if _is_folder(name):
            found = [(one, True) for one in _files_in(Path(name))]
        elif _is_pattern(name):
            found = [(one, False) for one in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 - also absolute
            if not found:
                raise InputError(f"No file fits {name!r:.200}.")
        else:
            found = [(name, are_handed_over())]
        for one, is_of_folder in found:
            if one not in seen:
                seen.add(one)
                yield one, is_of_folder


def _files_in(folder: Path) -> list[str]:
    names = _tracked(folder)
    if names is None:
        paths = (path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
    fits = [
        name
        for name in names
        if Path(name).suffix in RUN_SUFFIXES
        and not any(part.startswith(".") for part in Path(name).parts)
    ]
    if len(fits) > _MOST:
        raise InputError(f"{folder} holds {len(fits)} files; name a folder of at most {_MOST}.")
    return [(folder / name).as_posix() for name in sorted(fits)]


def _tracked(folder: Path) -> list[str] | None:
    # A stranger's repository may name a program that watches its files: it is not started.
    quiet = ["-c", "core.fsmonitor=false"]
    asked = ["git", "-C", str(folder), *quiet, "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(asked, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [name for name in dict.fromkeys(names) if (folder / name).is_file()]


def answered(
    targets: Sequence[str],
    answer: Callable[[str, bool], ScoreReport | None],
    *,
    fail_on: str,
) -> FilesReport:
    """Return the answers to all targets; a file that cannot be read is a row, not the end.

    Args:
        targets: Files, folders, patterns and targets.
        answer: Returns the finished report of one, which may have been found in a folder; None
            where it is no run file.
        fail_on: As given.
    """
    rows, skipped = [], 0
    for name, is_of_folder in expanded(targets):
        row = partial(FileRow, name=name, is_named=not is_of_folder)
        try:
            report = answer(name, is_of_folder)
        except RkspError as error:
            rows.append(row(verdict=UNREADABLE, error=str(error)))
            continue
        if report is None:
            skipped += 1
        else:
            rows.append(row(verdict=report.verdict, report=report))
    if not rows and not are_handed_over():
        raise InputError(f"{', '.join(targets):.200} holds no run file; {skipped} files were read.")
    told = [row.verdict for row in rows if row.report is not None]
    return FilesReport(
        verdict=worst(*told) if told else "not assessed",
        rows=rows,
        skipped=skipped,
        gate=_gate(rows, fail_on),
    )


def _gate(rows: Sequence[FileRow], fail_on: str) -> GateReport:
    gates = [(row.name, row.report.gate) for row in rows if row.report and row.report.gate]
    failing = [(name, gate) for name, gate in gates if gate.failed]
    return GateReport(
        fail_on=fail_on,
        failed=bool(failing),
        only_unknown=bool(failing) and all(gate.only_unknown for _, gate in failing),
        issues=[f"{name}: {key}" for name, gate in failing for key in gate.issues],
        reasons=[f"{name}: {reason}" for name, gate in failing for reason in gate.reasons[:1]],
    )
