"""The document of a run that `rksp watch` saw."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rksp.documents.base import Document, Part
from rksp.documents.confirm import TrialReport


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
    "rate", "warm-up", "precision", "attention", "data", "weight", "gradient", "product", "passing",
    "unknown",
]  # fmt: skip


class CauseReport(Part):
    """What caused an alarm.

    Attributes:
        step: The step of the alarm.
        cause: `rate`, `warm-up` (the rate, from the first step at its full value), `precision` (a
            number beyond the range of its type), `attention` (fused attention is not what its
            inputs give), `data`, `weight` and `gradient` (one number changed by itself: a flipped
            bit), `product` (a matrix product is wrong each time), `passing` (the step was wrong
            once, and repeated is not) or `unknown`.
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
    provenance: dict[str, str] = Field(default_factory=dict)
