"""The document of a grid and its page: what could not run, the best cells, the map, the ranking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from markupsafe import Markup

from rksp.documents.base import GateReport
from rksp.documents.finding import LEVELS
from rksp.documents.grid import FAILED, GridReport, Record, RiskMap
from rksp.documents.terms import Gate
from rksp.documents.verdict import Verdict
from rksp.grid.table import ANSWERS, JUDGED, axes_of, best_safe, heat_map, to_csv, where
from rksp.ground.text import many, short, words
from rksp.recipe_files.columns import canonical
from rksp.recipe_files.said.origin import line_of
from rksp.report import blocks as page
from rksp.report import svg
from rksp.report.score import figures
from rksp.report.words import sentence

if TYPE_CHECKING:
    from rksp.grid.run import GridResult

_HEADLINES = {
    "ok": "No setting is a risk",
    "risk": "Some settings are a risk",
    "incomplete": "Not every setting could run",
    "unusable": "No setting could run",
}
_SAFE = (
    "Of the settings with verdict ok and no error, the one with the least expected excess loss; a "
    "warning counts as 0.01 nats."
)
_ORDER = (
    "In order of the expected excess loss, in nats above the best learning rate; one with a "
    "warning comes after those without that tie within 0.01 nats."
)
_CHANCE = ("probability_failed", "probability_failed_low", "probability_failed_high")
_MOST_NAMED = 3  # of the cells that one error stopped
_MOST_ROWS = 500  # of the ranking; the document holds all
_MOST_AXES = 8  # more are named in the table alone
_NOT_SETTINGS = words(
    "position model reasons findings failure message verdict start_here start_excess start_failed "
    "do_not_exceed expected_excess lever lever_factor"
)
_ANSWERED = ("probability_", "likely_")


def grid_report(
    result: GridResult, gate: Gate, *, conditions: Sequence[str] = (), top: int | None = None
) -> GridReport:
    """Judge every cell of a grid, and show the selected ones.

    Args:
        result: What the store holds.
        gate: Decides which cells fail; its bar decides their verdicts.
        conditions: Show only the cells that meet them, such as `lr<=1e-3`.
        top: Show only so many of those.

    Raises:
        InputError: A condition cannot be read, or names no column.
    """
    everything, axes = result.records(gate.bar), axes_of(result.rows)
    shown, count = where(everything, conditions)[:top], len(everything)
    positions = {record.position for record in shown}
    failing = [record for record in everything if gate.fails(record)]
    broken = [record for record in everything if record.verdict == FAILED]
    broken.sort(key=lambda record: record.position)
    # A cell without a result has its state in place of a verdict.
    undone = sum(record.verdict not in (*JUDGED, FAILED) for record in everything)
    verdict, reasons = "risk" if failing else "ok", []
    if broken or undone:
        is_invalid = all(record.failure == "invalid" for record in broken)
        verdict = "unusable" if len(broken) == count and is_invalid else "incomplete"
    if broken:
        why = str(broken[0].message)
        reasons.append(f"{len(broken)} of {count} cells could not run; the first error: {why}")
        if "no such setting" in why:
            reasons.append("use --ignore NAME for an axis that sets neither recipe nor model")
    if undone:
        reasons.append(f"{undone} of {count} cells are not done; run the same command to resume")
    if failing and not reasons:
        worst = failing[-1]  # they are ranked
        rate = f" at {short(worst.learning_rate)}" if worst.learning_rate else ""
        at = f"(worst: {worst.model}{rate})"
        reasons = [f"{len(failing)} of {count} cells fail --fail-on {gate.fail_on} {at}"]
    unknown = [record for record in everything if gate.stops(record.verdict)]
    only_unknown = verdict == "ok" and bool(unknown)
    if only_unknown:
        reasons = [f"rksp cannot tell of {len(unknown)} of {count} cells"]
    return GridReport(
        verdict=verdict,
        gate=GateReport(
            fail_on=gate.fail_on,
            failed=verdict != "ok" or only_unknown,
            only_unknown=only_unknown,
            issues=[],
            reasons=reasons,
        ),
        cells=shown,
        cells_in_grid=count,
        axes=axes,
        best_safe=best_safe(everything),
        failing=[record.position for record in failing if record.position in positions],
        profiles_made=len(result.profiles),
        made_by=dict(result.made_by),
        assumed=dict(result.assumed),
        risk_map=heat_map(everything, axes),
        hidden=[record for record in everything if record.position not in positions],
    )


class Settings:
    """Names each cell by what varies.

    Attributes:
        axes: What varies, the learning rate first; a recipe's fields by their own names.
    """

    def __init__(self, report: GridReport) -> None:
        cells = [*report.cells, *report.hidden]
        known: set[str] = set().union(*(cell.columns for cell in cells))
        answers = {n for n in known if n in _NOT_SETTINGS or n.startswith(_ANSWERED)}
        told = [n for n in known - answers if n in report.axes or n[:4] != "set."]
        varied = [name for name in told if _varies(name, cells)]
        fields = {name: canonical(name)[1] for name in varied}
        own = [name for name in varied if fields[name] == name or fields[name] not in known]
        self.axes = sorted(own, key=lambda name: (name != "learning_rate", name))[:_MOST_AXES]

    def __call__(self, cell: Record) -> str:
        """Return the cell by what varies: `learning_rate=6e-4 n_layer=4`."""
        varied = [axis for axis in self.axes if cell.get(axis) is not None]
        words = [f"{axis}={word(cell.get(axis))}" for axis in varied]
        return " ".join(words) or cell.model


def by_level(cell: Record) -> str:
    """Return the cell's findings by level, such as `error RKSP501; warning RKSP502, RKSP503`."""
    found: dict[str, list[str]] = {level: [] for level in reversed(LEVELS)}
    for finding in cell.findings:
        found.setdefault(finding.level, []).append(finding.code)
    return "; ".join(f"{level} {', '.join(codes)}" for level, codes in found.items() if codes)


def first_lever(cell: Record) -> str:
    """Return the lever that raises the cell's edge the most, with its size: `warmup 1.3×`."""
    name, factor = cell.lever, cell.lever_factor
    return f"{name} {short(factor, 2)}×" if name and factor else ""


def assumed_run(report: GridReport, cell: Record) -> str:
    """Say of how long a run a cell's warm-up is a part, where nobody decided; else empty."""
    steps, warmup = cell.get("max_steps"), cell.get("warmup_steps")
    if "max_steps" not in report.assumed or not warmup:
        return ""
    return f"a warm-up of {warmup} in an assumed run of {steps} steps"


def word(value: object) -> str:
    """Format a setting's value for a table."""
    return "–" if value is None else short(value, 4) if isinstance(value, float) else str(value)


def _varies(name: str, cells: Iterable[Record]) -> bool:
    values = [value for cell in cells if (value := cell.get(name)) is not None]
    if not values or (values.count(values[0]) == len(values) and len(set(map(type, values))) == 1):
        return False
    first = values[0]
    return any(
        (type(value) is not type(first) or value != first) and str(value) != str(first)
        for value in values
    )


def blocks(report: GridReport) -> list[page.Block]:
    """Return the blocks of the page."""
    setting = Settings(report)
    everything = [*report.cells, *report.hidden]
    cards = [(name, page.Code(value), "", "") for name, value in sorted(report.made_by.items())]
    versions = page.Table(("Name", "Value", "", ""), cards, look="cards")
    parts: list[Iterable[page.Block]] = [
        [_title(report, setting), _counted(report)],
        [page.Sentence(f"{sentence(line_of(report.assumed))}.", "hint")] if report.assumed else [],
        _broken(setting, everything),
        [_best(report, setting, everything)],
        _scattered(everything),
        []
        if report.risk_map is None
        else [_map(report.risk_map, page.Numbers(report, "risk_map/"))],
        _ranking(report, setting),
        [page.Section("Provenance", [versions], folds="summary", is_record=True)],
    ]
    return [block for part in parts for block in part]


def csv(report: GridReport) -> str:
    """Write all columns of the shown cells."""
    return to_csv(report.cells)


def _title(report: GridReport, setting: Settings) -> page.Title:
    models, total = list(report.best_safe), len(report.cells)
    part = "" if total == report.cells_in_grid else f" of {report.cells_in_grid:,}"
    over = (" over ", page.Code(", ".join(setting.axes))) if setting.axes else ()
    return page.Title(
        eyebrow="rksp grid",
        name=models[0] if len(models) == 1 else f"{len(models)} models",
        about=(
            f"{total:,}{part} {'cell' if report.cells_in_grid == 1 else 'cells'}",
            *over,
            f", from {many(report.profiles_made, 'profile')}; nothing was trained.",
        ),
    )


def _counted(report: GridReport) -> page.Verdict:
    counts, total = report.counts, report.cells_in_grid
    ok, caution, risk = (counts[word] for word in ANSWERS)
    unanswered = total - ok - caution - risk
    lost = unanswered - counts[Verdict.CANNOT_TELL]
    rows = [
        ("Caution", str(caution), "above X, or a warning names a documented cause"),
        ("Risk", str(risk), "P(failed) at or above the bar"),
    ]
    if unanswered:
        told = f"{unanswered - lost} cannot tell, {lost} without a result"
        rows.append(("No answer", str(unanswered), told))
    return page.Verdict(
        verdict=report.verdict,
        headline=_HEADLINES[report.verdict],
        odds=("settings are ok", f"{ok:,} of {total:,}"),
        blocks=[page.Table(("Verdict", "Cells", "Meaning"), rows, look="figures")],
    )


def _broken(setting: Settings, everything: Iterable[Record]) -> Iterator[page.Block]:
    rows: page.Rows = []
    found: dict[str, list[str]] = {}
    for cell in everything:
        if cell.verdict == FAILED:
            found.setdefault(str(cell.message), []).append(setting(cell))
    for message, stopped in found.items():
        more = len(stopped) - _MOST_NAMED
        named = "; ".join(stopped[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        rows.append(["error", many(len(stopped), "cell"), message, "", named])
    if rows:
        head = ("Level", "Cells", "Message", "Fix", "Setting")
        yield page.Section("Could not run", [page.Table(head, rows, look="items")])


def _best(report: GridReport, setting: Settings, everything: list[Record]) -> page.Section:
    rows: page.Rows = []
    for model, cell in report.best_safe.items():
        if cell is None:
            rows.append([page.Code(model), _no_setting(model, everything), page.MISSING, ""])
        else:
            told = "; ".join(filter(None, (by_level(cell), assumed_run(report, cell))))
            odds = _odds(*(page.written(getattr(cell, name), page.PERCENT) for name in _CHANCE))
            rows.append([page.Code(model), setting(cell), odds, told])
    head = ("Model", "Setting", "P(failed)", "Findings")
    return page.Section("Best safe setting of each model", [page.Table(head, rows)], hint=_SAFE)


def _no_setting(model: str, everything: Iterable[Record]) -> str:
    own = [record for record in everything if record.model == model]
    if all(record.verdict not in ANSWERS for record in own):
        return "no answer"
    ceilings = [r.do_not_exceed for r in own if r.do_not_exceed is not None]
    if not ceilings:
        return "no learning rate trains this model"
    return f"none of these learning rates is safe; do not exceed {short(max(ceilings))}"


def _scattered(cells: Sequence[Record]) -> Iterator[page.Block]:
    known = [
        (cell.learning_rate, cell.probability_failed, cell.verdict)
        for cell in cells
        if cell.probability_failed and cell.learning_rate
    ]
    if len({rate for rate, _, _ in known}) > 1:
        hint = "One dot a cell. Green: ok; yellow: caution; red: risk."
        drawn = figures.panel(partial(_scatter, known), 300, 270)
        yield page.Figure(title="P(failed) by learning rate", hint=hint, drawing=drawn)


def _scatter(cells: Sequence[tuple[float, float, str]], *, width: float, height: float) -> Markup:
    rates = [rate for rate, _, _ in cells]
    across = svg.Scale(
        low=min(rates) / 1.3, high=max(rates) * 1.3, start=58, end=width - 14, log=True
    )
    up = svg.Scale(low=0, high=1, start=height - 44, end=20)
    looks = {"ok": "past good", "risk": "past bad"}
    dots = (
        svg.circle(
            across(rate),
            up(chance),
            4,
            looks.get(verdict, "past"),
            f"{short(rate)}: {page.percent(chance)}",
        )
        for rate, chance, verdict in cells
    )
    axes = svg.axes(across, up, "learning rate", ".0%")
    return svg.drawing(width, height, "P(failed) of every cell by learning rate", axes, *dots)


def _map(heat: RiskMap, number: page.Numbers) -> page.Section:
    rows = [
        [row.name]
        + [
            "" if chance is None else number(f"rows/{i}/probabilities/{j}", page.PERCENT)
            for j, chance in enumerate(row.probabilities)
        ]
        for i, row in enumerate(heat.rows)
    ]
    table = page.Table(
        (" · ".join(heat.axes), *(short(rate, 2) for rate in heat.rates)), rows, "map"
    )
    binned = f"in {len(heat.rates)} columns of equal width, each up to the next one’s rate"
    said = f"Mean P(failed) by learning rate{f', {binned}' * heat.is_binned}."
    return page.Section("Risk over the grid", [page.Sentence(said, "hint"), table])


def _ranking(report: GridReport, setting: Settings) -> Iterator[page.Block]:
    number = page.Numbers(report, "cells/")
    ranked = [(i, cell) for i, cell in enumerate(report.cells) if cell.verdict != FAILED]
    cells = [cell for _, cell in ranked[:_MOST_ROWS]]
    if not cells:
        return
    named = dict.fromkeys((*setting.axes, "seed"))
    axes = [axis for axis in named if len(cells) == 1 or _varies(axis, cells)]
    same = [f"{axis} {word(cells[0].get(axis))}" for axis in setting.axes if axis not in axes]
    head = ("Verdict", *axes, "P(failed)", "Excess", "S", "X", "Raises the edge", "Findings")
    rows: page.Rows = []
    for i, cell in ranked[:_MOST_ROWS]:
        row: list[page.Words] = [cell.verdict]
        for axis in axes:
            is_number = isinstance(value := cell.get(axis), float)
            row.append(number(f"{i}/{axis}", digits=4) if is_number else word(value))
        row.append(_odds(*(number(f"{i}/{name}", page.PERCENT) for name in _CHANCE)))
        row.append(number(f"{i}/expected_excess", ".2f"))
        row += [number(f"{i}/{name}", digits=2) for name in ("start_here", "do_not_exceed")]
        rows.append([*row, first_lever(cell), cell.reasons or by_level(cell)])
    shown: list[page.Block] = [page.Table(head, rows)]
    if same:
        shown.append(page.Sentence(f"All of these: {', '.join(same)}.", "hint"))
    if report.hidden:
        total, part = report.cells_in_grid, len(report.cells)
        said = f"Shown: {part} of {total} cells; --top {total} without --where shows all."
        shown.append(page.Sentence(said, "hint"))
    yield page.Section("Ranked", shown, hint=_ORDER)


def _odds(chance: str, low: str, high: str) -> page.Words:
    return chance if low == high else (chance, " [", low, ", ", high, "]")
