"""The report of a confirmation: one schema-checked document, in the manner of a score's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rksp.confirm.trial import TrialReport
from rksp.recipe import Recipe
from rksp.report.schema import Part, Report

SCHEMA_VERSION = "1.0"


class PredictionReport(Part):
    """What `rksp score` says of the recipe that is trained, before it is; means over the seeds."""

    probability_failed: float | None
    low: float | None
    high: float | None
    verdict: Literal["ok", "risk", "indeterminate", "not assessed"]
    reasons: list[str]
    safe_learning_rate: float | None
    threshold: float


class MonitorReport(Part):
    """One monitor over the runs of one arm.

    Attributes:
        monitor: Its name.
        runs: Runs in which it raised an alarm (after the fault, if there is one).
        first_alarm: Median step of its first alarm over those runs.
        lead: Median steps by which that came before the loss showed the failure, over the failed
            runs in which it alarmed; None if there is none.
        silent: Why it did not measure, if it did not.
    """

    monitor: str
    runs: int
    first_alarm: float | None
    lead: float | None
    silent: str | None


class ArmReport(Part):
    """One arm over all seeds.

    Attributes:
        runs, failed, diverged: Counts; diverged runs are failed ones.
        p_value: Two-sided Fisher test of `failed` against the baseline's; None for it.
        learned: Runs that ended below what the frequencies of the labels alone would give, by the
            margin of the ladders' policy.
        final_loss: Mean over the runs that ended, in nats.
        saved: Seeds at which the baseline failed and this arm did not.
        lost: Seeds at which this arm failed and the baseline did not.
        overhead: Seconds of the median step over the baseline's, minus one; None for the
            baseline.
    """

    arm: str
    runs: int
    failed: int
    diverged: int
    learned: int
    p_value: float | None
    final_loss: float | None
    saved: int
    lost: int
    overhead: float | None
    monitors: list[MonitorReport]


class ConfirmReport(Part):
    """One run of `rksp confirm`.

    The verdict is the baseline's: *undecided* if no run of any arm failed or learned anything.
    `asked` is the user's recipe, `trained` what was run of it. `conclusions` are the sentences that
    the terminal prints. Two runs of the same command differ in times alone: `timings`, `overhead`
    and the fields of a trial that end in `seconds`.
    """

    schema_version: Literal["1.0"] = SCHEMA_VERSION
    kind: Literal["confirm"] = "confirm"
    target: dict[str, str | int | bool | None]
    asked: Recipe
    trained: Recipe
    faults: list[str]
    prediction: PredictionReport
    prediction_held: bool | None
    verdict: Literal["failed", "trained", "undecided"]
    conclusions: list[str]
    arms: list[ArmReport]
    trials: list[TrialReport]
    provenance: dict[str, str | int | float | bool | None]
    timings: dict[str, float]
    non_finite: list[str] = Field(default_factory=list)

    to_json = Report.to_json
