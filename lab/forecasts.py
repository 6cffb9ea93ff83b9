"""Forecasts of public runs that can be checked: written before they end, scored after.

RUNS has a recipe a line, as the files of published recipes and of failed runs have (`group`,
`arch`, `recipe` with its `learning_rate`). FORECASTS has P(failed) at that rate, and *start here*,
*likely edge* and *do not exceed*. OUTCOMES has a line with `id` and `failed` for each run that has
ended; a row of a published recipe or of a failed run serves too.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import BOUNDS, PUBLISHED, EdgeLadder
from lab.fit.edge_spreads import with_spreads_of
from lab.fit.real_ladders import read_real_ladders
from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.classifiers.metrics import auroc
from rksp.documents.terms import DEFAULT_BAR, DEFAULT_RISK
from rksp.documents.verdict import word_at

_RULE = 10**-2.2  # the edge that fits most runs of AdamW, whatever they are
_RULE_SPREAD = 0.5  # decades
_NEAR = math.log10(3)  # decades by which *start here* may miss a rate that trained

app = typer.Typer(name="forecasts", help="Forecast public runs, and score what was forecast.")


def forecast(model: EdgeModel, run: EdgeLadder, day: str) -> dict[str, Any]:
    """Return what the model says of a run at its rate, and what the rule of one rate says."""
    said, rate = model.predict(run.inputs), 10 ** float(run.rates[0]) / run.inputs.peak_share
    by_rule = 0.5 * math.erfc(math.log10(_RULE / rate) / _RULE_SPREAD / math.sqrt(2))
    failed, start, most = said.failed(rate), said.start_here, said.rate_at(DEFAULT_RISK)
    return {
        "id": run.name,
        "group": run.group,
        "made": day,
        "rksp": version("rksp"),
        "data": model.card["digest"],
        "learning_rate": rate,
        "verdict": word_at(rate, most, is_risk=failed >= DEFAULT_BAR).value,
        "failed": failed,
        "interval": said.interval(rate),
        "start_here": start,
        "likely_edge": said.likely_edge,
        "do_not_exceed": most,
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
    """Return tables of how the forecasts did, beside rules that need no model.

    The constant is the share of the other groups' runs that failed.
    """
    told = [one for one in said if one["id"] in ended]
    if not told:
        return "None of the runs has ended."
    failed = np.array([ended[one["id"]] for one in told], float)
    column = lambda name: np.array([one[name] for one in told])
    groups = column("group")
    others = [failed[groups != group] for group in groups]
    constant = np.array([x.mean() if len(x) else 0.5 for x in others])
    lines = ["| forecast by | runs | failed | Brier score | AUROC |", "|---|---|---|---|---|"]
    for name, chance, ranks in (
        ("rksp", column("failed"), True),
        ("one rate for all", column("failed_by_rule"), True),
        ("the share of the other groups' runs that failed", constant, False),
    ):
        brier = float(np.mean((chance - failed) ** 2))
        ranking = f"{auroc(failed, chance):.2f}" if ranks else "–"
        lines.append(f"| {name} | {len(told)} | {failed.sum():.0f} | {brier:.3f} | {ranking} |")
    rates, low, high = column("learning_rate"), *np.array(column("interval").tolist()).T
    off = np.abs(np.log10(column("start_here") / rates))
    words = column("verdict")
    share = lambda chosen, of: f"{(chosen & of).sum()} of {of.sum()}"
    trained, broke = failed == 0, failed == 1
    above = rates > column("do_not_exceed")
    lines += [
        "",
        f"Of the runs that failed, {share(above, broke)} lie above *do not exceed* and "
        f"{share(words != 'ok', broke)} are not *ok*; of those that trained, "
        f"{share(above, trained)} lie above it, {share(words != 'ok', trained)} are not *ok*, "
        f"{share(words == 'risk', trained)} are at *risk*, and *start here* is within a factor of "
        f"3 of {share(off < _NEAR, trained)} rates. {failed.sum():.0f} failed, where the "
        f"intervals of P(failed) allow for {math.floor(low.sum())} to {math.ceil(high.sum())}.",
    ]
    return "\n".join(lines)


def season(said: Sequence[Mapping[str, Any]], ended: Mapping[str, bool]) -> str:
    """Return a row for every forecast, with how the run ended where that is known."""
    lines = [
        "| run | learning rate | P(failed) | S | E | X | verdict | ended |",
        "|---|---|---|---|---|---|---|---|",
    ]
    words = {True: "failed", False: "trained", None: "not known"}
    for one in said:
        rates = [one[name] for name in ("start_here", "likely_edge", "do_not_exceed")]
        cells = [f"{one['learning_rate']:.2g}", f"{one['failed']:.0%}"]
        cells += [f"{rate:.2g}" for rate in rates]
        cells += [one["verdict"], words[ended.get(one["id"])]]
        lines.append(f"| {one['id']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def outcomes(rows: Iterator[Mapping[str, Any]]) -> dict[str, bool]:
    """Return which runs failed, by id; those of which nobody knows are left out."""
    found = {}
    for row in rows:
        if "failed" in row or row.get("cause"):
            found[row["id"]] = bool(row.get("failed", True))
        elif row.get("trained_well"):
            found[row["id"]] = False
    return found


@app.command()
def write(
    runs: Annotated[list[Path], typer.Argument(help="Files of runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The forecasts to write.")],
    real: Annotated[list[Path] | None, typer.Option(help="Public ladders to fit on.")] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Leave a run's group out, to forecast past runs.")
    ] = False,
) -> None:
    """Write a dated forecast of every run."""
    from lab.ladders.edge_ladders import edge_ladders  # torch

    read = read_real_ladders(runs, unfinished=True)
    mine = [x for x in read if x.changed in (*BOUNDS, PUBLISHED)]
    known = edge_ladders(real=[*(real or []), *runs]) if leave_out else []
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    found = forecasts(mine, known, leave_out=leave_out, day=day)
    output.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    typer.echo(f"{len(found)} forecasts: {output}.")


@app.command()
def score(
    said: Annotated[Path, typer.Argument(metavar="FORECASTS")],
    ended: Annotated[list[Path], typer.Argument(metavar="OUTCOMES...")],
) -> None:
    """Print how the forecasts did, and a row for each."""
    told, known = list(_rows(said)), outcomes(row for path in ended for row in _rows(path))
    typer.echo(f"{scored(told, known)}\n\n{season(told, known)}")
