"""Read the log of `rksp watch`: what its last run came to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from rksp.confirm.trial import CURVE_POINTS, sum_up
from rksp.documents.confirm import (
    AlarmReport,
    CauseReport,
    Curve,
    ForecastReport,
    TrialReport,
    WatchReport,
)
from rksp.ground.errors import InputError
from rksp.ground.text import short
from rksp.own_runs.outcome import Curves
from rksp.watch.attach.lines import Began, Ended, Stopped, line_of
from rksp.watch.attach.past import Past, past_runs, siblings
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import read_lines, said, worst
from rksp.watch.registry import MONITORS
from rksp.watch.training.loop import RunRecord, judge_alone

_ABSORBED = ("rate", "warm-up", "data", "passing")  # causes of a spike that an intervention bounds
T = TypeVar("T")


def watched_run(path: Path) -> WatchReport:
    """Return the report of the last run in a log; one that was killed has no end.

    Raises:
        InputError: The file cannot be read, or holds no step.
        ArtifactError: A line is not one of such a log.
    """
    records: list[object] = []
    for one in read_lines(path, line_of):
        if isinstance(one, Began):
            records.clear()
        records.append(one)
    began, readings = _last(records, Began), _of(records, Reading)
    if not readings or began is None:
        raise InputError(f"{path} holds no step of a run; give the log of rksp watch.")
    report = _reported(began, records, readings)
    return report.model_copy(update={"band": _band(past_runs(path))})


def _last(records: Sequence[object], kind: type[T]) -> T | None:
    return next(iter(_of(records[::-1], kind)), None)


def _of(records: Iterable[object], kind: type[T]) -> list[T]:
    return [one for one in records if isinstance(one, kind)]


def _band(runs: Sequence[Past]) -> list[tuple[int, float, float]]:
    *before, last = runs
    others = siblings(before, last.began)
    found = []
    for step in range(0, len(last.seen), -(-len(last.seen) // CURVE_POINTS) or 1):
        at = [loss for one in others if (loss := one.at(last.seen[step])) is not None]
        if at:
            found.append((step, min(at), max(at)))
    return found


def _reported(run: Began, records: Sequence[object], readings: Sequence[Reading]) -> WatchReport:
    alarms, causes = _of(records, Alarm), _of(records, CauseReport)
    forecast = next(iter(_of(records, ForecastReport)), None)
    steps = 1 + max(reading.step for reading in readings)
    loss = _series(readings, "loss", steps)
    is_unknown = np.isnan(loss) & ~(_series(readings, "non_finite_loss", steps) >= 1)
    curves = Curves(
        loss=_filled(loss, is_unknown),
        grad_norm=np.nan_to_num(_series(readings, "gradient_norm", steps), nan=0.0),
        planned_steps=steps,  # what was trained is judged, not what was not
    )
    outcome, ended = judge_alone(curves), _last(records, Ended) or Ended()
    seconds = ended.seconds or 0.0
    record = RunRecord(
        curves=curves,
        outcome=outcome,
        readings=tuple(readings),
        alarms=tuple(alarms),
        silent=ended.silent or run.silent,
        seconds=seconds,
        step_seconds=seconds / steps,
    )
    trial = sum_up(record, "the run", 0)
    points = [(step, None if is_unknown[step] else value) for step, value in trial.loss]
    final = None if is_unknown.all() else trial.final_loss
    update = {"profiles": _curves(readings), "loss": points, "final_loss": final}
    trial = trial.model_copy(update=update)
    return WatchReport(
        verdict="failed" if outcome.is_failure else "alarmed" if alarms else "quiet",
        model=run.model,
        parameters=run.parameters,
        command=run.command,
        ranks=run.ranks,
        ended=_ended(ended, _last(records, Stopped)),
        conclusions=_conclusions(trial, alarms, causes, forecast),
        forecast=forecast,
        trial=trial,
        alarms=[
            AlarmReport.of(alarm, severity=alarm.severity.value, text=said(alarm))
            for alarm in alarms
        ],
        causes=causes,
        monitors=_purposes(readings, alarms),
        provenance=run.model_dump(include={"rksp", "torch"}, exclude_none=True),
    ).finite()


def _purposes(readings: Sequence[Reading], alarms: Sequence[Alarm]) -> dict[str, str]:
    names = dict.fromkeys([one.monitor for one in alarms] + [one.monitor for one in readings])
    known = {name: MONITORS[name].__doc__ for name in names if name in MONITORS}
    return {name: (text or "").partition("\n\n")[0] for name, text in known.items()}


def _ended(ended: Ended, stopped: Stopped | None) -> str:
    if stopped is not None:
        return f"rksp {stopped.reason}"
    if ended.seconds is None:
        return f"the run {ended.killed or 'was killed, or still runs'}"
    return f"the run raised {ended.crash}" if ended.crash else "the run finished"


def _conclusions(
    trial: TrialReport,
    alarms: Sequence[Alarm],
    causes: Sequence[CauseReport],
    forecast: ForecastReport | None,
) -> list[str]:
    first = f"The first alarm, at step {alarms[0].step}: {said(alarms[0])}." if alarms else ""
    found = [first or "No monitor raised an alarm."]
    if all(value is None for _, value in trial.loss) and trial.onset is None:
        found.append("No loss was seen: the script calls backward on none.")
    elif trial.onset is not None:
        found.append(f"The loss shows a failure from step {trial.onset} on.")
    elif not any(alarm.monitor in ("expected", "loss") for alarm in alarms):
        found.append("The loss by itself shows no failure.")
    known = [one for one in causes if one.cause != "unknown"]
    for one in list({one.cause: one for one in reversed(known)}.values())[::-1]:
        why = f"{one.text[:1].upper()}{one.text[1:]}."
        found.append(f"A cause, as step {one.step} shows: {one.cause}. {why}")
    cause = known[0] if known else None
    if cause is not None and cause.text.endswith("raise the learning rate"):
        return found  # nothing broke that an earlier state or an intervention would mend
    troubles = [step for step in (trial.onset, *(a.step for a in alarms[:1])) if step is not None]
    if troubles and cause is not None and cause.cause in ("rate", "warm-up"):
        start = (forecast.rates if forecast else {}).get("start_here")
        rate = "a lower learning rate" if start is None else f"{short(start, 2)} or less"
        found.append(f"Go back to a state from before step {min(troubles)} and train on at {rate}.")
    advice = next((alarm.advice for alarm in alarms if alarm.advice not in ("", "backoff")), "")
    if advice and (cause is None or cause.cause in _ABSORBED):
        how = "--on-alarm shape" if advice == "update_bound" else f'interventions=["{advice}"]'
        found.append(f"{advice} can absorb such a spike ({how}).")
    return found


def _series(readings: Iterable[Reading], quantity: str, steps: int) -> np.ndarray:
    found = np.full(steps, np.nan, dtype=np.float32)
    for reading in readings:
        if reading.quantity == quantity:
            found[reading.step] = min(max(reading.value, -3e38), 3e38)
    return found


def _filled(loss: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
    known = np.flatnonzero(~is_unknown)
    if not len(known):
        return np.zeros_like(loss)  # which no rule takes for a failure
    last = np.searchsorted(known, np.arange(len(loss)), "right") - 1
    return loss[known[np.maximum(last, 0)]]


def _curves(readings: Sequence[Reading]) -> dict[str, Curve]:
    groups: dict[str, dict[int, list[Reading]]] = {}
    for one in readings:
        if math.isfinite(one.value):
            steps = groups.setdefault(f"{one.monitor}: {one.quantity}", {})
            steps.setdefault(one.step, []).append(one)
    found = {}
    for name, steps in groups.items():
        every = -(-len(steps) // CURVE_POINTS)
        found[name] = [(step, worst(steps[step])) for step in sorted(steps)[::every]]
    return found
