"""What `rksp watch --on-alarm stop` says of runs with nothing wrong: a row a run.

    python -m lab.bench.healthy_runs --run

The bar is 0 of 100 stopped and 2 alarmed. A run counts as healthy by its own losses, which the row
has: it ends below the entropy of its targets' frequencies, or well below its first loss.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from lab.bench.under_watch import append_rows, read_rows, watched
from rksp.confirm.watched import watched_run

SCRIPT = Path(__file__).with_name("healthy_script.py")
TABLE = Path(__file__).with_suffix(".csv")
RUNS = Path(__file__).with_suffix(".txt")


class Row(NamedTuple):
    """A run: its first and last printed loss, what it was told, and whether it was stopped."""

    run: str
    seed: int
    first: float
    last: float
    alarms: int
    stopped: bool
    said: str


def row_of(run: str, seed: int) -> Row:
    """Run a line of `RUNS` under the watch; a second part goes on in the same log."""
    spread = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = spread if "loop=fsdp" in run else []
    with tempfile.TemporaryDirectory() as folder:
        log, told = Path(folder) / "watch.jsonl", list[str]()
        losses: list[float] = []
        for part in range(1, 2 + ("part=2" in run)):
            words = [*run.replace("part=2", f"part={part}").split(), f"seed={seed}"]
            done = watched(log, [*start, str(SCRIPT), *words, f"folder={folder}"])
            found = re.findall(r"loss'?:? '?([\d.]+(?:e-?\d+)?)", done.stdout)
            losses += [float(x) for x in found]
            if done.returncode not in (0, 75) or not log.exists():
                raise typer.Exit(print(run, done.stderr[-3000:]) or 1)
            report = watched_run(log)
            told += [f"{one.cause}: {one.text}" for one in report.causes]
            told += [f"{one.monitor}: {one.text}" for one in report.alarms]
        stopped = done.returncode == 75
        first, last = (losses[0], losses[-1]) if losses else (0.0, 0.0)
        return Row(run, seed, first, last, len(told), stopped, " | ".join(told)[:600])


def main(
    table: Annotated[Path, typer.Option(help="Where rows are, and go.")] = TABLE,
    run: Annotated[bool, typer.Option(help="Run what the table lacks.")] = False,
    only: Annotated[str, typer.Option(help="Runs that this finds.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
) -> None:
    """Print how many healthy runs were alarmed; with --run make the missing ones first."""
    rows = read_rows(Row, table)
    done = {(row.run, row.seed) for row in rows}
    for name in RUNS.read_text(encoding="utf-8").splitlines() if run else ():
        if re.search(only, name) and (name, seed) not in done:
            rows.append(row_of(name, seed))
            append_rows(table, rows[-1:])
            print(*rows[-1], sep="\t", flush=True)
    alarmed = [row for row in rows if row.alarms]
    stopped = sum(row.stopped for row in rows)
    print(f"{len(rows)} healthy runs: {len(alarmed)} alarmed, {stopped} stopped")
    for row in alarmed:
        print(f"  {row.run}: {row.said[:160]}")


if __name__ == "__main__":
    typer.run(main)
