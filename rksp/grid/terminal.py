"""A grid's table for people: plain text that survives a log file."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.grid.table import Record, best_safe, heat_map, pareto


def render(everything: Sequence[Record], shown: Sequence[Record], axes: Sequence[str]) -> str:
    """The ranked cells that are shown; best safe settings, trade-off and heat map of all."""
    lines = [*_table(shown, axes), ""]
    lines += ["Best safe setting of each model:"]
    for model, record in best_safe(everything).items():
        words = "none: no cell's rate is safe" if record is None else _setting(record, axes)
        lines.append(f"  {model}: {words}")
    fronts = {model: front for model, front in pareto(everything).items() if len(front) > 1}
    if fronts:
        lines += ["", "Rate against risk, cells that no other beats in both:"]
    for model, front in fronts.items():
        points = [f"{r['learning_rate']:.3g} → {r['probability_failed']:.1%}" for r in front]
        lines.append(f"  {model}: {', '.join(points)}")
    heat = heat_map(everything, axes)
    return "\n".join([*lines, *([""] if heat else []), *heat]) + "\n"


def _table(found: Sequence[Record], axes: Sequence[str]) -> list[str]:
    varied = [axis for axis in axes if axis not in ("learning_rate",)]
    has_seeds = len({record["seed"] for record in found}) > 1 and "seed" not in varied
    columns = ["rank", "P(failed)", "interval", "verdict", *varied]
    columns += ["seed"] if has_seeds else []
    columns += ["safe rate", "findings"]
    rows = [columns]
    for number, record in enumerate(found, start=1):
        cells = [str(number), _percent(record["probability_failed"]), _interval(record)]
        cells += [str(record["verdict"]), *(_word(record.get(axis)) for axis in varied)]
        cells += [str(record["seed"])] if has_seeds else []
        cells += [_word(record["safe_learning_rate"])]
        cells += [str(record["message"] or record["reasons"] or record["findings"])]
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) - 1)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]


def _setting(record: Record, axes: Sequence[str]) -> str:
    varied = [f"{axis}={_word(record.get(axis))}" for axis in axes if record.get(axis) is not None]
    return f"{' '.join(varied)} (P(failed) {_percent(record['probability_failed'])})"


def _interval(record: Record) -> str:
    low, high = record["probability_failed_low"], record["probability_failed_high"]
    return "" if low is None or high is None else f"{_percent(low)}–{_percent(high)}"


def _percent(value: object) -> str:
    return "" if value is None else f"{value:.1%}"


def _word(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
