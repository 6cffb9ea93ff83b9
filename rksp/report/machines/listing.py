"""The issues of any document, as the formats for machines list them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rksp.documents.base import Document
from rksp.documents.confirm import ConfirmReport
from rksp.documents.finding import Finding, Level
from rksp.documents.grid import FAILED, GridReport, Record
from rksp.documents.score import ScoreReport
from rksp.ground.text import short
from rksp.report import words
from rksp.report.grid.settings import Settings, by_level
from rksp.report.issues import RISK, UNDECIDED, deciding, issues, place, state

FAILED_RUN = "RKSP003"
BROKEN_CELL = "RKSP004"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a document complains about.

    Attributes:
        subject: What the document is about, for titles.
        verdict: The document's verdict.
        version: The version of rksp that made the document.
        issues: The issues, each key once.
        places: Key of an issue -> file from the root of its repository, and line.
        states: Key of an issue -> its state since the older report, if there is one.
        part: Name of the command in identifiers; empty for a score.
        levers: What would raise the edge, a clause each.
    """

    subject: str
    verdict: str
    version: str
    issues: tuple[Finding, ...]
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    levers: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The subject as identifiers name it: the same from every folder of a repository."""
        return f"{self.part}{from_root(self.subject)}"

    def fingerprint(self, issue: Finding) -> str:
        """Return a fingerprint that is stable over commits: identity and key, not the wording."""
        return hashlib.sha256(f"{self.identity}\n{issue.key}".encode()).hexdigest()


def listing(document: Document) -> Listing:
    """Return the issues of a document of any kind that has them."""
    return _LISTINGS[document.kind](document)


def from_root(name: str) -> str:
    """Return the path of an existing file from the root of its git repository.

    Other names, and files outside of every repository, are returned as they are.
    """
    try:
        if not Path(name).exists():
            return name
        path = Path(os.path.normpath(Path(name).absolute()))
        root = next(folder for folder in path.parents if (folder / ".git").exists())
    except (OSError, ValueError, StopIteration):  # the name is no path, or there is no repository
        return name
    return path.relative_to(root).as_posix()


def _of_score(report: ScoreReport) -> Listing:
    found = issues(report)
    stands = {issue.key: place(report, issue) for issue in found}
    since = {issue.key: state(issue, report.baseline) for issue in found}
    risk = deciding(report).risk
    return Listing(
        subject=report.target.name,
        verdict=report.verdict,
        version=str(report.provenance.get("rksp", "0")),
        issues=found,
        places={key: (from_root(at[0]), at[1]) for key, at in stands.items() if at},
        states={key: name for key, name in since.items() if name},
        levers=() if risk is None else tuple(words.lever(one) for one in risk.levers),
    )


def _of_confirm(report: ConfirmReport) -> Listing:
    baseline, *others = report.arms
    found = []
    if report.verdict == "failed":
        saving = max(others, key=lambda arm: arm.saved, default=baseline)
        saved = f"{saving.arm} would have saved {saving.saved} of {baseline.failed}."
        found.append(
            Finding(
                code=FAILED_RUN,
                name="failed-run",
                level=Level.ERROR,
                message=f"{baseline.failed} of {baseline.runs} short runs of this recipe failed.",
                fix=saved if saving.saved else "",
                healthy="no failed run",
                source="the runs of rksp confirm",
            )
        )
    if report.verdict == "undecided" or report.prediction_held is False:
        found.append(
            Finding(
                code=UNDECIDED,
                name="undecided" if report.verdict == "undecided" else "prediction-missed",
                level=Level.NOTE,
                message=report.conclusions[0],
            )
        )
    return Listing(
        subject=report.target.name,
        verdict=report.verdict,
        version=str(report.provenance.get("rksp", "0")),
        issues=tuple(found),
        places=_at_target(report.target.name, found),
        part="confirm/",
    )


def _of_grid(report: GridReport) -> Listing:
    setting = Settings(report)
    found: list[Any] = []
    places: dict[str, Any] = {}
    for cell in report.cells:
        if cell["verdict"] == FAILED or report.fails(cell):
            issue = _cell(cell, setting(cell))
            found.append(issue)
            places |= _at_target(_target(cell), [issue])
    return Listing(
        subject=" ".join(dict.fromkeys(map(_target, report.cells))) or "grid",
        verdict=report.verdict,
        version=str(report.made_by.get("rksp", "0")),
        issues=tuple({issue.key: issue for issue in found}.values()),
        places=places,
        part="grid/",
    )


def _cell(cell: Record, setting: str) -> Finding:
    """Return the issue of a cell that fails the gate or could not run."""
    if cell["verdict"] == FAILED:
        return Finding(
            code=BROKEN_CELL,
            name="could-not-run",
            level=Level.ERROR,
            message=f"This cell could not run: {str(cell['message']).rstrip('.')}.",
            layer=setting,
        )
    chance, start = cell["probability_failed"], cell["start_here"]
    said = "" if chance is None else f"P(failed) is {chance:.1%}"
    listed = "; ".join(filter(None, (said, by_level(cell))))
    return Finding(
        code=RISK,
        name="high-risk",
        level=Level.ERROR,
        message=f"This cell fails: {listed or cell['verdict']}.",
        fix="" if start is None else f"Start at {short(start, 2)}.",
        source="the fitted classifier",
        layer=setting,
    )


def _target(cell: Record) -> str:
    return str(cell.get("target") or cell["model"])


def _at_target(name: str, found: list[Finding]) -> dict[str, tuple[str, int]]:
    """Point every issue to the target, where the target is a file."""
    try:
        is_there = Path(name).is_file()
    except (OSError, ValueError):
        is_there = False
    return {issue.key: (from_root(name), 1) for issue in found} if is_there else {}


_LISTINGS: dict[str, Callable[..., Listing]] = {
    "score": _of_score,
    "confirm": _of_confirm,
    "grid": _of_grid,
}
