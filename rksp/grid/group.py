"""What goes to a worker and comes back: groups of cells with one initialization, and events."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rksp.documents.grid import CellNumbers
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.model import Finite, Strict

Failure = Literal["invalid", "out of memory", "error", "killed", "timeout"]

# A retry cannot repair a wrong configuration, and a cell that hung would hang again.
FINAL: tuple[Failure, ...] = ("invalid", "error", "timeout")


class Options(MeasureOptions):
    """How every cell of a grid is measured and judged.

    Every option that changes an answer is part of every cell's identity. The bar only names a
    verdict, and a table of cells sets it. The seed comes from the cell.

    Attributes:
        risk: P(failed) up to which the word is ok.
        runs: Files and folders of past runs to learn from.
        max_params: The largest number of parameters; larger models are refused.
        allow_hub: Let a Hub id download.
        trust_remote_code: Run code that comes with a model.
        is_cached: Take measurements from the user's cache folder, and keep them there.
    """

    risk: float = DEFAULT_RISK
    runs: tuple[Path, ...] = ()
    max_params: float = 2e9
    allow_hub: bool = False
    trust_remote_code: bool = False
    is_cached: bool = True


class GroupCell(Strict):
    """One cell of a group.

    Attributes:
        key: Its identity in the store.
        recipe: As JSON: a damaged one fails alone.
        unknown: Fields that its run file gives and nobody can tell, with why.
    """

    key: str
    recipe: str
    unknown: dict[str, str] = Field(default_factory=dict)


class CellGroup(Strict):
    """Cells with one initialization; `has_weights` says that they name weights to start from."""

    target: str
    overrides: dict[str, object] = Field(default_factory=dict)
    seed: int = 0
    has_weights: bool = False
    options: Options = Options()
    cells: tuple[GroupCell, ...] = ()


class CellAnswer(CellNumbers):
    """The part of an evaluation that a grid stores: the answer without its curves.

    It does not depend on timing or on the machine's load, so the same cell has the same answer on
    every engine.
    """

    verdict: str
    reasons: tuple[str, ...] = ()
    evidence: str = ""


class Event(Finite):
    """One event of a group: its begin, its profile, a cell's result, or a failure.

    Attributes:
        kind: What happened; an `end` is the last event of a group that was worked through.
        cell: The cell's key; None if the event concerns the whole group.
        seconds: The time that the profile took.
        result: The answer.
        failure: The kind of failure.
        message: One sentence.
    """

    kind: Literal["started", "profile", "result", "failed", "end"]
    cell: str | None = None
    seconds: float = 0.0
    result: CellAnswer | None = None
    failure: Failure = "error"
    message: str = ""

    def line(self) -> str:
        """Return it as a line of JSON."""
        return self.model_dump_json(exclude_defaults=True)
