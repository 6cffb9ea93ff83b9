"""A grid's results for machines: Markdown for a job summary, JUnit for CI, CSV."""

from __future__ import annotations

from rksp.documents.grid import FAILED, GridReport, Record
from rksp.grid.table import ANSWERS, to_csv
from rksp.recipe_files.said.origin import line_of
from rksp.report.grid.settings import Settings, assumed_run, first_lever
from rksp.report.machines.junit import Case, Outcome, suite
from rksp.report.score.markdown import code, plain, table

_MOST_ROWS = 200  # GitHub drops a summary of more than 1 MiB whole
_RANKED = ("Setting", "P(failed)", "Interval", "Verdict", "Raises the edge")
_REST = {
    "risk": "risk",
    "caution": "caution",
    "cannot tell": "cannot tell",
    "not assessed": "not assessed",
    FAILED: FAILED,
}


def markdown(report: GridReport) -> str:
    """Render the counts, the cells that could not run, the best of each model, the ranking."""
    counts, total, setting = report.counts, len(report.cells), Settings(report)
    rest = [f"{counts[name]} {said}" for name, said in _REST.items() if counts[name]]
    parts = [
        f"## rksp grid: {report.verdict.upper()}",
        f"**{counts['ok']} of {total}** settings are ok"
        + "".join(f", {said}" for said in rest)
        + ".",
    ]
    if report.assumed:
        parts.append(plain(line_of(report.assumed)))
    for message, settings in setting.broken(report.cells).items():
        cells = "1 cell" if len(settings) == 1 else f"{len(settings)} cells"
        parts.append(f"> {cells} could not run: {plain(message)}")
    best = [
        (code(model), _best(report, setting, cell), _percent(cell))
        for model, cell in report.best_safe.items()
    ]
    parts += ["### Best safe setting", table(("Model", "Setting", "P(failed)"), best)]
    ranked = [
        (
            *(code(setting(cell)), _percent(cell), _interval(cell), plain(str(cell["verdict"]))),
            first_lever(cell) or "–",
        )
        for cell in report.cells[:_MOST_ROWS]
    ]
    parts += ["### Ranked", table(_RANKED, ranked)]
    if len(ranked) < total:
        parts.append(f"The first {len(ranked)} of {total}.")
    return "\n\n".join(parts) + "\n"


def junit(report: GridReport) -> str:
    """Render one test per cell.

    It fails if it fails the gate, is an error if it could not run, and skipped if rksp could not
    tell or the cell is not done.
    """
    setting = Settings(report)
    return suite("grid", [_case(report, cell, setting(cell)) for cell in report.cells], 0.0)


def csv(report: GridReport) -> str:
    """Write all columns of the shown cells."""
    return to_csv(report.cells)


def _case(report: GridReport, cell: Record, name: str) -> Case:
    verdict = str(cell["verdict"])
    message = str(cell["message"] or cell["reasons"] or f"P(failed) {_percent(cell)}")
    outcome: Outcome = "passed" if verdict in ANSWERS else "skipped"
    if verdict == FAILED:
        outcome = "error"
    elif report.fails(cell):
        outcome = "failure"
    return Case(
        name=name,
        outcome=outcome,
        message=message,
        text=f"{verdict}: {message}",
        kind=str(cell["failure"] or verdict),
    )


def _best(report: GridReport, setting: Settings, cell: Record | None) -> str:
    if cell is None:
        return "none"
    run = assumed_run(report, cell)
    return code(setting(cell)) + (f", {run}" if run else "")


def _percent(cell: Record | None) -> str:
    probability = cell["probability_failed"] if cell else None
    return "–" if probability is None else f"{probability:.1%}"


def _interval(cell: Record) -> str:
    low, high = cell["probability_failed_low"], cell["probability_failed_high"]
    return "–" if low is None or high is None else f"{low:.1%} to {high:.1%}"
