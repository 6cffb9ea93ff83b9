"""Compare the arms with the baseline: counts, Fisher's test, first alarms, and sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import fisher_exact

from rksp.confirm.arms import BASELINE, parse_arm
from rksp.documents.confirm import ArmReport, MonitorReport, PredictionReport, TrialReport
from rksp.ground.model import definite
from rksp.own_runs.outcome import Outcome, OutcomePolicy

LOSS = "loss"  # the monitor that others must beat
_ALIKE = OutcomePolicy().margin  # nats between final losses that a sentence calls the same


def failed_trials(trials: Sequence[TrialReport]) -> set[tuple[str, int]]:
    """Return the (arm, seed) pairs of the runs that failed.

    A run failed by its own outcome, or because it ended worse than a run of its seed at a lower
    rate by the margin of the ladders' policy. A run that ended worse than a run at its own rate or
    a higher one is only behind and did not fail. A run from trained weights also failed if it
    ended, on examples held out, worse than not training at all by that margin.
    """
    failed = {
        (t.arm, t.seed)
        for t in trials
        if Outcome(t.outcome).is_failure or t.final_loss is None or _gained(t, -_margin(t)) is False
    }
    ended = [t for t in trials if (t.arm, t.seed) not in failed]
    return failed | {(t.arm, t.seed) for t in ended if _better(t, ended) is not None}


def _better(trial: TrialReport, others: Sequence[TrialReport]) -> TrialReport | None:
    rate = parse_arm(trial.arm).rate
    below = [t for t in others if t.seed == trial.seed and parse_arm(t.arm).rate < rate]
    best = min(below, key=lambda t: definite(t.final_loss), default=None)
    is_worse = best is not None and definite(trial.final_loss) > (
        definite(best.final_loss) + _margin(trial)
    )
    return best if is_worse else None


def limit(trials: Sequence[TrialReport]) -> tuple[float, str] | None:
    """Return the final loss above which the baseline counts as failed, and what set it.

    None where it failed by itself, or no run at a lower rate is better by the margin.
    """
    others = [t for t in trials if t.final_loss is not None]
    for trial in trials:
        alone = Outcome(trial.outcome).is_failure or trial.final_loss is None
        better = None if trial.arm != BASELINE or alone else _better(trial, others)
        if better is not None:
            return definite(better.final_loss) + _margin(trial), better.arm
    return None


def why_failed(trials: Sequence[TrialReport]) -> str:
    """Return the number by which the first failed run of the baseline failed, as a sentence.

    Empty where none failed.
    """
    failed, policy = failed_trials(trials), OutcomePolicy()
    trial = next((t for t in trials if t.arm == BASELINE and (t.arm, t.seed) in failed), None)
    if trial is None:
        return ""
    at = "" if trial.onset is None else f" at step {trial.onset}"
    run = f"The run of seed {trial.seed}"
    if trial.outcome == Outcome.DIVERGED:
        return (
            f"{run} diverged{at}: its loss passed {policy.max_loss:g} or its gradient norm "
            f"{policy.max_grad_norm:g}, or one was no number."
        )
    if trial.final_loss is None:
        return f"{run} stopped after {trial.steps} steps, without a final loss."
    others = [t for t in trials if t.final_loss is not None]
    if (better := _better(trial, others)) is not None:
        more = trial.final_loss - definite(better.final_loss)
        return (
            f"{run} ended at {trial.final_loss:.2f}, {more:.2f} nats above the same run with "
            f"{better.arm}; the limit is {_margin(trial):.2g}."
        )
    if _gained(trial, -_margin(trial)) is False:
        after, before = definite(trial.held_out_loss), definite(trial.untrained_loss)
        return (
            f"{run} ended {after - before:.2f} nats worse than not training, on examples held "
            f"out; the limit is {_margin(trial):.2g}."
        )
    return (
        f"{run} ended at {trial.final_loss:.2f}, more than {policy.margin:g} nats above where it "
        f"began, or above its own minimum after a spike{at}."
    )


def compare(trials: Sequence[TrialReport]) -> list[ArmReport]:
    """Return one report for each arm, the baseline's first; seeds are paired."""
    failed = failed_trials(trials)
    groups: dict[str, list[TrialReport]] = {BASELINE: []}
    for trial in trials:
        groups.setdefault(trial.arm, []).append(trial)
    return [_report(arm, group, groups[BASELINE], failed) for arm, group in groups.items()]


def _report(
    arm: str,
    group: Sequence[TrialReport],
    baseline: Sequence[TrialReport],
    failed: set[tuple[str, int]],
) -> ArmReport:
    seeds, bad = {t.seed for t in group}, {t.seed for t in group if (arm, t.seed) in failed}
    usual = {t.seed for t in baseline if (BASELINE, t.seed) in failed}
    counts = [(len(bad), len(group) - len(bad)), (len(usual), len(baseline) - len(usual))]
    slower = _step_seconds(group) / _step_seconds(baseline) - 1
    return ArmReport(
        arm=arm,
        runs=len(group),
        failed=len(bad),
        diverged=sum(t.outcome == Outcome.DIVERGED for t in group),
        learned=sum(_learned(t) for t in group),
        p_value=None if arm == BASELINE else float(fisher_exact(counts).pvalue),
        final_loss=_mean([t.final_loss for t in group]),
        held_out_loss=_mean([t.held_out_loss for t in group]),
        untrained_loss=_mean([t.untrained_loss for t in group]),
        saved=len(usual & seeds - bad),
        lost=len(bad - usual),
        overhead=slower if parse_arm(arm).interventions else None,
        monitors=_monitors(group),
    )


def verdict(arms: Sequence[ArmReport]) -> str:
    """Return the baseline's verdict: `failed`, `trained`, or `undecided`.

    The baseline is the first arm. If no run learned more than the frequencies of its labels, the
    runs were too short to show that a rate trains, and the verdict is `undecided`.
    """
    if arms[0].failed:
        return "failed"
    return "trained" if any(arm.learned for arm in arms) else "undecided"


def prediction_held(
    prediction: PredictionReport, arms: Sequence[ArmReport], faults: Sequence[str] = ()
) -> bool | None:
    """Return whether the prediction was on the right side of the threshold.

    The result is None if the prediction or the outcome is not definite, or if a fault was planted,
    because the prediction is for the run without it.
    """
    if faults or prediction.verdict not in ("ok", "risk") or verdict(arms) == "undecided":
        return None
    baseline = arms[0]
    return (prediction.verdict == "risk") == (2 * baseline.failed >= baseline.runs)


def conclude(
    prediction: PredictionReport, arms: Sequence[ArmReport], faults: Sequence[str]
) -> list[str]:
    """Return the conclusions, one sentence each: prediction, first monitor and interventions."""
    baseline, *others = arms
    sentences = [_on_prediction(prediction, arms, faults), _on_monitors(baseline)]
    sentences += [_on_arm(arm, baseline) for arm in others]
    return sentences + _on_held_out(arms)


def _on_prediction(
    prediction: PredictionReport, arms: Sequence[ArmReport], faults: Sequence[str]
) -> str:
    if prediction.probability_failed is None:
        return f"Nothing was predicted: {'; '.join(prediction.reasons)}."
    if verdict(arms) == "undecided":
        if arms[0].untrained_loss is not None:
            return "No run ended better, on examples held out, than not training."
        return "No run learned more than the frequencies of its labels: give more --steps."
    if faults:
        return f"The prediction is for the run without a fault, not with {', '.join(faults)}."
    held = prediction_held(prediction, arms)
    if held is None:
        return "Whether the prediction held cannot be said: the score could not tell."
    return f"The prediction {'held' if held else 'did not hold'}."


def _on_monitors(baseline: ArmReport) -> str:
    loud = [m for m in baseline.monitors if m.runs]
    if not baseline.failed:
        if not loud:
            return "No monitor raised an alarm in the baseline."
        names = ", ".join(f"{m.monitor} ({m.runs} of {baseline.runs})" for m in loud)
        return f"The baseline did not fail, but these monitors raised an alarm: {names}."
    early = [m for m in baseline.monitors if m.lead is not None]
    if not early:
        # A run that ends above its twin at a lower rate may show no failure at any step.
        if not loud:
            return "No monitor saw the failure."
        first = min(loud, key=lambda m: (2 * m.runs <= baseline.failed, m.first_alarm))
        return (
            f"The monitor {first.monitor} raised the first alarm, at step {first.first_alarm:g}; "
            "the loss curve shows the failure only beside that of the lower rate."
        )
    # A monitor that saw most of the failures comes before one that saw a single one earlier.
    first = max(early, key=lambda m: (2 * m.runs > baseline.failed, m.lead))
    loss = next((m.lead for m in early if m.monitor == LOSS), None)
    beside = "" if loss in (None, first.lead) else f"; the loss monitor by {loss:g}"
    order = "before" if definite(first.lead) > 0 else "after"
    distance = f"{abs(first.lead):g} steps {order}" if first.lead else "at the step at which"
    return f"{first.monitor} saw it first, {distance} the loss showed the failure{beside}."


def _on_arm(arm: ArmReport, baseline: ArmReport) -> str:
    if not baseline.failed:
        if not arm.lost:
            return f"{arm.arm} trained too, and {_ending(arm, baseline)}."
        ended = arm.final_loss is not None
        rest = f"; the runs that finished {_ending(arm, baseline)}" if ended else ""
        return (
            f"{arm.arm} failed in {arm.lost} of {arm.runs} runs where the baseline did not{rest}."
        )
    if arm.saved:
        costs = arm.overhead is not None and arm.overhead > 0.01
        cost = f" at {arm.overhead:+.0%} time a step" if costs else ""
        harm = f" and lost {arm.lost}" if arm.lost else ""
        return (
            f"{arm.arm} would have saved {arm.saved} of {baseline.failed} failed runs{harm}{cost}."
        )
    return f"{arm.arm} would not have saved the run."


def _on_held_out(arms: Sequence[ArmReport]) -> list[str]:
    before = arms[0].untrained_loss
    if before is None:
        return []
    ends = []
    for arm in arms:
        if arm.held_out_loss is None:
            ends.append(f"{arm.arm} did not end")
            continue
        more = arm.held_out_loss - before
        ends.append(f"{arm.arm} ended {abs(more):.2f} nats {'worse' if more > 0 else 'better'}")
    return [f"On examples held out, against not training ({before:.2f}): {', '.join(ends)}."]


def _ending(arm: ArmReport, baseline: ArmReport) -> str:
    more = definite(arm.final_loss) - definite(baseline.final_loss)
    if abs(more) <= _ALIKE:
        return "ended as the baseline did"
    return f"ended {abs(more):.2f} nats {'above' if more > 0 else 'below'} the baseline"


def _monitors(group: Sequence[TrialReport]) -> list[MonitorReport]:
    names = sorted({name for t in group for name in (*t.first_alarms, *t.silent)})
    reports = []
    for name in names:
        alarmed = [t for t in group if name in t.first_alarms]
        reports.append(
            MonitorReport(
                monitor=name,
                runs=len(alarmed),
                first_alarm=_median([t.first_alarms[name] for t in alarmed]),
                lead=_median([t.leads[name] for t in alarmed if name in t.leads]),
                silent=next((t.silent[name] for t in group if name in t.silent), None),
            )
        )
    return reports


def _margin(trial: TrialReport) -> float:
    return OutcomePolicy().of_labels(trial.trivial_loss).margin


def _learned(trial: TrialReport) -> bool:
    """Return whether a run beat not training, or else the trivial loss by the margin.

    True if neither is known.
    """
    if trial.final_loss is None:
        return False
    if (gained := _gained(trial, 0.0)) is not None:
        return gained
    return trial.trivial_loss is None or trial.final_loss < trial.trivial_loss - _margin(trial)


def _gained(trial: TrialReport, least: float) -> bool | None:
    """Return whether training lowered the loss held out by more than `least` nats, if it is known.

    A loss that is not finite has not fallen.
    """
    if trial.untrained_loss is None:
        return None
    after = math.inf if trial.held_out_loss is None else trial.held_out_loss
    return trial.untrained_loss - after > least


def _step_seconds(group: Sequence[TrialReport]) -> float:
    return statistics.median(
        t.seconds / t.steps if t.step_seconds is None else t.step_seconds for t in group
    )


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
