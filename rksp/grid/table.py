"""The results of a grid: ranking, filters, best safe setting, trade-off, heat map, exports."""

from __future__ import annotations

import csv
import io
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rksp.errors import InputError, nearest
from rksp.grid.axes import canonical
from rksp.grid.cell import model_name
from rksp.grid.store import Row
from rksp.recipe_files.document import parse_yaml

Record = dict[str, object]
_CONDITION = re.compile(r"^\s*([\w.\-/]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*$")
_COMPARE: dict[str, Callable[[object, object], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_ANSWER = (
    "verdict",
    "probability_failed",
    "probability_failed_low",
    "probability_failed_high",
    "probability_diverged",
    "safe_learning_rate",
    "likely_edge",
)


def records(rows: Sequence[Row], bar: float = 0.5) -> list[Record]:
    """One flat record a cell, ranked: the least likely to fail first, faster rates before slower.

    Cells without an answer come last, in the order of the grid. The order and the values depend
    on the cells alone.

    Args:
        bar: P(failed) at which a verdict is `risk`.
    """
    return sorted((_record(row, bar) for row in rows), key=_rank)


def _record(row: Row, bar: float) -> Record:
    result = row.result or {}
    findings = result.get("findings", [])
    head = {
        "position": row.position,
        "model": model_name(row.target, row.overrides),
        "target": row.target,
        "seed": row.seed,
    }
    return {
        **head,
        **row.labels,  # as the user wrote them, under other names than ours
        **row.recipe,
        **head,
        **{name: result.get(name) for name in _ANSWER},
        "verdict": _verdict(row, bar),
        "reasons": "; ".join(reason for reason in result.get("reasons", []) if reason),
        "findings": " ".join(findings),
        "failure": row.failure if row.state == "failed" else None,
        "message": row.message if row.state == "failed" else None,
    }


def _verdict(row: Row, bar: float) -> str:
    """The stored one, with `ok` and `risk` by this bar; for a cell without a result, its state."""
    if row.result is None:
        return "could not run" if row.state == "failed" else row.state
    if row.result["verdict"] in ("ok", "risk") and row.result["probability_failed"] is not None:
        return "risk" if row.result["probability_failed"] >= bar else "ok"
    return row.result["verdict"]


def _rank(record: Record) -> tuple[float, float, int]:
    probability, rate = record["probability_failed"], record.get("learning_rate")
    return (
        math.inf if probability is None else probability,
        -rate if isinstance(rate, int | float) else 0.0,
        record["position"],
    )


def where(found: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """The records that meet every condition, such as `lr<=1e-3` or `verdict=ok`.

    Raises:
        InputError: A condition cannot be read, or names no column.
    """
    for condition in conditions:
        match = _CONDITION.match(condition)
        if match is None:
            raise InputError(f"--where {condition!r} is not NAME<VALUE, such as lr<=1e-3.")
        name, compare, value = match[1], _COMPARE[match[2]], parse_yaml(match[3])
        columns = {column for record in found for column in record}
        if name not in columns:
            name = canonical(name)[1] or name
        if found and name not in columns:
            raise InputError(f"--where {condition!r}: no such column{nearest(name, columns)}")
        found = [record for record in found if _meets(record.get(name), compare, value)]
    return list(found)


def _meets(found: object, compare: Callable, value: object) -> bool:
    if found is None:
        return False
    try:
        return bool(compare(found, value))
    except TypeError:
        return bool(compare(str(found), str(value)))


def is_safe(record: Record) -> bool:
    """Whether the rate is at or below the largest one whose upper bound of the risk is accepted."""
    rate, safe = record.get("learning_rate"), record.get("safe_learning_rate")
    return record["verdict"] == "ok" and rate is not None and safe is not None and rate <= safe


def best_safe(found: Sequence[Record]) -> dict[str, Record | None]:
    """For each model its safe cell of the highest rate, then the lowest risk; None without one."""
    best: dict[str, Record | None] = {}
    for record in sorted(found, key=lambda record: record["position"]):
        name = str(record["model"])
        best.setdefault(name, None)
        if is_safe(record) and (best[name] is None or _gain(record) > _gain(best[name])):
            best[name] = record
    return best


def _gain(record: Record) -> tuple[float, float]:
    return record["learning_rate"], -record["probability_failed"]


def pareto(found: Sequence[Record]) -> dict[str, list[Record]]:
    """For each model the cells that no other beats in both rate (higher) and risk (lower)."""
    fronts: dict[str, list[Record]] = {}
    usable = [r for r in found if r.get("learning_rate") and r["probability_failed"] is not None]
    for record in sorted(usable, key=lambda r: (-r["learning_rate"], r["probability_failed"])):
        front = fronts.setdefault(str(record["model"]), [])
        if not front or record["probability_failed"] < front[-1]["probability_failed"]:
            front.append(record)
    return fronts


def axes_of(rows: Sequence[Row]) -> list[str]:
    """Names of what varies over the grid, in the order in which they were given."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    return [n for n in names if len({str(row.labels.get(n)) for row in rows}) > 1]


def to_csv(found: Sequence[Record]) -> str:
    """All columns of all records."""
    columns = list(dict.fromkeys(name for record in found for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def export(found: Sequence[Record], path: Path) -> None:
    """Writes all records as CSV, JSON Lines or Parquet, by the suffix.

    Raises:
        InputError: The suffix is another one, or Parquet lacks pyarrow.
    """
    if path.suffix == ".csv":
        path.write_text(to_csv(found), encoding="utf-8")
    elif path.suffix in (".jsonl", ".ndjson"):
        lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in found)
        path.write_text(lines, encoding="utf-8")
    elif path.suffix == ".parquet":
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise InputError("Parquet needs pyarrow; pip install 'rksp[lab]'.") from error
        columns = list(dict.fromkeys(name for record in found for name in record))
        table = {name: _column([record.get(name) for record in found]) for name in columns}
        parquet.write_table(arrow.table(table), path)
    else:
        raise InputError(f"{path} is none of .csv, .jsonl and .parquet.")


def _column(values: list[object]) -> list[object]:
    """One type a column: numbers stay, anything mixed becomes text."""
    present = [value for value in values if value is not None]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in present):
        return [None if v is None else float(v) for v in values]
    return [None if v is None else str(v) for v in values]
