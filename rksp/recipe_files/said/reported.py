"""Write into a report where its recipe comes from."""

from __future__ import annotations

from collections.abc import Mapping

from rksp.documents.score import OriginReport, ScoreReport
from rksp.recipe_files.said.assumptions import assumed_line
from rksp.recipe_files.said.origin import Origin
from rksp.recipe_files.said.table_text import in_full


def with_origins(report: ScoreReport, origins: Mapping[str, Origin]) -> ScoreReport:
    """Return the report with where each field of its recipe comes from, and what was assumed."""
    return report.model_copy(
        update={
            "recipe_places": {
                name: (origin.file, origin.line)
                for name, origin in origins.items()
                if origin.file is not None and origin.line is not None and not origin.assumes
            },
            "recipe_origins": {
                name: OriginReport.of(in_full(origin)) for name, origin in origins.items()
            },
            "assumed": assumed_line(report.recipe, origins),
        }
    )
