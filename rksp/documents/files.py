"""The document of `rksp score` over several files and targets."""

from __future__ import annotations

from typing import Literal

from rksp.documents.base import Document, Part
from rksp.documents.score import ScoreReport


class FileRow(Part):
    """One file or target.

    Attributes:
        name: As it was typed, or found in a folder.
        verdict: The verdict of its report; `unreadable` where there is none.
        report: The finished report; None where the file cannot be read.
        error: Why it cannot be read, a sentence; empty where it can.
        is_named: It was typed, not found in a folder; one that cannot be read is then an error.
    """

    name: str
    verdict: str
    report: ScoreReport | None = None
    error: str = ""
    is_named: bool = True


class FilesReport(Document):
    """One run of `rksp score` over several files and targets; the verdict is the worst of theirs.

    Attributes:
        rows: One for each, in the order they were named.
        skipped: Number of files in folders that are no run files.
    """

    kind: Literal["files"] = "files"
    rows: list[FileRow]
    skipped: int = 0
