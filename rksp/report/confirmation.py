"""The HTML page of a confirmation: what was trained, what each arm did, who saw it first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from rksp.report import svg
from rksp.report.html import page

if TYPE_CHECKING:
    from rksp.confirm.schema import ConfirmReport
    from rksp.confirm.trial import TrialReport

_HUES = 6  # colors of arms in the style sheet; further arms take them again
_MOST_ALARMS = 8  # monitors marked above the curves


def render(report: ConfirmReport) -> str:
    """One file like a score's, with the confirmation inside for machines."""
    hues = {arm.arm: index % _HUES for index, arm in enumerate(report.arms)}
    watched = sorted(
        (monitor for monitor in report.arms[0].monitors if monitor.runs),
        key=lambda monitor: (monitor.lead is None, -(monitor.lead or 0.0), monitor.monitor),
    )
    curves = [
        (css, loss_curves(report.trials, hues, width=width, height=height))
        for css, width, height in (("wide", 920, 380), ("narrow", 350, 330))
    ]
    return page(
        "confirm.html.j2",
        json.loads(report.to_json()),
        report=report,
        version=report.provenance.get("rksp", ""),
        hues=hues,
        curves=curves,
        positions={m.monitor: i for i, m in enumerate(report.arms[0].monitors)},
        watched=watched,
        silent={m.monitor: m.silent for arm in report.arms for m in arm.monitors if m.silent},
    )


def loss_curves(
    trials: Sequence[TrialReport], hues: dict[str, int], *, width: float, height: float
) -> Markup:
    """Loss of every run, colored by arm; first alarms of the first arm's runs as marks on top.

    A curve ends where the run did; a step without a finite loss leaves a gap.
    """
    known = [loss for trial in trials for _, loss in trial.loss if loss is not None]
    if not known:
        return svg.drawing(width, 40, "No run has a finite loss.")
    low, high = min(known), max(known)
    spare = 0.05 * (high - low) or 0.5
    last = max(step for trial in trials for step, _ in trial.loss)
    first_arm = next(iter(hues))
    marks = _first_alarms([trial for trial in trials if trial.arm == first_arm])
    top = 14 + 17 * len(marks)
    across = svg.Scale(low=0, high=max(1, last), start=46, end=width - 14)
    up = svg.Scale(low=low - spare, high=high + spare, start=height - 44, end=top)
    parts = [svg.axes(across, up, "step", ".3g", most=8 if width > 600 else 4)]
    for trial in trials:
        for run in _unbroken(trial.loss):
            points = [(across(step), up(loss)) for step, loss in run]
            parts.append(svg.polyline(points, f"run arm{hues[trial.arm]}"))
        if trial.onset is not None:
            x = across(trial.onset)
            parts.append(svg.line(x, up.start - 9, x, up.start + 5, "mark edge"))
    for row, (monitor, step) in enumerate(marks):
        x, y = across(step), 12 + 17 * row
        anchor, shift = ("end", -6) if x > across.end - 150 else ("start", 6)
        parts.append(svg.line(x, y - 8, x, up.start, "alarm"))
        parts.append(svg.text(x + shift, y, f"{monitor} {step}", "label alarmed", anchor))
    return svg.drawing(width, height, "Loss of every run against the step", *parts)


def _first_alarms(trials: Sequence[TrialReport]) -> list[tuple[str, int]]:
    """The earliest first alarm of each monitor over the runs, earliest first."""
    first: dict[str, int] = {}
    for trial in trials:
        for monitor, step in trial.first_alarms.items():
            first[monitor] = min(step, first.get(monitor, step))
    return sorted(first.items(), key=lambda item: (item[1], item[0]))[:_MOST_ALARMS]


def _unbroken(curve: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for step, value in curve:
        if value is not None:
            runs[-1].append((step, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
