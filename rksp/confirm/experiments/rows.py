"""Results of experiments as small rows, and the tables made of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from scipy.stats import fisher_exact

from rksp.confirm.arms import BASELINE
from rksp.confirm.experiments.plan import Stored
from rksp.errors import ArtifactError
from rksp.outcome import Outcome

AnyRow = TypeVar("AnyRow", bound=BaseModel)


class Row(BaseModel):
    """One trial in a committed result: what a table needs of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    rate: float
    seed: int
    faults: tuple[str, ...]
    outcome: str
    final_loss: float | None
    steps: int
    onset: int | None
    fault_step: int
    first_alarms: dict[str, int]
    alarms: dict[str, int]
    silent: dict[str, str]
    seconds: float
    action_seconds: float
    monitor_seconds: float

    @property
    def has_diverged(self) -> bool:
        """By the published label: non-finite, loss above 50 or gradient norm above 500."""
        return self.outcome == Outcome.DIVERGED


class Cost(BaseModel):
    """What one arm adds to a step of one experiment.

    Attributes:
        experiment, arm: Which.
        every: Steps between two actions.
        bare, acting: Processor milliseconds of a step without it, and of one in which it acts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    arm: str
    every: int
    bare: float
    acting: float

    @property
    def share(self) -> float:
        """Of a bare step, spread over the cadence."""
        return (self.acting / self.bare - 1) / self.every


def to_rows(stored: Sequence[Stored]) -> list[Row]:
    """The rows of stored trials."""
    shared = set(Row.model_fields) - {"rate", "faults", "fault_step"}
    return [
        Row(
            rate=s.trial.recipe.learning_rate,
            faults=s.trial.faults,
            fault_step=s.trial.fault_step,
            **s.result.model_dump(include=shared),
        )
        for s in stored
    ]


def write_rows(path: Path, rows: Sequence[BaseModel]) -> None:
    """One row a line, so that a later run differs in the lines that changed."""
    lines = [json.dumps(row.model_dump(mode="json"), sort_keys=True) for row in rows]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def shipped_rows(name: str, kind: type[AnyRow] = Row) -> list[AnyRow]:
    """The committed rows of an experiment.

    Raises:
        ArtifactError: There are none.
    """
    file = files("rksp.confirm") / "results" / f"{name}.json"
    if not file.is_file():
        raise ArtifactError(f"No results of {name!r} are shipped; run it with --folder.")
    return [kind.model_validate(row) for row in json.loads(file.read_text(encoding="utf-8"))]


def divergence_table(rows: Sequence[Row], paper: Mapping[str, object]) -> str:
    """Arm × trials diverged, Fisher's test against the baseline, and the median final loss.

    The test compares an arm with the baseline on the arm's own trials; the loss is over the trials
    that ended.
    """
    lines = [
        "| arm | diverged | share | Fisher p | relative | final loss | paper |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    by_arm = {arm: {(r.rate, r.seed): r for r in rows if r.arm == arm} for arm in _arms(rows)}
    for arm, own in by_arm.items():
        paired = [by_arm[BASELINE][key] for key in own if key in by_arm[BASELINE]]
        bad, base = _diverged(own.values()), _diverged(paired)
        p = "–"
        relative = "–"
        if arm != BASELINE and paired:
            counts = [(bad, len(own) - bad), (base, len(paired) - base)]
            p = f"{fisher_exact(counts).pvalue:.2g}"
            relative = f"{bad / base - 1:+.0%}" if base and len(paired) == len(own) else "–"
        finals = [r.final_loss for r in own.values() if r.final_loss is not None]
        final = f"{statistics.median(finals):.3f}" if finals else "–"
        theirs = paper.get(arm, "–")
        theirs = f"{theirs:.1f} %" if isinstance(theirs, float) else theirs
        lines.append(
            f"| `{arm}` | {bad}/{len(own)} | {bad / len(own):.0%} | {p} | {relative} | {final} "
            f"| {theirs} |"
        )
    return "\n".join(lines) + "\n"


def _arms(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.arm for row in rows))


def _diverged(rows: Iterable[Row]) -> int:
    return sum(row.has_diverged for row in rows)
