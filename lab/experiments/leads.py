"""Which monitor leads a failing loss: plain runs of the plan `step_clip` with every monitor.

python -m lab.experiments.leads        # the runs that are stored

A run fails as the ladders' policy says beside the best of its model and seed. Its onset is the
step from which its smoothed loss stays above the best run's by the margin, or its last step. Every
quantity is judged twice: with its shipped rule, and with one fixed limit for all models, set so
that it raises at most `BUDGET` false alarms a step on the runs of `CHOSEN_ON` at seed 1. Both are
counted on all other runs. What trained them stands in commit f6ee1dcf.
"""

from __future__ import annotations

import lzma
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.experiments.tables import markdown
from rksp.ground.model import Strict

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


def leads_table(rows: Sequence[LeadRow]) -> str:
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


if __name__ == "__main__":
    lines = lzma.decompress(ROWS.read_bytes()).splitlines()
    print(leads_table([LeadRow.model_validate_json(line) for line in lines]), end="")
