"""Which monitor leads a failing loss: plain runs of the plan `step_clip` with every monitor.

python -m lab.experiments.leads FOLDER        # trains; resumes in the folder
python -m lab.experiments.leads FOLDER --stored

A run fails as the ladders' policy says beside the best of its model and seed. Its onset is the
step from which its smoothed loss stays above the best run's by the margin, or its last step. Every
quantity is judged twice: with its shipped rule, and with one fixed limit for all models, set so
that it raises at most `BUDGET` false alarms a step on the runs of `CHOSEN_ON` at seed 1. Both are
counted on all other runs.
"""

from __future__ import annotations

import lzma
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lab.experiments.readings import read_readings
from lab.experiments.rows import departure
from lab.experiments.shaping import plan
from lab.experiments.tables import markdown
from lab.experiments.trials import DENSE, Stored, Trial, run_trials
from lab.tasks.tasks import make_task
from rksp.ground.files import ResultFolder
from rksp.ground.model import Strict
from rksp.own_runs.outcome import OutcomePolicy
from rksp.watch.registry import RULES, rule_of

BUDGET = 1e-4  # false alarms a healthy step
CHOSEN_ON = ("zoo_rmsnorm", "zoo_no_norm", "gpt2", "llama", "t5", "vit")
CHOSEN_SEED = 1
ROWS = Path(__file__).parent / "results" / "leads.jsonl.xz"


class LeadRow(Strict):
    """One run in the committed result.

    Attributes:
        family, depth, rate, seed: Which run.
        final_loss: Mean over the last tenth, in nats; None if the run stopped before.
        steps: Steps taken.
        onset: The step at which the loss shows the failure; None for a run that learns.
        first: Monitor → step of its first alarm by the shipped rules.
        records: Quantity → (step, value) where its worst value so far grew.
    """

    family: str
    depth: int
    rate: float
    seed: int
    final_loss: float | None
    steps: int
    onset: int | None
    first: dict[str, int]
    records: dict[str, list[tuple[int, float]]]

    @property
    def is_chosen_on(self) -> bool:
        """Whether limits are set on this run."""
        return self.family in CHOSEN_ON and self.depth == 2 and self.seed == CHOSEN_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Leads:
    """The experiment; its rows need the folder of the readings."""

    def plan(self) -> list[Trial]:
        """Return the trials: every rate of every plain ladder of the plan."""
        pairs = plan("step_clip")
        specs = [pairs.plain(model, seed) for seed in pairs.seeds for model in pairs.models]
        return [
            Trial(
                family=spec.family,
                shape=spec.shape,
                task=spec.task,
                task_options=spec.task_options,
                recipe=spec.recipe.model_copy(update={"learning_rate": rate}),
                seed=spec.seed,
                monitors=DENSE,
            )
            for spec in specs
            for rate in spec.rates
        ]

    def rows(self, found: Sequence[Stored], folder: Path) -> list[LeadRow]:
        """Return the rows of stored trials; a model that learns nothing at a seed has none."""
        ladders: dict[tuple, list[Stored]] = {}
        for stored in found:
            trial = stored.trial
            key = (trial.family, trial.shape["num_hidden_layers"], trial.seed)
            ladders.setdefault(key, []).append(stored)
        return [row for ladder in ladders.values() for row in _rows(ladder, ResultFolder(folder))]

    def table(self, rows: Sequence[LeadRow]) -> str:
        """Return both tables as Markdown."""
        judged = [row for row in rows if not row.is_chosen_on]
        limits = _limits([row for row in rows if row.is_chosen_on])
        ruled = {
            name: {_key(r): r.first[name] for r in judged if name in r.first}
            for name in sorted({name for row in judged for name in row.first})
        }
        fixed = {
            name: {_key(r): at for r in judged if (at := _crossing(r, name, limit)) is not None}
            for name, limit in limits.items()
        }
        failing = sum(row.onset is not None for row in judged)
        said = (
            f"{failing} failing and {len(judged) - failing} learning runs that no limit was set "
            f"on; limits from {len(rows) - len(judged)} others.\n\nShipped rules:\n\n"
        )
        return (
            said
            + _table(judged, ruled)
            + "\nOne limit for all models:\n\n"
            + _table(judged, fixed, limits)
        )


def _rows(ladder: Sequence[Stored], folder: ResultFolder) -> list[LeadRow]:
    policy = OutcomePolicy()
    known = [s for s in ladder if s.result.final_loss is not None]
    best = min(known, key=lambda s: s.result.final_loss, default=None)
    trial = ladder[0].trial
    trivial = make_task(trial.task, **trial.task_options).trivial_loss
    if best is None or best.result.final_loss > trivial - policy.margin:
        return []
    rows = []
    for stored in ladder:
        own, result, recipe = stored.trial, stored.result, stored.trial.recipe
        late = (
            result.final_loss is None or result.final_loss > best.result.final_loss + policy.margin
        )
        if late and recipe.learning_rate < best.trial.recipe.learning_rate:
            continue  # undertrained
        at = None
        if late:
            curves = [[value for _, value in s.result.loss] for s in (stored, best)]
            at = departure(*curves, planned_steps=recipe.max_steps)
            at = min(x for x in (at, result.onset, result.steps) if x is not None)
        rows.append(
            LeadRow(
                family=own.family,
                depth=own.shape["num_hidden_layers"],
                rate=recipe.learning_rate,
                seed=own.seed,
                final_loss=result.final_loss,
                steps=result.steps,
                onset=at,
                first=result.first_alarms,
                records=_records(folder.path(own.id, ".readings.gz")),
            )
        )
    return rows


def _records(path: Path) -> dict[str, list[tuple[int, float]]]:
    worst: dict[str, dict[int, float]] = {}
    for reading in read_readings(path):
        rule = rule_of(reading.quantity, RULES)
        value = -reading.value if rule.direction == "down" else reading.value
        steps = worst.setdefault(reading.quantity, {})
        steps[reading.step] = max(value, steps.get(reading.step, -math.inf))
    found: dict[str, list[tuple[int, float]]] = {}
    for quantity, steps in worst.items():
        top = -math.inf
        for step in sorted(steps):
            if steps[step] > top and math.isfinite(steps[step]):
                top = steps[step]
                found.setdefault(quantity, []).append((step, float(f"{top:.4g}")))
    return found


def _limits(rows: Sequence[LeadRow]) -> dict[str, float]:
    healthy = [row for row in rows if row.onset is None]
    allowed = math.floor(BUDGET * sum(row.steps for row in healthy))
    limits = {}
    for name in sorted({name for row in rows for name in row.records}):
        tops = sorted(
            (row.records[name][-1][1] for row in healthy if name in row.records), reverse=True
        )
        if len(tops) > allowed:
            limits[name] = tops[allowed]
    return limits


def _crossing(row: LeadRow, name: str, limit: float) -> int | None:
    return next((step for step, value in row.records.get(name, ()) if value > limit), None)


def _key(row: LeadRow) -> tuple:
    return (row.family, row.depth, row.rate, row.seed)


def _table(
    rows: Sequence[LeadRow],
    alarms: Mapping[str, Mapping[tuple, int]],
    limits: Mapping[str, float] | None = None,
) -> str:
    failing = [row for row in rows if row.onset is not None]
    healthy = [row for row in rows if row.onset is None]
    steps = sum(row.steps for row in healthy)
    lines = []
    for name, at in alarms.items():
        leads = [r.onset - at[_key(r)] for r in failing if at.get(_key(r), r.onset) < r.onset]
        false = sum(_key(row) in at for row in healthy)
        limit = [] if limits is None else [f"{abs(limits[name]):.3g}"]
        share = len(leads) / max(1, len(failing))
        lines.append(
            (
                share,
                (
                    f"`{name}`", *limit, f"{len(leads)}/{len(failing)}",
                    f"{statistics.median(leads):.0f}" if leads else "–",
                    f"{1e4 * false / max(1, steps):.1f}",
                ),
            )
        )  # fmt: skip
    lines.sort(key=lambda line: -line[0])
    header = ("monitor" if limits is None else "quantity", *([] if limits is None else ["limit"]))
    header = (
        *header,
        "failures alarmed before the loss",
        "median lead",
        "false alarms in 10,000 steps",
    )
    return markdown(header, [cells for _, cells in lines])


def main(
    folder: Annotated[Path | None, typer.Option(help="One file or two a trial.")] = None,
) -> None:
    """Print the tables; with a folder, train the trials that it lacks first, in one process."""
    leads = Leads()
    if folder is None:
        lines = lzma.decompress(ROWS.read_bytes()).splitlines()
        rows = [LeadRow.model_validate_json(line) for line in lines]
    else:
        rows = leads.rows(run_trials(leads.plan(), folder, workers=1), folder)
        ROWS.write_bytes(lzma.compress("\n".join(row.model_dump_json() for row in rows).encode()))
    typer.echo(leads.table(rows), nl=False)


if __name__ == "__main__":
    typer.run(main)
