"""The documents by kind."""

from __future__ import annotations

from rksp.documents.base import Document
from rksp.documents.confirm import ConfirmReport, WatchReport
from rksp.documents.grid import GridReport
from rksp.documents.own_runs import RunsReport
from rksp.documents.score import DiffReport, ScoreReport

DOCUMENTS: dict[str, type[Document]] = {
    "score": ScoreReport,
    "confirm": ConfirmReport,
    "grid": GridReport,
    "diff": DiffReport,
    "runs": RunsReport,
    "watch": WatchReport,
}
