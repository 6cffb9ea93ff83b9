"""The HTML page of a confirmation: the run, the arms, and the first alarms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from rksp.documents.confirm import PROFILED, Curve
from rksp.ground.model import definite
from rksp.report import svg
from rksp.report.pages import page
from rksp.report.score import figures

if TYPE_CHECKING:
    from rksp.documents.confirm import ArmReport, ConfirmReport, TrialReport

_HUES = 6  # colors of arms in the style sheet; further arms take them again
_MOST_ALARMS = 8  # monitors marked above the curves
_CEILING = 3.0  # times the highest first loss: above it curves run along the top


def render(report: ConfirmReport) -> str:
    """Render a page like a score's, with the confirmation's JSON inside."""
    hues = {arm.arm: index % _HUES for index, arm in enumerate(report.arms)}
    baseline, guess = report.arms[0], report.prediction
    watched = sorted(
        (monitor for monitor in baseline.monitors if monitor.runs),
        key=lambda monitor: (monitor.lead is None, -(monitor.lead or 0.0), monitor.monitor),
    )
    curves = [
        (css, loss_curves(report.trials, hues, width=width, height=height))
        for css, width, height in (("wide", 920, 340), ("narrow", 350, 290))
    ]
    gauge = None
    if guess.probability_failed is not None:
        gauge = figures.gauge(
            guess.probability_failed, definite(guess.low), definite(guess.high), guess.threshold
        )
    return page(
        "confirm.html.j2",
        json.loads(report.to_json()),
        report=report,
        version=report.provenance.get("rksp", ""),
        hues=hues,
        curves=curves,
        ceiling=_ceiling(report.trials),
        profiles=profiles(report.trials, hues),
        gauge=gauge,
        positions={m.monitor: i for i, m in enumerate(baseline.monitors)},
        watched=watched,
        silent=_silent(report.arms),
    )


def loss_curves(
    trials: Sequence[TrialReport], hues: dict[str, int], *, width: float, height: float
) -> Markup:
    """Draw the loss of every run by arm, and the first alarms of the first arm's runs.

    A curve ends where the run did. A step without a finite loss leaves a gap. A ring marks where
    the loss begins to show a failure. `height` is that of the plot without the marks above it.
    """
    known = [loss for trial in trials for _, loss in trial.loss if loss is not None]
    if not known:
        return svg.drawing(width, 40, "No run has a finite loss.")
    low, high = min(known), _ceiling(trials) or max(known)
    spare = 0.05 * (high - low) or 0.5
    last = max(step for trial in trials for step, _ in trial.loss)
    first_arm = next(iter(hues))
    alarms = _first_alarms([trial for trial in trials if trial.arm == first_arm])
    top = 14 + svg.FLAG * len(alarms)
    bottom = top + height - 58
    across = svg.Scale(low=0, high=max(1, last), start=46, end=width - 14)
    up = svg.Scale(low=low - spare, high=high + spare, start=bottom, end=top)
    flags = [(f"{monitor}, step {step}", "alarm", across(step)) for monitor, step in alarms]
    lines = svg.flags(flags, across.end, bottom)
    parts = [svg.axes(across, up, "step", ".3g", most=8 if width > 600 else 4), *lines]
    for trial in reversed(trials):  # the first arm on top
        css = f"arm{hues[trial.arm]}"
        for run in _unbroken(trial.loss):
            points = [(across(step), up(loss)) for step, loss in run]
            parts.append(svg.polyline(points, f"run {css}"))
        shown = [loss for step, loss in trial.loss if step <= (trial.onset or -1) and loss]
        if shown:
            title = f"{trial.arm}, seed {trial.seed}: failing from step {trial.onset}"
            parts.append(
                svg.circle(across(definite(trial.onset)), up(shown[-1]), 5, f"onset {css}", title)
            )
    label = "Loss of every run by step"
    return svg.drawing(width, bottom + 44, label, *parts)


def profiles(trials: Sequence[TrialReport], hues: dict[str, int]) -> list[tuple[str, Markup]]:
    """Draw every profile that has at least two points in a run: (its name, the curves by arm)."""
    drawn = []
    for name, title in PROFILED.items():
        curves = [(t.arm, t.profiles[name]) for t in trials if len(t.profiles.get(name, ())) > 1]
        if curves:
            drawn.append((title, profile(title, curves, hues)))
    return drawn


def profile(title: str, curves: Sequence[tuple[str, Curve]], hues: dict[str, int]) -> Markup:
    """Draw the curves of one quantity, an arm each."""
    width, height = 350, 220
    values = [value for _, curve in curves for _, value in curve]
    spare = 0.05 * (max(values) - min(values)) or 0.05 * abs(max(values)) or 0.5
    last = max(step for _, curve in curves for step, _ in curve)
    across = svg.Scale(low=0, high=last, start=46, end=width - 14)
    up = svg.Scale(low=min(values) - spare, high=max(values) + spare, start=height - 44, end=14)
    lines = [
        svg.polyline([(across(step), up(value)) for step, value in curve], f"run arm{hues[arm]}")
        for arm, curve in reversed(curves)
    ]
    axes = svg.axes(across, up, "step", ".3g", most=4)
    return svg.drawing(width, height, f"{title} of every run by step", axes, *lines)


def _ceiling(trials: Sequence[TrialReport]) -> float | None:
    """Return the loss at which curves are cut off, so that one run does not flatten the rest."""
    first = [trial.loss[0][1] for trial in trials if trial.loss and trial.loss[0][1] is not None]
    known = [loss for trial in trials for _, loss in trial.loss if loss is not None]
    limit = _CEILING * max(first, default=float("inf"))
    return limit if max(known, default=0.0) > limit > 0 else None


def _first_alarms(trials: Sequence[TrialReport]) -> list[tuple[str, int]]:
    """Return each monitor's earliest alarm over the runs, earliest first."""
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


def _silent(arms: Sequence[ArmReport]) -> dict[str, list[str]]:
    """Map each reason to the monitors that did not measure because of it."""
    found: dict[str, list[str]] = {}
    for monitor in sorted({(m.silent, m.monitor) for a in arms for m in a.monitors if m.silent}):
        found.setdefault(monitor[0], []).append(monitor[1])
    return found
