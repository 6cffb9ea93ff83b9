"""Write into a report where its recipe comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rksp.documents.score import OriginReport, ScoreReport, SeedReport, UnreadReport
from rksp.recipe_files.said.assumptions import assumed_line
from rksp.recipe_files.said.origin import Origin, Unread
from rksp.recipe_files.said.own_words import in_own_words
from rksp.recipe_files.said.table_text import in_full


def with_origins(
    report: ScoreReport,
    origins: Mapping[str, Origin],
    keys: Mapping[str, str] | None = None,
    unread: Sequence[Unread] = (),
    file: Path | None = None,
) -> ScoreReport:
    """Return the report with where each field of its recipe comes from, and what was assumed.

    Args:
        report: The report.
        origins: Field of the recipe -> its origin.
        keys: Field -> the key of the trainer's file that sets it; fixes are said in these words.
        unread: Settings of the run file that were not read and may matter.
        file: The run file.
    """
    return report.model_copy(
        update={
            "findings": [
                finding.model_copy(update={"fix": in_own_words(finding.fix, origins, keys or {})})
                for finding in report.findings
            ],
            "seeds": [_in_own_words(seed, origins, keys or {}) for seed in report.seeds],
            "recipe_places": {
                name: (origin.file, origin.line)
                for name, origin in origins.items()
                if origin.file is not None and origin.line is not None and not origin.assumes
            },
            "recipe_origins": {
                name: OriginReport.of(in_full(origin)) for name, origin in origins.items()
            },
            "unread": [
                UnreadReport(**asdict(one), file=file and file.as_posix(), text=str(one))
                for one in unread
            ],
            "assumed": assumed_line(report.recipe, origins),
        }
    )


def _in_own_words(
    seed: SeedReport, origins: Mapping[str, Origin], keys: Mapping[str, str]
) -> SeedReport:
    """Return a seed's report with its levers said as the trainer's file has them."""
    if seed.risk is None or not seed.risk.levers:
        return seed
    said = [
        lever.model_copy(update={"change": in_own_words(lever.change, origins, keys)})
        for lever in seed.risk.levers
    ]
    return seed.model_copy(update={"risk": seed.risk.model_copy(update={"levers": said})})
