"""Forecasts of public runs that can be checked: written before they end, scored after.

    python -m lab.forecasts write RUNS [--real FILE ...] [--leave-out] -o FORECASTS
    python -m lab.forecasts score FORECASTS OUTCOMES

RUNS has a recipe a line, as the files of published recipes have (`group`, `arch`, `recipe` with its
`learning_rate`). FORECASTS has P(failed) at that rate, and *start here*, *likely edge* and *do not
exceed*. OUTCOMES has a line `{"id": ..., "failed": true or false}` for each run that has ended.
With --leave-out, a run's group is left out of the fit, so that past runs can be forecast too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import BOUNDS, PUBLISHED, EdgeLadder
from lab.fit.edge_spreads import with_spreads_of
from lab.fit.real_ladders import read_real_ladders
from lab.ladders.edge_ladders import edge_ladders
from rksp.classifiers.edge_model import EdgeModel, load_edge_model

_RULE = 10**-2.2  # the edge that fits most runs of AdamW, whatever they are
_RULE_SPREAD = 0.5  # decades


def forecast(model: EdgeModel, run: EdgeLadder, day: str) -> dict[str, Any]:
    """Return what the model says of a run at its rate, and what the rule of one rate says."""
    said, rate = model.predict(run.inputs), 10 ** float(run.rates[0]) / run.inputs.peak_share
    by_rule = 0.5 * math.erfc(math.log10(_RULE / rate) / _RULE_SPREAD / math.sqrt(2))
    return {
        "id": run.name,
        "made": day,
        "rksp": version("rksp"),
        "data": model.card["digest"],
        "learning_rate": rate,
        "failed": said.failed(rate),
        "interval": said.interval(rate),
        "start_here": said.start_here,
        "likely_edge": said.likely_edge,
        "do_not_exceed": said.do_not_exceed(),
        "failed_by_rule": by_rule,
    }


def forecasts(
    runs: Sequence[EdgeLadder], known: Sequence[EdgeLadder], *, leave_out: bool, day: str
) -> list[dict[str, Any]]:
    """Return a forecast a run; with `leave_out`, by a model that saw nothing of its group."""
    shipped = load_edge_model()
    if not leave_out:
        return [forecast(shipped, run, day) for run in runs]
    found = []
    for group in sorted({run.group for run in runs}):
        rest = [x for x in known if x.group != group]
        seen = with_spreads_of(fit_edge_model(rest, spreads=False), shipped)
        found += [forecast(seen, run, day) for run in runs if run.group == group]
    return found


def scored(said: Sequence[Mapping[str, Any]], ended: Mapping[str, bool]) -> str:
    """Return a table of how the forecasts did, beside the rule of one rate."""
    told = [one for one in said if one["id"] in ended]
    failed = np.array([ended[one["id"]] for one in told], float)
    if not told:
        return "None of the runs has ended."
    brier = lambda name: float(np.mean((np.array([one[name] for one in told]) - failed) ** 2))
    over = np.array([one["learning_rate"] > one["do_not_exceed"] for one in told])
    share = lambda chosen: f"{over[chosen].sum()} of {chosen.sum()}" if chosen.any() else "none"
    lines = [
        "| runs | failed | Brier score | of one rate for all | failed above *do not exceed* | "
        "passed above it |",
        "|---|---|---|---|---|---|",
        f"| {len(told)} | {failed.sum():.0f} | {brier('failed'):.3f} | "
        f"{brier('failed_by_rule'):.3f} | {share(failed == 1)} | {share(failed == 0)} |",
    ]
    return "\n".join(lines)


def _single(ladders: Sequence[EdgeLadder]) -> list[EdgeLadder]:
    return [x for x in ladders if x.changed in (*BOUNDS, PUBLISHED)]


def main() -> None:
    """Write forecasts, or score them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("runs", type=Path)
    write.add_argument("--real", type=Path, action="append", default=[])
    write.add_argument("--leave-out", action="store_true")
    write.add_argument("--output", "-o", type=Path, required=True)
    score = commands.add_parser("score")
    score.add_argument("forecasts", type=Path)
    score.add_argument("outcomes", type=Path)
    given = parser.parse_args()
    if given.command == "score":
        said, ended = (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for path in (given.forecasts, given.outcomes)
        )
        print(scored(said, {row["id"]: bool(row["failed"]) for row in ended}))
        return
    runs = _single(read_real_ladders([given.runs], unfinished=True))
    known = edge_ladders(real=[*given.real, given.runs]) if given.leave_out else []
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    found = forecasts(runs, known, leave_out=given.leave_out, day=day)
    given.output.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    print(f"{len(found)} forecasts: {given.output}.")


if __name__ == "__main__":
    main()
