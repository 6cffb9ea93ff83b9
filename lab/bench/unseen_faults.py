"""Faults written without sight of the rules of `rksp watch`: what it says of a stranger's script.

The scripts (`unseen_script.py`, then `unseen_shapes.py` with other shapes: its rows have a colon)
and the words of this table came before their author had read a rule of the watch (its command and
the reviews, or its issue, were known); no row is fitted to the rules.
Each row of `unseen_faults.tsv` names what a practitioner would accept: `right` as the cause,
`partly` as the symptom. A run whose name has `resume` goes on with a healthy first part.
What a run says is its alarms and its causes:

- right: a cause, or an alarm, that says what is wrong;
- partly: the symptom is told, and no other cause is named;
- wrong: a cause is named that has nothing to do with it;
- unknown: an alarm, and neither;
- silent: nothing.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from lab.bench.under_watch import append_rows, read_rows, watched
from rksp.confirm.watched import watched_run
from rksp.documents.confirm import WatchReport

TABLE = Path(__file__).with_suffix(".csv")
FAULTS = Path(__file__).with_suffix(".tsv")
WORDS = {
    "untrained": r"optimizer (never|does not|has not|was not)|not in the optimizer|never got",
    "between": r"without (it|the optimizer|a step)|not the optimizer|between",
    "unlearnt": r"not (begun to )?learn|worse than|frequenc|plateau|above its own|ln \d"
    r"|knows nothing",
    "data": r"data|batch|label|target|input",
    "gone_on": r"jump|rose|above|not finite|nan",
}


class Fault(NamedTuple):
    """What is planted, in which script, and the words that are accepted for it.

    Attributes:
        script: `unseen_` and this is the script's name.
        kind: harmful, harmless or healthy.
        name: The script's word for it.
        right, partly: Regular expressions, of what harms; `{data}` and the like stand for `WORDS`.
    """

    script: str
    kind: str
    name: str
    right: str
    partly: str


def read_faults() -> dict[str, Fault]:
    """Return what is planted by its name: healthy runs, harmless changes, then what harms."""
    with FAULTS.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, restval="")
        faults = [
            Fault(
                script=line["script"],
                kind=line["kind"],
                name=line["fault"],
                right=line["right"].format(**WORDS),
                partly=(line["partly"] or "{unlearnt}").format(**WORDS),
            )
            for line in lines
        ]
    order = ("healthy", "harmless", "harmful")
    return {one.name: one for one in sorted(faults, key=lambda one: order.index(one.kind))}


class Row(NamedTuple):
    """A run of the table."""

    fault: str
    seed: int
    kind: str
    judged: str
    first_step: int
    stopped: bool
    said: str


def said(report: WatchReport) -> tuple[str, str, int]:
    """Return all that a run was told of alarms, of causes, and the first step of it."""
    alarms = "; ".join(f"{one.monitor}: {one.text}" for one in report.alarms)
    causes = "; ".join(
        f"{one.cause}: {one.text}" for one in report.causes if one.cause != "unknown"
    )
    return alarms, causes, min((one.step for one in report.alarms), default=-1)


def judged(fault: Fault, alarms: str, causes: str) -> str:
    """Judge what was said of a harmful run."""
    if re.search(fault.right, causes, re.IGNORECASE):
        return "right"
    if causes:
        return "wrong"
    if not alarms:
        return "silent"
    if re.search(fault.right, alarms, re.IGNORECASE):
        return "right"
    return "partly" if re.search(fault.partly, alarms, re.IGNORECASE) else "unknown"


def row_of(fault: Fault, seed: int) -> Row:
    """Run and judge one fault; the second part of a resume goes on in the first one's log."""
    script = Path(__file__).with_name(f"unseen_{fault.script}.py")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "watch.jsonl"
        for part in ("1", "2") if "resume" in fault.name else ("1",):
            watched(log, [str(script), fault.name, str(seed), folder, part], "--status", "5")
        report = watched_run(log)
    alarms, causes, step = said(report)
    harms = fault.kind == "harmful"
    verdict = judged(fault, alarms, causes) if harms else "alarm" if alarms else "silent"
    text, stopped = f"{causes} | {alarms}"[:300], "stopped" in str(report.ended)
    return Row(fault.name, seed, fault.kind, verdict, step, stopped, text)


def show(rows: list[Row]) -> None:
    """Print the counts of each kind."""
    for kind in ("harmful", "harmless", "healthy"):
        of = [row for row in rows if row.kind == kind]
        counts = Counter(row.judged for row in of)
        text = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        print(f"{kind} ({len(of)}): {text}; stopped {sum(row.stopped for row in of)}")


def main(
    table: Annotated[Path, typer.Option(help="Where rows are, and go.")] = TABLE,
    run: Annotated[bool, typer.Option(help="Run what the table lacks.")] = False,
    only: Annotated[str, typer.Option(help="Faults whose name this finds.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
) -> None:
    """Print what the watch said; with --run make the missing runs first."""
    rows = read_rows(Row, table)
    done = {(row.fault, row.seed) for row in rows}
    left = [
        fault
        for name, fault in read_faults().items()
        if run and re.search(only, name) and (name, seed) not in done
    ]
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda fault: row_of(fault, seed), left):
            append_rows(table, [row])
            rows.append(row)
            print(*row[:6], row.said[:160], sep="\t", flush=True)
    show(rows)


if __name__ == "__main__":
    typer.run(main)
