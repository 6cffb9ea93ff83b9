"""The answer in words that the gate and all pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rksp.classifiers.fine_tuning.published import ANY, sort_of
from rksp.documents.answer import (
    Answer,
    CertainFailure,
    Estimate,
    FromPublished,
    Untold,
)
from rksp.ground.model import definite
from rksp.ground.text import percent, short

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport


def answer(report: ScoreReport, risk: Answer) -> str:
    """Return the probability in one line, or a question if the recipe has no learning rate."""
    rate = report.recipe.learning_rate
    if isinstance(risk, Untold):
        return str(risk.verdict)
    if isinstance(risk, FromPublished):
        return published(report, risk)
    if rate is None:
        return "which learning rate is right?"
    at = f"at learning rate {short(rate, 6)}, over {risk.horizon_steps:,} steps"
    return f"{odds(risk)}{diverging(risk)} {at}"


def published(report: ScoreReport, risk: FromPublished) -> str:
    """Say how many runs were published, between which rates, and how far above a rate lies."""
    known, own = risk.published, report.recipe.learning_rate
    size = "" if known.size == ANY else f", {known.size}"
    said = (
        f"{known.runs} published runs of {sort_of(known.objective, known.method)}{size}: "
        f"{rate(known.lowest)} to {rate(known.highest)}"
    )
    if own is not None and own > known.highest:
        return f"{said}; yours is {short(own / known.highest)} times the highest"
    return said if own is None else f"{said}; yours is not above them"


def odds(risk: Estimate | CertainFailure) -> str:
    """Return P(failed) with its interval: `P(failed) 10% [2%, 22%]`, or `P(failed) <1%`."""
    ends = risk.probability_failed_low, risk.probability_failed_high
    shown, low, high = map(percent, map(definite, (risk.probability_failed, *ends)))
    return f"P(failed) {shown}" if low == high else f"P(failed) {shown} [{low}, {high}]"


def diverging(risk: Estimate | CertainFailure) -> str:
    """Return how likely the run diverges, and which ending is likelier; empty if not told."""
    chance = risk.probability_diverged
    ending = f" ({risk.feared})" if risk.feared else ""
    return "" if chance is None else f", P(diverged) {percent(chance)}{ending}"


def margin(report: ScoreReport, risk: Answer) -> str:
    """Say why the verdict is caution; empty for other verdicts."""
    own = report.recipe.learning_rate
    if report.risk_verdict != "caution" or own is None or not isinstance(risk, Estimate):
        return ""
    if own <= risk.do_not_exceed:
        return ""
    return (
        f"P(failed) is below the bar, but the learning rate is {own / risk.do_not_exceed:.1f} "
        "times the one not to exceed."
    )


def rate(value: float | None) -> str:
    """Format a learning rate with two digits; None is `none`."""
    return "none" if value is None else short(value, 2)
