"""The results of experiments as small rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel

from lab.experiments.trials import Stored
from rksp.confirm.arms import BASELINE
from rksp.ground.errors import ArtifactError
from rksp.ground.files import atomic_write
from rksp.ground.model import Strict
from rksp.own_runs.outcome import Outcome, OutcomePolicy

AnyRow = TypeVar("AnyRow", bound=BaseModel)


class TrialRow(Strict):
    """One trial in a committed result, with the fields that the tables need."""

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
    case: str = ""
    is_twin: bool = False

    @property
    def has_diverged(self) -> bool:
        """True if a value was not finite, the loss passed 50 or the gradient norm passed 500."""
        return self.outcome == Outcome.DIVERGED


class Cost(Strict):
    """The time that one arm adds to a step of one experiment.

    Attributes:
        experiment: Key of the experiment.
        arm: The arm's line.
        every: Steps between two actions.
        bare: Processor milliseconds of a step without the arm.
        acting: Processor milliseconds of a step in which the arm acts.
    """

    experiment: str
    arm: str
    every: int
    bare: float
    acting: float

    @property
    def share(self) -> float:
        """The added share of a bare step, spread over the cadence."""
        return (self.acting / self.bare - 1) / self.every


def to_rows(stored: Sequence[Stored]) -> list[TrialRow]:
    """Return the rows of stored trials; a twin of the same case and seed gives an onset too."""
    twins = {
        (s.trial.case, s.trial.seed): s
        for s in stored
        if s.trial.is_twin and s.trial.arm == BASELINE
    }
    return [_row(s, twins.get((s.trial.case, s.trial.seed))) for s in stored]


def _row(stored: Stored, twin: Stored | None) -> TrialRow:
    trial, result = stored.trial, stored.result
    own = {"faults", "fault_step", "case", "is_twin"}
    fields = result.model_dump(include=set(TrialRow.model_fields) - {"rate", *own})
    if twin is not None and fields["onset"] is None:
        curves = [[value for _, value in s.result.loss] for s in (stored, twin)]
        fields["onset"] = departure(*curves, planned_steps=trial.recipe.max_steps)
    return TrialRow(rate=trial.recipe.learning_rate, **trial.model_dump(include=own), **fields)


def write_rows(path: Path, rows: Sequence[BaseModel]) -> None:
    """Write one row a line, so that a later run differs in the lines that changed."""
    lines = [json.dumps(row.model_dump(mode="json"), sort_keys=True) for row in rows]
    atomic_write(path, "[\n" + ",\n".join(lines) + "\n]\n")


def shipped_rows(name: str, kind: type[AnyRow] = TrialRow) -> list[AnyRow]:
    """Return the committed rows of an experiment.

    Raises:
        ArtifactError: There are none.
    """
    file = Path(__file__).parent / "results" / f"{name}.json"
    if not file.is_file():
        raise ArtifactError(f"No results of {name!r} are stored; run it with --folder.")
    return [kind.model_validate(row) for row in json.loads(file.read_text(encoding="utf-8"))]


def departure(
    loss: Sequence[float | None], twin: Sequence[float | None], *, planned_steps: int
) -> int | None:
    """Return the step from which a run's smoothed loss stays above its twin's by the margin.

    Args:
        loss: The run's loss of every step taken; None where it was not finite.
        twin: That of its twin.
        planned_steps: Steps of both; the loss is smoothed over a tenth of them.

    Returns:
        None if the run ends within the margin, or either of them has no smoothed loss.
    """
    policy = OutcomePolicy()
    window = max(1, round(policy.final_share * planned_steps))
    count = min(len(loss), len(twin))
    pair = np.array([loss[:count], twin[:count]], dtype=np.float64)
    if count < window:
        return None
    smooth = [np.convolve(part, np.full(window, 1 / window), "valid") for part in pair]
    near = np.flatnonzero(smooth[0] - smooth[1] <= policy.margin)
    left = int(near[-1]) + 1 if len(near) else 0
    return left + window - 1 if left < len(smooth[0]) else None
