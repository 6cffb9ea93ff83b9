"""Write into a report where its recipe comes from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rksp.documents.score import OriginReport, ScoreReport, SeedReport
from rksp.recipe_files.said.assumptions import assumed_line
from rksp.recipe_files.said.edits import RunText
from rksp.recipe_files.said.origin import Origin
from rksp.recipe_files.said.own_words import in_own_words, settings_in
from rksp.recipe_files.said.table_text import in_full


def with_origins(
    report: ScoreReport,
    origins: Mapping[str, Origin],
    keys: Mapping[str, str] | None = None,
    file: RunText | None = None,
) -> ScoreReport:
    """Return the report with where each field of its recipe comes from, and what was assumed.

    Args:
        report: The report.
        origins: Field of the recipe -> its origin.
        keys: Field -> the key of the trainer's file that sets it; fixes are said in these words.
        file: The run file, whose text the fixes edit.
    """
    typed = file or RunText(path="", recipe=report.recipe, origins=origins)
    edit = cache(typed.edit)
    return report.model_copy(
        update={
            "findings": [
                finding.model_copy(
                    update={
                        "fix": in_own_words(finding.fix, origins, keys or {}),
                        "edit": [edit(*one) for one in settings_in(finding.fix).items()],
                    }
                )
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
