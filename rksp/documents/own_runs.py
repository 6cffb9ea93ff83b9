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
        likely_edge, best_said: What the shipped model says.
        edge_error: Decades between the likely edge and the middle of `edge`.
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
    edge_error: float | None
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


class RunsReport(Document):
    """One run of `rksp runs`.

    Attributes:
        target: The model in question; None if none was given.
        recipe: Fills in what the runs do not say.
        history: What was read.
        scorecard: None where no run can be judged.
    """

    kind: Literal["runs"] = "runs"
    verdict: Literal["read", "doubtful"]
    target: str | None
    recipe: Recipe
    history: HistoryReport
    scorecard: ScorecardReport | None
    provenance: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
