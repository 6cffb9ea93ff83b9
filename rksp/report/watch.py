"""The page of a watched run: its loss, its alarms, its forecast, and every quantity."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.documents.watch import WatchReport
from rksp.ground.flags import count
from rksp.report.blocks import (
    Block,
    Code,
    Command,
    Figure,
    Notes,
    Numbers,
    Section,
    Sentence,
    Table,
    Title,
    Verdict,
    Words,
)
from rksp.report.confirm import loss_curves, profile, side_by_side
from rksp.report.score import figures

_MOST_ALARMS = 100  # JSON holds all of them
_WORDS = {
    "failed": ("risk", "The run failed"),
    "alarmed": ("doubtful", "The run raised alarms"),
    "quiet": ("ok", "The run raised no alarm"),
}
_LOSS = (
    "Dashed lines mark the first alarm of each monitor. A ring marks the step at which the loss "
    "begins to show a failure."
)


def blocks(report: WatchReport) -> list[Block]:
    """Return the blocks of the page."""
    number = Numbers(report)
    size = f"{count(report.parameters)} parameters; " if report.parameters else ""
    ranks = f" on {report.ranks} ranks" if report.ranks > 1 else ""
    about = (size, number("trial/steps", ",d"), f" steps{ranks}; {report.ended}")
    tone, headline = _WORDS[report.verdict]
    return [
        Title(eyebrow="rksp watch", name=report.model, about=about),
        Verdict(
            word=report.verdict.upper(),
            tone=tone,
            headline=headline,
            blocks=[Sentence(said) for said in report.conclusions],
        ),
        *_alarms(report, number),
        *_curves(report),
        Section("Provenance", [Command(report.command)], is_record=True),
    ]


def _alarms(report: WatchReport, number: Numbers) -> Iterator[Block]:
    rows: list[list[Words]] = [
        [number(f"alarms/{i}/step", ",d"), Code(one.monitor), Code(one.layer or "–"), one.text]
        for i, one in enumerate(report.alarms[:_MOST_ALARMS])
    ]
    if rows:
        head = ("Step", "Monitor", "Module", "Alarm")
        yield Section("Alarms", [Table(head, rows, narrow=("Step", "Alarm"))])
    looked = [
        [number(f"causes/{i}/step", ",d"), one.cause, Code(one.module or "–"), one.text]
        for i, one in enumerate(report.causes)
    ]
    if looked:
        head = ("Step", "Cause", "Module", "What was found")
        yield Section("Causes", [Table(head, looked, narrow=("Step", "What was found"))])
    if report.forecast is not None:
        yield Section("Forecast", [Sentence(line.strip()) for line in report.forecast.text])


def _curves(report: WatchReport) -> Iterator[Block]:
    hues = {report.trial.arm: 0}
    drawn = figures.panel(
        ("wide", loss_curves([report.trial], hues, width=920, height=340)),
        ("narrow", loss_curves([report.trial], hues, width=350, height=290)),
    )
    yield Figure(title="Loss", hint=_LOSS, drawing=drawn)
    curves = report.trial.profiles.items()
    parts = [(name, profile(name, [("", c)], {"": 0})) for name, c in curves if len(c) > 1]
    hint = "Of the whole model, or of its worst layer at each step."
    yield Figure(title="All quantities", hint=hint, drawing=side_by_side(parts))
    silent = [f"{name} did not measure: {why}" for name, why in report.trial.silent.items()]
    if silent:
        yield Notes(silent)
