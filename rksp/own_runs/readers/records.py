"""Records of one run, a row of numbers each, from any text in which a trainer wrote them.

A line of a console is read by kind and not by trainer: every number takes the words in front of it
as its name (`step 100: loss 3.2`, `lm loss: 1.03E+01 |`, `{'loss': 0.4}`, `loss=2.1, v_num=0`), and
a table takes the names in its header. Lines without a metric are read past.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

import numpy as np

from rksp.ground.budgets import LOG_LINE, LOGGED
from rksp.ground.text import words
from rksp.own_runs.metrics import is_held_out, is_metric, tokens_of, training_loss
from rksp.own_runs.run import Curve, number_of

Record = Mapping[str, object]

# Counters, the finest first: the first that most records have is the step.
_COUNTERS = words(
    "step global_step _step train/global_step trainer/global_step steps iteration iterations iter "
    "iters it itr current_steps num_updates updates update n_updates training_iteration "
    "time/total_timesteps total_timesteps num_timesteps timesteps env_steps time/iterations "
    "episode episodes round rounds batch mini_batch epoch epochs s"
)
_SHORT_COUNTERS = frozenset(name for name in _COUNTERS if "/" not in name and name != "_step")
_EPOCHS = ("epoch", "epochs")
_OTHERS = frozenset(words("lr learning_rate grad_norm"))  # which may have a line of their own
_JUDGED = _OTHERS.union(_COUNTERS)

_PROBED = 100  # rows of which one has every metric, if any has
_RISES = (0.98, 0.5, 0.0)  # of its steps: a counter that rises always, mostly, at times
_FEW_ROWS = 5  # whose median is where a loss stands
_FEW_VALUES = 3  # that are a curve

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_LINE = re.compile(r"[^\r\n]++")
_TIMES = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d(?:[T ,]+\d\d:\d\d:\d\d(?:[.,]\d+)?)?Z?"
    r"|\b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?\b"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?P<n>[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?:nan|NaN|NAN|inf|Inf|INF|Infinity|infinity))(?![A-Za-z_]*\d|\.\d)"
    r"(?:[ \t]*/[ \t]*(?P<of>\d[\d,]*))?"
)
_WORD = r"(?<!\w)(?<!--)[^\W\d](?:[\w./-]*\w)?+"
# A name and its sign of equality, at the end of what stands before a number.
_NAME = re.compile(
    rf"(?P<name>{_WORD}(?:[ \t]{{1,2}}{_WORD}){{0,3}})(?:[ \t]*\([^()\d]*\))?['\"\])]?"
    r"[ \t]*[:=|#：]?[ \t]*[\[(<'\"]*[ \t]*$"
)
# A fraction that stands alone: `[ 10/1200]`, `10/1200 [00:12<01:02]`, `[10/1251 ( 3%)]`.
_WRAPPED = re.compile(r"\b(?:[Tt]ensor|array|np\.float\d+|float)\(")  # as Python prints it
_PRINTED = re.compile(rf"^{_WRAPPED.pattern}([^,()]*)(?:,.*)?\)$")
_COUNTED = re.compile(r"(?<![\w.-])(?:\d+-)?(\d+)(epoch|batch|step|iter)(?=[\s:,])")  # `3epoch:`
_SHORTENED = re.compile(r"(?<!\w)([A-Za-z]{2,5})\.(?=[ \t]+[A-Za-z])")  # `Val. Loss`
_PROGRESS = re.compile(r"(?<![\w./])(\d{1,9})[ \t]*/[ \t]*(\d{1,9})[ \t]*(?=[\[\]|(:;,]|$)")
_HEADER = re.compile(r"[A-Za-z_][\w/. -]*")
# `100, 2.31`, or `tensor(2.31)`: a line that is a value and nothing else.
_BARE = re.compile(
    rf"(?:(?P<n>\d+)[\s,;]+)?(?:{_WRAPPED.pattern})?"
    r"(?P<x>[-+]?\d*\.\d+(?:[eE][-+]?\d+)?|nan|[-+]?inf)(?:\)|,[^()]*\))?"
)
_BEFORE = re.compile(r"(?<![\w.])(\d+\.\d+(?:e[-+]?\d+)?|nan) ([A-Za-z_]+)\b")  # `2.3 loss`


@dataclass(slots=True)
class Records:
    """What was logged.

    Attributes:
        rows: The numbers, row by row.
        planned: The whole of a count such as `100/1000`; 0 where nobody says.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    planned: int = 0
    _size: int = 0

    @classmethod
    def of(cls, rows: Iterable[Record]) -> Records:
        """Return the records of these rows."""
        found = cls()
        for row in rows:
            found.add(row)
        return found

    def add(self, row: Record) -> None:
        """Keep the numbers of a row, written as text too."""
        found = {_named(name): x for name in row if (x := _number(row[name])) is not None}
        if 2 * self._size > LOGGED.most:  # of a long run what it is judged by
            found = {n: x for n, x in found.items() if n in _JUDGED or is_metric(n)}
        if found:
            self.rows.append(found)
            self._size += len(found)
            LOGGED.check(self._size, "A run")

    def curves(self) -> dict[str, Curve]:
        """Return the curve of each metric over the counter; a run that went back counts once."""
        logged = [row for row in self.rows if row.keys() - set(_COUNTERS)]
        counter = counter_of(logged)
        metrics = list(_passes(logged, counter))
        found: dict[str, dict[float, float]] = {}
        for step, row in zip(_steps(metrics, counter), metrics, strict=True):
            for name, value in row.items():
                if name not in _COUNTERS:
                    curve = found.setdefault(name, {})
                    while curve and next(reversed(curve)) >= step:  # it was resumed
                        curve.popitem()
                    curve[step] = value
        return {name: Curve.of(points) for name, points in found.items()}


def _named(name: str) -> str:
    plain = name.strip()
    return plain.lower() if plain.lower() in _COUNTERS else plain


def _number(value: object) -> float | None:
    if isinstance(value, str):
        plain = _PRINTED.sub(r"\1", value.strip())
        return float(plain) if _NUMBER.fullmatch(plain) and "," not in plain else None
    return number_of(value)


def counter_of(rows: Sequence[Mapping[str, float]]) -> str | None:
    """Return the counter of most rows that moves and mostly rises; None where there is none.

    The finest of those that rise from row to row, else of those that do so mostly, else of all: a
    progress bar that ends each epoch at the same step is no counter.
    """
    rising: dict[str, float] = {}
    for name in _COUNTERS:
        held = np.array([row[name] for row in rows if name in row and math.isfinite(row[name])])
        if 2 * len(held) < max(len(rows), 1) or len(set(held)) < 2:
            continue
        is_whole = name not in _EPOCHS or bool((held == np.round(held)).all())
        if is_whole and (np.diff(held) >= 0).mean() > 0.6:
            rising[name] = (np.diff(held) > 0).mean()
    found = [name for least in _RISES for name, share in rising.items() if share >= least]
    return found[0] if found else None


def _steps(rows: Sequence[Mapping[str, float]], counter: str | None) -> Iterator[float]:
    """Yield the place of each row: its counter, of steps that begin anew each epoch their sum.

    Where a counter stands still while the loss is logged, rows are told apart by their number.
    """
    name = training_loss(dict.fromkeys(n for row in rows[:_PROBED] for n in row))
    held = [(r.get(counter or ""), r.get(name or "")) for r in rows if name is None or name in r]
    moves = sum(1 for _ in groupby(step for step, _ in held))
    if counter is None or 2 * moves < len(set(held)):  # ranks that write at once write alike
        yield from map(float, range(len(rows)))
        return
    losses = [row.get(name, math.nan) for row in rows] if name else []
    before, past, epoch, begun = -math.inf, 0.0, -math.inf, 0
    for at, row in enumerate(rows):
        step = row.get(counter, before - past if math.isfinite(before) else 0.0)
        now = next((row[name] for name in _EPOCHS if name in row), epoch)
        is_back = past + step < before
        is_start = step <= rows[begun].get(counter, step) + 1 and at - begun >= _FEW_ROWS
        if is_back and (now > epoch or (is_start and _goes_on(losses, at))):
            past, begun = before + (step == 0), at
        epoch = now
        before = past + step
        yield before


def _passes(
    rows: Sequence[Mapping[str, float]], counter: str | None
) -> Iterator[Mapping[str, float]]:
    trained = -math.inf
    for is_held, part in groupby(rows, _is_held):
        group = list(part)
        is_pass = all(row.get(counter or "", math.inf) <= trained for row in group)
        if is_held and is_pass and len(group) > 1:
            names = dict.fromkeys(name for row in group for name in row)
            values = {name: [row[name] for row in group if name in row] for name in names}
            means = {name: float(np.mean(found)) for name, found in values.items()}
            yield means | {name: trained for name in (counter,) if name}
            continue
        yield from group
        trained = group[-1].get(counter or "", trained) if not is_held else trained


def _is_held(row: Mapping[str, float]) -> bool:
    return all(is_held_out(name) for name in row if is_metric(name))


def _goes_on(losses: Sequence[float], at: int) -> bool:
    parts = losses[:3], losses[max(0, at - _FEW_ROWS) : at], losses[at : at + _FEW_ROWS]
    begun, middle, now = (np.median([x for x in part if x == x] or [0.0]) for part in parts)
    return bool(abs(now - middle) < abs(now - begun))


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines that are not empty, what a carriage return overwrote too, without colors."""
    return (_ESCAPES.sub("", found[0][:LOG_LINE]).strip() for found in _LINE.finditer(text))


def read_lines(lines: Sequence[str], title: str = "") -> Records:
    """Read the records of a console's lines; a counter holds on until the next one.

    Under a title of losses, such as a file's name, what a line tells without a metric's name is a
    loss: `loss_log.txt` may hold `(epoch: 1, iters: 100) G_A: 0.4`. Values alone are one in a log
    too; any other `.txt` may hold numbers of any kind.
    """
    of = "loss" if tokens_of(title) & {"loss", "losses"} else ""
    found, here = Records(), dict[str, float]()
    header: tuple[str, ...] = ()
    for line in lines:
        row, planned = _row(line)
        if (cells := _cells(line, header)) is not None:
            row = cells
        elif names := _names(line):
            header = names
            continue
        counters = {name: row.pop(name) for name in _COUNTERS if name in row}
        if of and counters and not any(map(is_metric, row)):
            row = {f"{of}_{name}": x for name, x in row.items() if name not in _OTHERS}
        epoch = next((counters.pop(name) for name in _EPOCHS if name in counters), None)
        if epoch is not None and epoch != here.get("epoch"):
            here = {"epoch": epoch} if not row else here | {"epoch": epoch}  # a head: steps anew
        if counters:
            here["step"] = next(iter(counters.values()))  # of several the finest
        found.planned = max(found.planned, planned)
        if any(map(is_metric, row)) or (counters and not _OTHERS.isdisjoint(row)):
            found.add(here | row)
    is_any = title.lower().endswith(".txt") and not of
    return found if found.rows or is_any else _values(lines)


def _values(lines: Sequence[str]) -> Records:
    """Read lines that are values and nothing else, some behind a count that rises, as a loss."""
    told = [match for match in map(_BARE.fullmatch, lines) if match]
    counts = [int(match["n"] or n) for n, match in enumerate(told)]
    if len(told) < _FEW_VALUES or (np.diff(counts) > 0).mean() < _RISES[1]:
        return Records()
    steps = zip(counts, told, strict=True)
    return Records.of({"step": step, "loss": float(match["x"])} for step, match in steps)


def _row(line: str) -> tuple[dict[str, float], int]:
    row: dict[str, float] = {}
    planned, end = 0, 0
    line = _SHORTENED.sub(r"\1", _COUNTED.sub(r" \2 \1 ", line))
    line = _WRAPPED.sub("(", _TIMES.sub(lambda m: " " * len(m[0]), line))
    pending, aside = "", ""
    for match in _NUMBER.finditer(line):
        before, end = line[end : match.start()], match.end()
        for part in _PARTS.finditer(before):
            aside = "val_" if part["held"] else ""
        value = float(match["n"].replace(",", ""))
        if pending and before.strip() in (":", "=", "is", ""):  # `Loss after iteration 100: 0.5`
            row.setdefault(pending, value)
            pending = ""
            continue
        named = _NAME.search(before[-120:])
        if named is None:
            is_first = not before.strip() and not row and match["of"] is None
            if is_first and _is_count(match) and re.match(r"[ \t,|:]+[A-Za-z]", line[end:]):
                row["step"] = value  # `250 val 6.0`
            continue
        name = _plain(named["name"])
        if name is None:
            continue
        if name in _COUNTERS:
            if not _is_count(match):
                continue
            planned = max(planned, int((match["of"] or "0").replace(",", "")))
            if name in _EPOCHS:
                planned = 0
            pending = next((w for w in _PHRASE.split(named["name"].lower()) if is_metric(w)), "")
        is_bare = aside and is_metric(name) and not is_held_out(name)
        row.setdefault(aside + name if is_bare else name, value)
    if not aside and row.keys().isdisjoint(_SHORT_COUNTERS - set(_EPOCHS)):
        for count in _PROGRESS.finditer(line):
            if not _NAME.search(line[: count.start()][-120:]):
                row["step"], planned = float(count[1]), int(count[2])
    if not any(map(is_metric, row)):
        behind = {name.lower(): float(x) for x, name in _BEFORE.findall(line)}
        row |= {name: x for name, x in behind.items() if is_metric(name)}
    return row, planned


def _is_count(match: re.Match[str]) -> bool:
    return match["n"].replace(",", "").isdigit()


_PHRASE = re.compile(r"[ \t]+")
_STOPS = frozenset(words("at on in of for the is are was and with to after before took equals"))
_PROSE = frozenset(words("it may will can must should would you we this that than"))
# What the metrics of a line are of, where the line and not each of their names says it.
_PARTS = re.compile(
    r"(?<![\w/.-])(?:(?P<held>val|valid|validation|validating|validate|eval|evaluation|evaluating|"
    r"test|testing|dev)|train|training)(?:ing)?(?![\w/.-])",
    re.I,
)


@lru_cache(maxsize=4096)
def _plain(name: str) -> str | None:
    """Return the name of a number from the words before it; None where they are prose."""
    parts = _PHRASE.split(name.strip().lower())
    while parts and parts[0] in _STOPS:
        parts.pop(0)
    while parts and parts[-1] in _STOPS:
        parts.pop()
    if not parts or not _PROSE.isdisjoint(parts):
        return None
    last = parts[-1].strip("-./_")
    if last in _SHORT_COUNTERS:
        return last
    if len(parts) > 1 and parts[0].strip(":,") in ("step", "iter", "epoch", "info"):
        parts.pop(0)
    if parts[0] == "lm" and len(parts) > 1:
        parts.pop(0)  # as Megatron has it
    return "_".join(part.strip("-.") for part in parts).strip("_")


def _names(line: str) -> tuple[str, ...]:
    if any(char.isdigit() for char in line) or len(line) > 400:
        return ()
    mark = _mark(line)
    names = tuple(
        part.strip(" |*").lower().replace(" ", "_") for part in re.split(mark, line.strip("| "))
    )
    is_table = len(names) >= 2 and all(_HEADER.fullmatch(name) for name in names)
    counts = any(name in _SHORT_COUNTERS for name in names) and any(map(is_metric, names))
    return names if is_table and (counts or all(map(is_metric, names))) else ()


def _mark(line: str) -> str:
    for mark, pattern in (("|", r"\s*\|\s*"), ("\t", r"\t+"), (",", r"\s*,\s*"), ("  ", r"\s{2,}")):
        if mark in line:
            return pattern
    return r"\s+"


def _cells(line: str, header: Sequence[str]) -> dict[str, float] | None:
    if not header or not any(char.isdigit() for char in line):
        return None
    inner = line.strip("| ")
    for mark in (_mark(line), r"[\s,|]+"):
        cells = re.split(mark, inner)
        if len(cells) == len(header):
            try:
                pairs = zip(header, cells, strict=True)
                return {n: float(c.rstrip("%").replace(",", "")) for n, c in pairs if _says(c)}
            except ValueError:
                continue
    return None


def _says(cell: str) -> bool:
    return cell.strip().lower() not in ("", "-", "–", "n/a", "none", "no_log", "no log", "log")
