"""The page of several files: one table, then what cannot be read."""

from __future__ import annotations

from collections import Counter

from rksp.documents.answer import CertainFailure, Estimate, Untold
from rksp.documents.files import FileRow, FilesReport
from rksp.ground.model import definite
from rksp.ground.text import many, short
from rksp.question import said as phrases
from rksp.question.gate import deciding
from rksp.question.said import odds
from rksp.report import blocks as page
from rksp.report import words

_HEAD = ("File", "Verdict", "P(failed)", "Rate", "Do not exceed", "Fix")


def blocks(report: FilesReport) -> list[page.Block]:
    """Return the blocks of the page."""
    counts = Counter(row.verdict for row in report.rows)
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    other = "1 other file is no run file"
    if report.skipped > 1:
        other = f"{report.skipped} other files are no run files"
    headline = "; ".join(filter(None, (told, other if report.skipped else "")))
    name = many(len(report.rows), "file")
    title = page.Title(eyebrow="rksp score", name=name, about="")
    answered = [row for row in report.rows if row.report is not None]
    broken = [
        f"{row.name}: {(row.error or '').removeprefix(f'{row.name}: ')}"
        for row in report.rows
        if row.report is None
    ]
    found: list[page.Block] = [
        title,
        page.Verdict(verdict=report.verdict, headline=headline),
    ]
    if answered:
        found.append(page.Table(_HEAD, [_row(row) for row in answered]))
        said = [f"{row.name}: {fix}" for row in answered if (fix := _fix(row))]
        found += [page.Section("What to change", [page.Notes(said)])] if said else []
    if broken:
        found.append(page.Section("Not read", [page.Notes(broken)]))
    return found


def _row(row: FileRow) -> list[page.Words]:
    report = definite(row.report)
    risk = deciding(report).risk
    chance: str = page.MISSING
    if isinstance(risk, Estimate | CertainFailure) and risk.probability_failed is not None:
        chance = odds(risk).removeprefix("P(failed) ")
    rate, most = report.recipe.learning_rate, risk.number("do_not_exceed")
    first = next(iter(words.ordered(report)), None)
    shown = page.MISSING if rate is None else short(rate, 6)
    return [
        row.name,
        row.verdict.upper(),
        chance,
        shown,
        phrases.rate(most) if most is not None else page.MISSING,
        "" if first is None or isinstance(risk, Untold) else first.code,
    ]


def _fix(row: FileRow) -> str:
    """Return what to change about a file first, or what nobody can tell of it."""
    report = definite(row.report)
    risk = deciding(report).risk
    if isinstance(risk, Untold):
        return risk.reasons[0]
    first = next(iter(words.ordered(report)), None)
    return "" if first is None else f"{first.code} {first.fix}"
