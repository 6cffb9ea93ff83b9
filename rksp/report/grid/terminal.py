"""A grid's table for people, as plain text that is readable in a log file."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.documents.grid import FAILED, GridReport, Record, RiskMap
from rksp.grid.table import ANSWERS
from rksp.ground.text import short
from rksp.recipe_files.columns import canonical
from rksp.recipe_files.said.origin import line_of
from rksp.report.grid.settings import Settings, assumed_run, by_level, first_lever

_SHADES = "·░▒▓█"
_MOST_POINTS = 10  # of a trade-off
_MOST_NAMED = 3  # of the cells that one error stopped


def render(report: GridReport) -> str:
    """Render the shown cells by rank, and failures, best safe settings and risk map of all."""
    everything, axes = [*report.cells, *report.hidden], report.axes
    called = _short_names(list(report.best_safe))
    ranked = [record for record in report.cells if record["verdict"] != FAILED]
    lines = [*_table(ranked, axes), *_not_shown(report), ""] if ranked else []
    lines += _failures(report, everything)
    lines += ["Best safe setting of each model:"]
    for model, record in report.best_safe.items():
        words = _no_setting(model, everything) if record is None else _setting(report, record)
        lines.append(f"  {called[model]}: {words}")
    fronts = {model: front for model, front in report.pareto.items() if len(front) > 1}
    if fronts:
        lines += ["", "Learning rate against risk (cells that no other cell beats in both):"]
    for name, front in fronts.items():
        model, rule = (name, "") if name in called else name.rsplit(" ", 1)
        points = [f"{short(r['learning_rate'])} → {r['probability_failed']:.1%}" for r in front]
        step = -(-len(points) // _MOST_POINTS)
        rest = f" (every {_ordinal(step)} of {len(points)})" if step > 1 else ""
        said = f"{called[model]} {rule}".rstrip()
        lines.append(f"  {said}: {', '.join(points[::step])}{rest}")
    heat = _heat(report.risk_map)
    lines += ["", *heat] if heat else []
    lines += ["", line_of(report.assumed)] if report.assumed else []
    return "\n".join(lines) + "\n"


def _ordinal(number: int) -> str:
    return f"{number}{ {2: 'nd', 3: 'rd'}.get(number, 'th') }"


def _not_shown(report: GridReport) -> list[str]:
    """Say how many cells the ranking leaves out, and how to see them."""
    count = report.cells_in_grid
    if not report.hidden:
        return []
    shown = len(report.cells)
    return [f"Shown: {shown} of {count} cells; --top {count} without --where shows all."]


def _failures(report: GridReport, everything: Sequence[Record]) -> list[str]:
    """Return one line for each error, with the number of cells that it stopped."""
    broken = Settings(report).broken(everything)
    if not broken:
        return []
    lines = ["Could not run:"]
    for message, settings in broken.items():
        cells = "1 cell" if len(settings) == 1 else f"{len(settings)} cells"
        shown = "; ".join(settings[:_MOST_NAMED])
        more = len(settings) - _MOST_NAMED
        lines.append(f"  {cells}: {message} ({shown}{f' and {more} more' if more > 0 else ''})")
    return [*lines, ""]


def _short_names(models: Sequence[str]) -> dict[str, str]:
    """Shorten each model by the settings that all of them share."""
    words = [model.split(" ") for model in models]
    shared = set.intersection(*map(set, words)) if words else set()
    return {
        model: " ".join([first, *(word for word in rest if word not in shared)])
        for model, (first, *rest) in zip(models, words, strict=True)
    }


def _table(found: Sequence[Record], axes: Sequence[str]) -> list[str]:
    has_seeds = len({record["seed"] for record in found}) > 1 and "seed" not in axes
    columns = ["rank", "excess", "P(failed)", "interval", "verdict", *axes]
    columns += ["seed"] if has_seeds else []
    has_levers = any(map(first_lever, found))
    columns += ["start here", "do not exceed"]
    columns += ["raises the edge"] if has_levers else []
    columns += ["findings"]
    rows = [columns]
    for number, record in enumerate(found, start=1):
        cells = [str(number), _nats(record), _percent(record["probability_failed"])]
        cells += [_interval(record)]
        cells += [str(record["verdict"]), *(_word(record.get(axis)) for axis in axes)]
        cells += [str(record["seed"])] if has_seeds else []
        cells += [_word(record["start_here"]), _word(record["do_not_exceed"])]
        cells += [first_lever(record)] if has_levers else []
        cells += [str(record["reasons"] or by_level(record))]
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) - 1)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]


def _heat(heat: RiskMap | None) -> list[str]:
    """Render one character per learning rate; nothing without a map."""
    if heat is None:
        return []
    head = " · ".join(heat.axes)
    width = max(map(len, [*(row.name for row in heat.rows), head]))
    rates = f"rate {short(heat.rates[0])} … {short(heat.rates[-1])}"
    if heat.is_binned:
        rates += f" in {len(heat.rates)} columns of equal width"
    lines = [f"{head.rjust(width)}  {rates}"]
    for row in heat.rows:
        shades = "".join(map(_shade, row.probabilities))
        lines.append(f"{row.name.rjust(width)}  {shades}".rstrip())
    legend = "  ".join(f"{mark} {20 * i}%" for i, mark in enumerate(_SHADES))
    return [*lines, f"{'':{width}}  P(failed) from {legend}"]


def _shade(value: float | None) -> str:
    return " " if value is None else _SHADES[min(len(_SHADES) - 1, int(value * len(_SHADES)))]


def _setting(report: GridReport, record: Record) -> str:
    """Return the settings that the model's name does not state."""
    own = [
        axis
        for axis in report.axes
        if canonical(axis)[0] in ("recipe", "seed") and record.get(axis) is not None
    ]
    varied = " ".join(f"{axis}={_word(record[axis])}" for axis in own)
    told = [f"P(failed) {_percent(record['probability_failed'])}", by_level(record)]
    told.append(assumed_run(report, record))
    return f"{varied or 'as given'} ({'; '.join(filter(None, told))})"


def _no_setting(model: str, everything: Sequence[Record]) -> str:
    """Say why a model has no safe cell, and what would be safe."""
    own = [record for record in everything if record["model"] == model]
    if all(record["verdict"] not in ANSWERS for record in own):
        return "no answer"
    ceilings = [r["do_not_exceed"] for r in own if r["do_not_exceed"] is not None]
    if not ceilings:
        return "no learning rate trains this model"
    return f"none of these learning rates is safe; do not exceed {short(max(ceilings))}"


def _interval(record: Record) -> str:
    low, high = record["probability_failed_low"], record["probability_failed_high"]
    return "" if low is None or high is None else f"{_percent(low)}–{_percent(high)}"


def _nats(record: Record) -> str:
    value = record["expected_excess"]
    return "" if value is None else f"{value:.3f}"


def _percent(value: object) -> str:
    return "" if value is None else f"{value:.1%}"


def _word(value: object) -> str:
    if value is None:
        return ""
    return short(value, 4) if isinstance(value, float) else str(value)
