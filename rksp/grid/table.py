"""A grid as a table of records, a map of risk, and files for other programs."""

from __future__ import annotations

import bisect
import csv
import io
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rksp.documents.grid import FAILED, CellNumbers, Record, RiskMap, RiskRow
from rksp.documents.terms import DEFAULT_BAR
from rksp.documents.verdict import word_at
from rksp.grid.cell import model_name, unnamed_settings
from rksp.grid.group import CellAnswer
from rksp.grid.store import Row
from rksp.ground.errors import InputError, nearest
from rksp.ground.files import atomic_write, check_writable
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe
from rksp.recipe_files.columns import canonical
from rksp.recipe_files.parse.content import parse_yaml

ANSWERS = ("ok", "caution", "risk")
JUDGED = (*ANSWERS, "cannot tell", "not assessed")
_CONDITION = re.compile(r"^\s*([\w.\-/]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*$")
Comparison = Callable[[Any, Any], bool]  # of what a cell holds with what is wanted
_COMPARE: dict[str, Comparison] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_TEXT, _TEXT_POWER = 410.7, 0.28  # of what a run loses for the text that it does not see
_TIE = 0.01  # nats; beyond it, a smaller expected loss outweighs a warning


def records(rows: Sequence[Row], bar: float = DEFAULT_BAR) -> list[Record]:
    """Return one record for each cell, ranked by expected loss, then risk, then faster rates.

    Cells of other batches or lengths are compared by the text that they see (`_worth`).

    A cell with a warning comes after every cell without one whose expected loss is at most 0.01
    nats higher, and one with an error comes after those without. Cells without an answer come last,
    and those that could not run come after the others. Where rksp cannot tell, the classifier's
    numbers are left out, because they are no basis for a ranking. Order and values depend on the
    cells alone.

    Args:
        rows: The cells of a store.
        bar: P(failed) at which a verdict is `risk`.
    """
    return sorted((_record(row, bar) for row in rows), key=_rank)


def _record(row: Row, bar: float) -> Record:
    verdict = _verdict(row, bar)
    result = row.result or CellAnswer(verdict=verdict)
    answer = CellAnswer(verdict=verdict) if verdict == "cannot tell" else result
    columns = row.labels | row.recipe | unnamed_settings(row.overrides, row.labels)
    known = {
        **{name: getattr(answer, name) for name in CellNumbers.model_fields if name != "findings"},
        "position": row.position,
        "model": model_name(row.target, row.overrides),
        "target": row.target,
        "seed": row.seed,
        "learning_rate": row.learning_rate,
        "verdict": verdict,
        "reasons": "; ".join(filter(None, result.reasons)),
        "findings": result.findings,
        "failure": row.failure if row.state == "failed" else None,
        "message": row.message if row.state == "failed" else None,
    }
    return Record(**columns | known)  # the labels under the user's names


def _verdict(row: Row, bar: float) -> str:
    if row.result is None:
        return FAILED if row.state == "failed" else row.state
    result = row.result
    if result.verdict not in ANSWERS or result.probability_failed is None:
        return result.verdict
    most = math.inf if result.do_not_exceed is None else result.do_not_exceed
    is_risk = result.probability_failed >= bar
    return word_at(row.learning_rate, most, is_risk=is_risk).value


def _rank(record: Record) -> tuple[float | bool, ...]:
    loss, is_warned = _loss(record)
    return (
        loss == math.inf,
        record.failure is not None,
        "error" in record.levels,
        loss,
        is_warned,
        math.inf if record.probability_failed is None else record.probability_failed,
        -(record.learning_rate or 0.0),
        record.position,
    )


def _loss(record: Record) -> tuple[float, bool]:
    """Return the expected loss, to which a warning adds the width of a tie, then the warning.

    Each cell's own loss is measured from the best rate of its batch and length. Across these, what
    the text is worth that a cell sees is added. Where the model states no losses, as that of
    fine-tuning, it is the distance from the rate to start with, in decades.
    """
    loss, start, rate = record.expected_excess, record.start_here, record.learning_rate
    if loss is not None:
        loss += _worth(record)
    elif start and rate:
        loss = abs(math.log10(rate / start))
    if loss is None:
        return math.inf, False
    is_warned = not record.levels.isdisjoint(("warning", "error"))
    return loss + _TIE * is_warned, is_warned


def _worth(record: Record) -> float:
    """Return the nats that a cell loses to one that sees all text, 411 / tokens^0.28.

    The third approach of Hoffmann et al. (2022, 2203.15556). It was fitted to runs of 100 million
    tokens and more, and says of shorter ones no more than that more text is better.
    """
    facts = [record.get(name) for name in ("batch_size", "sequence_length", "max_steps")]
    tokens = math.prod(fact for fact in facts if isinstance(fact, int | float))
    return float(_TEXT / max(tokens, 1) ** _TEXT_POWER)


def read_condition(text: str) -> tuple[str, Comparison, object]:
    """Return the column, the comparison and the value of `lr<=1e-3` or `verdict=ok`.

    Raises:
        InputError: The text is not such a condition.
    """
    match = _CONDITION.match(text)
    if match is None or not match[3].strip():
        raise InputError(f"--where {text!r} is not NAME<VALUE, such as lr<=1e-3.")
    return match[1], _COMPARE[match[2]], parse_yaml(match[3])


def where(found: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """Return the records that meet every condition, such as `lr<=1e-3` or `verdict=ok`.

    Raises:
        InputError: A condition cannot be read, or it names no column.
    """
    columns = {column for record in found for column in record.columns}
    for text in conditions:
        said, compare, value = read_condition(text)
        name = said if said in columns else canonical(said)[1]
        if columns and name not in columns:
            raise InputError(
                f"--where {text!r} names no column{nearest(said, columns)}; the "
                f"columns are {', '.join(sorted(columns))}."
            )
        found = [record for record in found if _meets(record.get(name), compare, value)]
    return list(found)


def _meets(found: object, compare: Comparison, value: object) -> bool:
    try:
        return found is not None and bool(compare(found, value))
    except TypeError:
        return bool(compare(str(found), str(value)))


def is_safe(record: Record) -> bool:
    """Return whether the verdict is ok and no finding is an error.

    Above the rate not to exceed the verdict is never ok.
    """
    is_ok = record.verdict == "ok" and record.probability_failed is not None
    return is_ok and "error" not in record.levels


def best_safe(found: Sequence[Record]) -> dict[str, Record | None]:
    """Return each model's safe cell of the highest rank; None if it has no safe cell."""
    by_position = sorted(found, key=lambda record: record.position)
    best: dict[str, Record | None] = {record.model: None for record in by_position}
    for record in sorted(filter(is_safe, found), key=_rank, reverse=True):
        best[record.model] = record
    return best


def axes_of(rows: Sequence[Row]) -> list[str]:
    """Return the names that vary over the grid, in the order in which they were given.

    Of two names for one field of the recipe, the field's own is kept.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    varied = [n for n in names if len({str(row.labels.get(n)) for row in rows}) > 1]
    return [n for n in varied if canonical(n)[1] == n or canonical(n)[1] not in varied]


_MOST_ROWS = 16
_MOST_COLUMNS = 20


def heat_map(found: Sequence[Record], axes: Sequence[str]) -> RiskMap | None:
    """Return mean P(failed) by learning rate and by the other axes that vary.

    If all of these would give more than 16 rows, only the first that gives fewer is kept. More than
    20 rates, as a random sweep draws them, are put into 20 columns of equal width in decades.

    Returns:
        The map; None if there are fewer than two rates.
    """
    rates = sorted({r.learning_rate for r in found if r.learning_rate})
    if len(rates) < 2:
        return None
    columns, low = rates, math.log10(rates[0])
    if len(rates) > _MOST_COLUMNS:
        width = (math.log10(rates[-1]) - low) / _MOST_COLUMNS
        columns = [rates[0], *(10 ** (low + i * width) for i in range(1, _MOST_COLUMNS))]
    ordered = sorted(found, key=lambda r: r.position)
    others = _axes(ordered, [n for n in axes if canonical(n) != ("recipe", "learning_rate")])
    names = [place(r, others) for r in ordered]
    seen: dict[tuple[str, int], list[float]] = {}
    for name, r in zip(names, ordered, strict=True):
        if r.probability_failed is not None and r.learning_rate:
            column = bisect.bisect_right(columns, r.learning_rate) - 1
            seen.setdefault((name, column), []).append(r.probability_failed)
    return RiskMap(
        axes=others,
        rates=columns,
        is_binned=len(columns) < len(rates),
        rows=[
            RiskRow(
                name=name,
                probabilities=[
                    sum(some) / len(some) if (some := seen.get((name, i))) else None
                    for i in range(len(columns))
                ],
            )
            for name in dict.fromkeys(names)
        ],
    )


def place(record: Record, axes: Sequence[str]) -> str:
    """Return a record's values on these axes; a dash stands for a missing value."""
    values = ("–" if record.get(name) is None else str(record.get(name)) for name in axes)
    return " · ".join(values) or "all"


def _axes(found: Sequence[Record], axes: Sequence[str]) -> list[str]:
    """Return the axes of the rows; the map averages over all others, but not over optimizers."""
    varied = [n for n in axes if len({str(r.get(n)) for r in found if r.get(n) is not None}) > 1]
    rules = [n for n in varied if canonical(n) == ("recipe", "optimizer")]
    for kept in (varied, *([*rules, n] for n in varied if n not in rules), rules):
        if len({place(r, kept) for r in found}) <= _MOST_ROWS:
            return kept
    return []


def export_cells(cells: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write the settings of cells, by the user's names, as a list that any sweeper can take."""
    atomic_write(path, json.dumps([dict(cell) for cell in cells], indent=1) + "\n")


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
TABLES = (".csv", ".jsonl", ".ndjson")
SUFFIXES = (*TABLES, ".json")
_CAN_BE_OFF = tuple(name for name, flag in flags_of(Recipe).items() if flag.zero_is_off)


def check_export(path: Path) -> None:
    """Check the path of an export before hours of work.

    Raises:
        InputError: The suffix is unknown, or the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"--export {path} must end in one of {', '.join(SUFFIXES)}.")
    check_writable(path, "--export")


def export(found: Sequence[Record], path: Path) -> None:
    """Write all records with all columns in the format that the suffix names.

    Raises:
        InputError: As for `check_export`.
        Incomplete: The disk is full; an old file is unchanged.
    """
    check_export(path)
    lines = (json.dumps(_flat(record), sort_keys=True) + "\n" for record in found)
    atomic_write(path, to_csv(found) if path.suffix == ".csv" else "".join(lines))


def to_csv(found: Sequence[Record]) -> str:
    """Return all columns of all records as CSV, which `rksp grid` reads as the same cells."""
    rows = [_flat(record) for record in found]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_inert, columns))
    writer.writerows([_inert(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue()


def _inert(value: object) -> object:
    """Return text that a spreadsheet does not take for a formula, which it would run."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _flat(record: Record) -> dict[str, object]:
    """Return a record without lists of findings, and with 0 for what is off, as options have it.

    An empty cell of a table means that nobody decided.
    """
    columns = record.columns
    findings = " ".join(f"{part.code} {part.level}" for part in record.findings)
    off = {name: 0 for name in _CAN_BE_OFF if name in columns and columns[name] is None}
    return columns | off | {"findings": findings}
