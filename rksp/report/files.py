"""The page of several files: one table, then what cannot be read."""

from __future__ import annotations

from pathlib import Path

from rksp.documents.answer import CertainFailure, Estimate, Untold
from rksp.documents.score import FilesReport, ScoreReport
from rksp.ground.text import many, short, tally
from rksp.question import said as phrases
from rksp.question.gate import deciding
from rksp.question.said import odds
from rksp.report import blocks as page
from rksp.report import words

_HEAD = ("File", "Verdict", "P(failed)", "Rate", "Do not exceed", "Remark")


def blocks(report: FilesReport) -> list[page.Block]:
    """Return the blocks of the page."""
    told = tally(row.verdict for row in report.rows) or "no run"
    skipped = f"; {many(report.skipped, 'other file')} skipped" if report.skipped else ""
    answered = [(row.name, row.report) for row in report.rows if row.report is not None]
    broken = [
        f"{row.name}: {(row.error or '').removeprefix(f'{row.name}: ')}"
        for row in report.rows
        if row.report is None
    ]
    folder = _folder([name for name, _ in answered])
    inside = f" in {folder}" if folder else ""
    title = f"{many(len(report.rows), 'file')}{inside}"
    found: list[page.Block] = [
        page.Title(eyebrow="rksp score", name=title, about="by the configurations alone"),
        page.Verdict(verdict=report.verdict, headline=f"{told}{skipped}"),
    ]
    if answered:
        rows = [_row(name.removeprefix(folder), one) for name, one in answered]
        found.append(page.Table(_HEAD, rows))
    if broken:
        found.append(page.Section("Not read", [page.Notes(broken)]))
    return found


def _folder(names: list[str]) -> str:
    """Return the folder, and a slash, that several files have in common; mostly empty."""
    above = [{str(folder) for folder in Path(name).parents} for name in names]
    common = max(set.intersection(*above) - {"."}, key=len, default="") if len(above) > 1 else ""
    return f"{common}/" if common.strip("/") else ""


def _row(name: str, report: ScoreReport) -> list[page.Words]:
    risk, first = deciding(report).risk, next(iter(words.ordered(report)), None)
    rate, most = report.recipe.learning_rate, risk.number("do_not_exceed")
    is_told = first is not None and (first.level != "note" or report.verdict != "ok")
    fix = f"{first.code} {first.fix}" if first is not None and is_told else ""
    chance: str = page.MISSING
    if isinstance(risk, Estimate | CertainFailure) and risk.probability_failed is not None:
        chance = odds(risk).removeprefix("P(failed) ")
    return [
        *(name, report.verdict.upper(), chance),
        page.MISSING if rate is None else short(rate, 6),
        page.MISSING if most is None else phrases.rate(most),
        risk.reasons[0] if isinstance(risk, Untold) else fix,
    ]
