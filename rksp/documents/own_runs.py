"""The documents of past runs: what was read, how it was labelled, and what was learned of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rksp.documents.base import Document, Part
from rksp.recipe import Recipe

Level = Literal["team", "family", "optimizer", "model", "ladder"]


class LearnedReport(Part):
    """How far a team's own runs move an answer.

    Attributes:
        runs, ladders: Runs that count, and ladders among them.
        shares: The most that the scored model has in common with one of them.
        covers: A ladder of the model itself shows its edge, so it is covered whatever it is.
        edge_shift, best_shift: What they add to log10 of the edge and of the best rate.
        edge_range_before, edge_range_after: Factor between the ends of the 90 % range of the edge.
        best_range_before, best_range_after: The same of the best rate.
    """

    runs: int
    ladders: int
    shares: Level
    covers: bool
    edge_shift: float
    best_shift: float
    edge_range_before: float
    edge_range_after: float
    best_range_before: float
    best_range_after: float


class PastRunReport(Part):
    """One past run.

    Attributes:
        name, file: Its tracker's name of it, and where it was read.
        learning_rate: Peak.
        final_loss: Mean over its last tenth, or the last value, in nats; None without one.
        label: By rksp's own rule: diverged, failed, spiked, undertrained or healthy; unfinished or
            unknown where nobody can tell.
        excess: Nats above the best of its ladder.
        said: P(failed) of the shipped model, which saw none of these runs; None where the model is
            not known.
    """

    name: str
    file: str
    learning_rate: float
    final_loss: float | None
    label: str
    excess: float | None
    said: float | None


class PastLadderReport(Part):
    """Past runs alike in all but the rate and the seed; a single one is a ladder of one rate.

    Attributes:
        name: Model, optimizer and what the runs state.
        assumed: Fields of the recipe that no run states, taken from the recipe in question.
        edge: The highest rate from the best one on that trained, and the lowest above it that
            failed; None where there is none.
        best_rate: Of the lowest loss.
        likely_edge, best_said, exceed_said: What the shipped model says: E, S and X.
        edge_error: Decades between the likely edge and the middle of `edge`.
        edge_error_with_others: The same, where rksp knows the other ladders.
        is_inside: Whether `edge` touches the 90 % range of the edge that the shipped model states.
        unused: Why nothing is learned from it, a clause; empty if it counts.
        surprise: How it contradicts the model, the other runs or itself; empty if it does not.
        is_of_tuning: The runs start from trained weights; the model of fine-tuning learns.
        untold: Why rksp cannot tell of this recipe and so says no rate, a clause; empty if it can.
    """

    name: str
    runs: list[PastRunReport]
    assumed: list[str]
    edge: tuple[float | None, float | None]
    best_rate: float | None
    likely_edge: float | None
    best_said: float | None
    exceed_said: float | None = None
    edge_error: float | None
    edge_error_with_others: float | None = None
    is_inside: bool | None
    unused: str
    surprise: str
    is_of_tuning: bool = False
    untold: str = ""


class LeftOutReport(Part):
    """A run that says nothing, and why."""

    name: str
    file: str
    reason: str


class HistoryReport(Part):
    """All past runs that were read.

    Attributes:
        ladders: Ladders first, then single runs.
        left_out: Runs that say nothing.
        ignored: Columns that are neither recipe nor settings of the model.
        doubt: Why nothing at all is learned, a clause; empty if something is.
    """

    ladders: list[PastLadderReport]
    left_out: list[LeftOutReport]
    ignored: list[str]
    doubt: str = ""


class ScorecardReport(Part):
    """How well the shipped model would have predicted past runs that it never saw.

    Attributes:
        runs, failed: Runs that can be judged, and those of them that failed.
        auroc: Chance that a failed run was given a higher P(failed) than one that did not; None
            where all or none failed.
        said: Mean of P(failed), to compare with `failed / runs`.
        ece: Expected calibration error.
        ladders: Those whose edge is known from both sides.
        edge_error, best_error: Median decades; None without such a ladder.
        covered: Share of these edges inside the 90 % range.
        edge_error_with_others: As `edge_error`, when the other ladders are known; None with one.
    """

    runs: int
    failed: int
    auroc: float | None
    said: float
    ece: float | None
    ladders: int
    edge_error: float | None
    best_error: float | None
    covered: float | None
    edge_error_with_others: float | None


class CourseReport(Part):
    """What became of one run that was logged over steps; numbers in the log's own unit.

    Attributes:
        name, file: The run's name, and the log.
        metric: The curve that was judged; of an overfit run that of held-out data.
        records: Values of it.
        outcome: See `rksp.own_runs.course.Fate`.
        first_value, final_value, final_step, best_value, best_step: Of the judged curve; the
            values are None where they are not finite.
        level, ended: The lowest value of the smoothed curve (of a reward the highest), and the
            median of the last twentieth.
        onset_step: Where it went wrong; None where it did not.
        first_mover: loss, grad_norm or held_out_loss; empty where nothing went wrong.
        lead_steps: Steps by which the gradient's norm left its range before the loss.
        learning_rate: The highest that was logged or set; None if nobody says.
        rate_at_onset: The rate logged at the onset.
        told: What happened, a sentence each.
        loss, held_out, grad_norm: The curves, thinned to what a page shows.
    """

    name: str
    file: str
    metric: str
    records: int
    outcome: str
    first_value: float | None
    final_value: float | None
    final_step: float | None
    best_value: float | None
    best_step: float | None
    level: float | None
    ended: float | None
    onset_step: float | None
    first_mover: str
    lead_steps: float | None
    learning_rate: float | None
    rate_at_onset: float | None
    told: list[str]
    loss: list[tuple[float, float | None]] = Field(default_factory=list)
    held_out: list[tuple[float, float | None]] = Field(default_factory=list)
    grad_norm: list[tuple[float, float | None]] = Field(default_factory=list)


class RateReport(Part):
    """What rksp says of a run's learning rate.

    Attributes:
        recipe_from: The file, or what else said the recipe.
        learning_rate: The run's.
        start_here, do_not_exceed, likely_edge, probability_failed: As `rksp score` has them; None
            where it cannot tell.
        findings: What its checks found, a sentence each, the worst first.
    """

    recipe_from: str
    learning_rate: float | None
    start_here: float | None
    do_not_exceed: float | None
    likely_edge: float | None
    probability_failed: float | None
    findings: list[str]


class RunsReport(Document):
    """One run of `rksp why`.

    Attributes:
        verdict: Of one run whether it failed; of many, whether their history can be trusted.
        target: The model in question; None if none was given.
        recipe: Fills in what the runs do not say.
        history: Sweeps of runs whose rates are known; None for a single run.
        scorecard: None where no run can be judged.
        courses: Of the runs that were logged over steps.
        rate: What rksp says of the rate; None where it does not know the model.
        advice: What to do, a sentence each.
        differences: Settings in which a failed run differs from the nearest one that trained:
            the failed run, the other, the setting, and the two values.
    """

    kind: Literal["why"] = "why"
    verdict: Literal["failed", "alarmed", "fine", "cannot tell", "read", "doubtful"]
    target: str | None
    recipe: Recipe
    history: HistoryReport | None
    scorecard: ScorecardReport | None
    courses: list[CourseReport] = Field(default_factory=list)
    rate: RateReport | None = None
    advice: list[str] = Field(default_factory=list)
    differences: list[tuple[str, str, str, str, str]] = Field(default_factory=list)
    provenance: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
