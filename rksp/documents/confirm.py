"""The documents of runs that rksp watched: of `rksp confirm`, and of a log of `rksp watch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rksp.documents.answer import LeverReport
from rksp.documents.base import Document, Part, TargetReport
from rksp.documents.score import ScoreVerdict
from rksp.recipe import Recipe

# Quantity → its name on a page. A value is the mean over blocks of near-unit mass, the geometric
# mean over matrices of stable rank, and the mean over layers of the lowest head's QK rank.
PROFILED = {
    "near_unit_mass": "Near-unit mass M≈1",
    "stable_rank": "Stable rank",
    "qk_delta2_rank": "Effective rank of the change of QK",
}

Curve = list[tuple[int, float]]


class PredictionReport(Part):
    """What `rksp score` says of the recipe that is trained, before it is; means over the seeds.

    `levers` are those of the first seed.

    Attributes:
        low, high: Ends of the interval of `probability_failed`.
    """

    probability_failed: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: ScoreVerdict
    reasons: list[str]
    start_here: float | None = None
    do_not_exceed: float | None = None
    threshold: float
    levers: list[LeverReport] = Field(default_factory=list)


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
            margin of the ladders' policy; of trained weights, runs that ended better on the
            examples held out than not training at all.
        final_loss: Mean over the runs that ended, in nats.
        saved: Seeds at which the baseline failed and this arm did not.
        lost: Seeds at which this arm failed and the baseline did not.
        held_out_loss: Mean over the runs that ended of the loss on examples that no run trained on;
            None where none were held out, as from random weights.
        untrained_loss: The same of the weights before the first step: of not training at all.
        overhead: Seconds of the median step over the baseline's, minus one; None for the
            baseline and for another learning rate, whose steps are the baseline's.
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
    held_out_loss: float | None = None
    untrained_loss: float | None = None


class TrialReport(Part):
    """What a run left behind, in numbers that a table or a figure needs.

    Attributes:
        arm, seed: Which run.
        outcome: As `rksp.watch.training.loop.judge_alone` says.
        final_loss: Mean over the last tenth of the planned steps; None if the run stopped before.
        trivial_loss: Of always answering with the frequencies of the labels it was trained on.
        held_out_loss, untrained_loss: As in `ArmReport`.
        steps: Steps taken.
        undone: Steps of them that a rollback took back.
        onset: Step from which the loss shows the failure; None if it does not.
        first_alarms: Step of the first alarm of each monitor that gave one, after the fault.
        leads: Steps by which it came before the onset.
        alarms: Number of alarm episodes of each monitor, before the fault too.
        silent: Monitors that did not measure, with the reason.
        actions: How often each intervention did something.
        action_seconds, monitor_seconds: Host time of interventions (without what they add to the
            backward pass) and of monitors.
        seconds: Of the whole run.
        step_seconds: Of the median step; None in a report of an older version.
        loss, grad_norm: (step, value), at most 200 evenly spaced steps; None where not finite.
        profiles: Quantity → (step, value) of the whole model; a key of `PROFILED`.
        checkpoint: State from before the first critical alarm, if one was written.
    """

    arm: str
    seed: int
    outcome: str
    final_loss: float | None
    steps: int
    undone: int
    onset: int | None
    first_alarms: dict[str, int]
    leads: dict[str, int]
    alarms: dict[str, int]
    silent: dict[str, str]
    actions: dict[str, int]
    action_seconds: float
    monitor_seconds: float
    seconds: float
    step_seconds: float | None = None
    loss: list[tuple[int, float | None]]
    grad_norm: list[tuple[int, float | None]]
    profiles: dict[str, Curve] = Field(default_factory=dict)
    checkpoint: str | None = None
    trivial_loss: float | None = None
    held_out_loss: float | None = None
    untrained_loss: float | None = None


class ConfirmReport(Document):
    """One run of `rksp confirm`.

    The verdict is the baseline's: *undecided* if no run of any arm failed or learned anything. Two
    runs of the same command differ in times alone: `timings`, `overhead`
    and the fields of a trial that end in `seconds`.

    Attributes:
        target: The model.
        asked: The user's recipe.
        trained: What was run of it.
        prediction_held: Whether the runs ended as predicted; None where they decide nothing.
        conclusions: The sentences that the terminal prints.
        limit: Final loss above which the baseline counts as failed, and the arm that sets it; None
            where it failed by itself, or did not.
    """

    kind: Literal["confirm"] = "confirm"
    target: TargetReport
    asked: Recipe
    trained: Recipe
    faults: list[str]
    prediction: PredictionReport
    prediction_held: bool | None
    verdict: Literal["failed", "trained", "undecided"]
    conclusions: list[str]
    limit: tuple[float, str] | None = None
    arms: list[ArmReport]
    trials: list[TrialReport]
    provenance: dict[str, str | int | float | bool | None]
    timings: dict[str, float]


class ForecastReport(Part):
    """What `rksp score` said of the run by its configuration, before its second step.

    Attributes:
        verdict, probability_failed: As in `rksp.score`.
        rates: Name of a rate -> the rate.
        text: The answer, a line each.
    """

    verdict: str
    probability_failed: float | None
    rates: dict[str, float]
    text: list[str]


class AlarmReport(Part):
    """An alarm of a watched run.

    Attributes:
        step, monitor, layer, severity: When it was raised, by which monitor, of which module.
        text: All of it in a sentence.
        advice: The intervention that the literature uses, or empty.
    """

    step: int
    monitor: str
    layer: str
    severity: Literal["warn", "critical"]
    text: str
    advice: str


Cause = Literal[
    "rate", "warm-up", "decay", "clip", "setting", "precision", "initialization", "labels", "data",
    "script", "optimizer", "unreached", "state", "written", "router", "stall", "attention",
    "weight", "gradient", "product", "passing", "unknown",
]  # fmt: skip


class CauseReport(Part):
    """What caused an alarm.

    Attributes:
        step: The step of the alarm.
        cause: `rate`, `warm-up` (the rate, from the first step at its full value), `decay` (of
            weights), `clip`, `setting` (another one that the script changed), `precision` (a number
            beyond the range or the digits of its type), `initialization`, `labels`, `data` (a
            batch), `script` (its own arithmetic on the loss or in the model), `optimizer` (it
            misses weights or never steps), `unreached` (no gradient comes to weights), `state` (of
            the optimizer, lost), `written` (weights, by something else than the optimizer),
            `router`, `stall` (no step), `attention` (fused attention is not what its inputs give),
            `weight` and `gradient` (one number changed by itself: a flipped bit), `product` (a
            matrix product is wrong each time), `passing` (the step was wrong once, and repeated is
            not) or `unknown`.
        module: Path of the first module, or of the parameter, that is bad; empty where it is none.
        text: What was found and what to do.
    """

    step: int
    cause: Cause
    module: str = ""
    text: str


class WatchReport(Document):
    """One run in the log of `rksp watch`.

    Attributes:
        model: Name of the class of the model.
        parameters: Their number.
        command: The command that trained.
        ranks: Number of processes that trained together.
        ended: How the run ended, a clause.
        conclusions: What happened and what to do, a sentence each.
        forecast: The answer before the run; None where the model had no configuration.
        trial: The run in numbers, as in a report of `rksp confirm`; its profiles are those of all
            quantities, of the worst layer where a layer has one.
        alarms: The alarms, in order.
        causes: What was found when an alarm's step was looked into, in order.
        band: Steps, and the lowest and highest smoothed loss of earlier runs of the same command
            when they had seen as many targets.
        monitors: What each monitor is for, the first to raise an alarm first.
    """

    kind: Literal["watch"] = "watch"
    verdict: Literal["failed", "alarmed", "quiet"]
    model: str
    parameters: int | None
    command: str
    ranks: int
    ended: str
    conclusions: list[str]
    forecast: ForecastReport | None
    trial: TrialReport
    alarms: list[AlarmReport]
    causes: list[CauseReport] = Field(default_factory=list)
    band: list[tuple[int, float, float]] = Field(default_factory=list)
    monitors: dict[str, str] = Field(default_factory=dict)
    provenance: dict[str, str] = Field(default_factory=dict)
