"""The page of a confirmation: the run, the arms, and the first alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from markupsafe import Markup

from rksp.documents.confirm import PROFILED, ConfirmReport, Curve, TrialReport
from rksp.ground.flags import count
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.recipe_files.said.origin import shown
from rksp.report import blocks as page
from rksp.report import svg
from rksp.report.score import figures

_HUES = 6  # colors of arms in the style sheet; further arms take them again
_MOST_ALARMS = 8  # monitors marked above the curves
_CEILING = 3.0  # times the highest first loss: above it curves run along the top
_HEADLINES = {
    "failed": "The recipe failed",
    "trained": "The recipe trained",
    "undecided": "Too few steps to tell",
}
_LOSS = (
    "The loss of every run; those that failed are red. Dashed lines mark the first alarm of each "
    "monitor in the runs of {}. Rings mark the step at which the loss begins to show a failure, or "
    "the end of a run that failed by ending too high: above the dotted line."
)
_PROFILES = (
    "The whole model over the steps at which the monitors read it: the mean over blocks of "
    "near-unit mass, the geometric mean over matrices of stable rank, and the mean over layers of "
    "the lowest head’s effective rank."
)
_ARMS = (
    "All arms share the same seeds and batches. Saved: seeds for which {} failed and the arm did "
    "not. Lost: the reverse. Fisher’s test compares the numbers of failures. Held out: the loss on "
    "examples that no run trained on."
)
_ALARMS = (
    "The monitors in the runs of {}. The lead is the number of steps by which the alarm came "
    "before the loss showed the failure."
)


def blocks(report: ConfirmReport) -> list[page.Block]:
    """Return the blocks of the page."""
    number = page.Numbers(report)
    return [
        _title(report, number),
        _verdict(report, number),
        *_curves(report),
        _arms(report, number),
        *_alarms(report, number),
        page.provenance(report, number),
        _trained(report),
    ]


def _title(report: ConfirmReport, number: page.Numbers) -> page.Title:
    size = report.target.parameters
    faults = ("; planted faults: ", page.Code(", ".join(report.faults))) if report.faults else ()
    return page.Title(
        eyebrow="rksp confirm",
        name=report.target.name,
        about=(
            f"{count(size)} parameters; " if size else "",
            *(number("trained/max_steps", ",d"), " of ", number("asked/max_steps", ",d")),
            *(" steps at learning rate ", number("trained/learning_rate", digits=6)),
            *(f", {report.trained.optimizer}", *faults, "."),
        ),
    )


def _verdict(report: ConfirmReport, number: page.Numbers) -> page.Verdict:
    guess, gauge = report.prediction, None
    told: page.Words = "; ".join(guess.reasons) or "not assessed"
    if guess.probability_failed is not None:
        gauge = figures.gauge(guess.probability_failed, guess.low, guess.high, guess.threshold)
        ends = (number(f"prediction/{end}", page.PERCENT) for end in ("low", "high"))
        told = ("from ", next(ends), " to ", next(ends))
    rows: page.Rows = [
        ["Predicted P(failed)", number("prediction/probability_failed", page.PERCENT), told],
        ["Do not exceed", number("prediction/do_not_exceed", digits=2), "as predicted"],
    ]
    head = ("", "Value", "Meaning")
    return page.Verdict(
        verdict=report.verdict,
        headline=_HEADLINES[report.verdict],
        odds=("runs failed", (number("arms/0/failed"), " of ", number("arms/0/runs"))),
        gauge=gauge,
        blocks=[*map(page.Sentence, report.conclusions), page.Table(head, rows, look="figures")],
    )


def _curves(report: ConfirmReport) -> Iterator[page.Block]:
    first = report.arms[0].arm
    hues = {arm.arm: index % _HUES for index, arm in enumerate(report.arms)}
    limits = {first: report.limit}
    trained = {one.arm for one in report.trials if not _is_lost(one, limits.get(one.arm))}
    key = Markup('<span><i class="arm{}{}"></i>{}</span>')
    told = (key.format(hue, "" if arm in trained else " lost", arm) for arm, hue in hues.items())
    legend = Markup().join(told)
    drawn = figures.panel(partial(loss_curves, report.trials, hues, bar=report.limit), 340, 290)
    yield page.Figure(
        title="Loss",
        hint=_LOSS.format(first) + cut(report.trials),
        drawing=Markup('<p class="keys">{}</p>').format(legend) + drawn,
    )
    if figure := profiles(report.trials, hues):
        yield page.Figure(title="Profiles", hint=_PROFILES, drawing=figure)


def _arms(report: ConfirmReport, number: page.Numbers) -> page.Section:
    before = report.arms[0].untrained_loss
    head = ["Arm", "Failed", "Diverged", "Fisher p", "Final loss", "Held out"]
    head += ["Saved", "Lost", "Time a step"]
    rows: page.Rows = []
    if before is not None:
        held = number("arms/0/untrained_loss", ".3f")
        rows.append(["not training", *["–"] * 4, held, *["–"] * 3])
    for i, arm in enumerate(report.arms):
        changed = [number(f"arms/{i}/saved"), number(f"arms/{i}/lost")] if i else ["–", "–"]
        rows.append(
            [
                *(page.Code(arm.arm), (number(f"arms/{i}/failed"), "/", number(f"arms/{i}/runs"))),
                number(f"arms/{i}/diverged"),
                page.MISSING if arm.p_value == 1 else number(f"arms/{i}/p_value", ".2g"),
                *(number(f"arms/{i}/final_loss", ".3f"), number(f"arms/{i}/held_out_loss", ".3f")),
                *(*changed, number(f"arms/{i}/overhead", "+.0%")),
            ]
        )
    if before is None:
        rows = [row[:5] + row[6:] for row in rows]
        head.remove("Held out")
    return page.Section("Arms", [page.Table(head, rows)], hint=_ARMS.format(report.arms[0].arm))


def _alarms(report: ConfirmReport, number: page.Numbers) -> Iterator[page.Block]:
    """Yield the monitors that raised an alarm, the longest lead first, and why others did not."""
    first = report.arms[0]
    loud = [(i, one) for i, one in enumerate(first.monitors) if one.runs]
    loud.sort(key=lambda pair: (pair[1].lead is None, -(pair[1].lead or 0.0), pair[1].first_alarm))
    rows: page.Rows = [
        [
            *(page.Code(one.monitor), (number(f"arms/0/monitors/{i}/runs"), f"/{first.runs}")),
            *(
                number(f"arms/0/monitors/{i}/first_alarm"),
                number(f"arms/0/monitors/{i}/lead", "+g"),
            ),
        ]
        for i, one in loud
    ]
    silent = {one.monitor: one.silent for one in first.monitors if one.silent}
    if rows:
        head = ("Monitor", "Alarmed in", "First alarm", "Lead over the loss")
        yield page.Section("First alarms", [page.Table(head, rows)], hint=_ALARMS.format(first.arm))
    if notes := [*report.target.notes, *silences(silent)]:
        yield page.Notes(notes)


def silences(silent: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason that monitors did not measure: name -> reason."""
    names: dict[str, list[str]] = {}
    for name, why in silent.items():
        names.setdefault(why, []).append(name)
    return [f"{', '.join(those)} did not measure: {why}." for why, those in names.items()]


def _trained(report: ConfirmReport) -> page.Section:
    used = {n: v for n, v in report.trained if v is not None and v != ()}
    table = page.Table(("Field", "Value"), [(name, shown(value)) for name, value in used.items()])
    return page.Section("The recipe that was trained", [table], folds="page", is_record=True)


def loss_curves(
    trials: Sequence[TrialReport],
    hues: dict[str, int],
    *,
    width: float,
    height: float,
    bar: tuple[float, str] | None = None,
    band: Sequence[tuple[int, float, float]] = (),
) -> Markup:
    """Draw the loss of every run by arm, and the first alarms of the first arm's runs.

    A curve ends where the run did. A step without a finite loss leaves a gap. A ring marks where
    the loss begins to show a failure. `height` is that of the plot without the marks above it;
    `bar` is the final loss that fails, and the arm that sets it; `band` holds steps, and the lowest
    and highest losses of other runs.
    """
    known = [loss for trial in trials for _, loss in trial.loss if loss is not None]
    if not known:
        return svg.drawing(width, 40, "No run has a finite loss.")
    low = min([*known, *(lowest for _, lowest, _ in band)])
    high = _ceiling(trials) or max(known)
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
    parts = [svg.axes(across, up, "step", most=8 if width > 600 else 4), *lines]
    if band:
        upper = [(across(step), up(min(most, high))) for step, _, most in band]
        lower = [(across(step), up(min(least, high))) for step, least, _ in band]
        parts.append(svg.band(upper, lower, "band"))
    if bar is not None:
        y = up(bar[0])
        parts.append(svg.line(across.start, y, across.end, y, "bar"))
        said = f"fails above {bar[0]:.3g}, by {bar[1]}"
        parts.append(svg.text(across.start + 6, y + 14, said, "tick clear"))
    for trial in reversed(trials):  # the first arm on top
        css = f"arm{hues[trial.arm]}"
        is_lost = _is_lost(trial, bar if trial.arm == first_arm else None)
        for run in svg.unbroken(trial.loss):
            points = [(across(step), up(loss)) for step, loss in run]
            parts.append(svg.polyline(points, f"run {css}{' lost' * is_lost}"))
        over = [across(step) for step, loss in trial.loss if loss is None or loss > high]
        parts.append(svg.off_scale(over, top, f"off {css}"))
        if is_lost and bar is not None and trial.final_loss is not None:
            title = f"{trial.arm}, seed {trial.seed}: ended at {trial.final_loss:.3g}"
            end = across(max(step for step, _ in trial.loss)), up(trial.final_loss)
            parts.append(svg.circle(*end, 5, f"onset {css} lost", title))
        shown = [loss for step, loss in trial.loss if step <= (trial.onset or -1) and loss]
        if shown:
            title = f"{trial.arm}, seed {trial.seed}: failing from step {trial.onset}"
            parts.append(
                svg.circle(across(definite(trial.onset)), up(shown[-1]), 5, f"onset {css}", title)
            )
    label = "Loss of every run by step"
    return svg.drawing(width, bottom + 44, label, *parts)


def _is_lost(trial: TrialReport, bar: tuple[float, str] | None) -> bool:
    """Tell whether a run failed: by itself, or by ending above the loss that another arm sets."""
    if trial.outcome in ("diverged", "failed"):
        return True
    return bar is not None and trial.final_loss is not None and trial.final_loss > bar[0]


def cut(trials: Sequence[TrialReport]) -> str:
    """Say what is off the scale of `loss_curves`; empty for nothing."""
    ceiling = _ceiling(trials)
    return "" if ceiling is None else f" Triangles mark losses above {short(ceiling)}."


def profiles(trials: Sequence[TrialReport], hues: dict[str, int]) -> Markup:
    """Draw every profile that has at least two points in a run; empty where none has."""
    found = (
        (title, [(t.arm, t.profiles[name]) for t in trials if len(t.profiles.get(name, ())) > 1])
        for name, title in PROFILED.items()
    )
    return side_by_side([(title, profile(title, c, hues)) for title, c in found if c])


def side_by_side(drawn: Sequence[tuple[str, Markup]]) -> Markup:
    """Put drawings with their titles beside each other; empty without any."""
    figure = Markup('<figure class="panel"><figcaption>{}</figcaption>{}</figure>')
    parts = Markup().join(figure.format(title, drawing) for title, drawing in drawn)
    return parts and Markup('<div class="profiles">{}</div>').format(parts)


def profile(title: str, curves: Sequence[tuple[str, Curve]], hues: dict[str, int]) -> Markup:
    """Draw the curves of one quantity, by arm."""
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
    axes = svg.axes(across, up, "step", most=4)
    return svg.drawing(width, height, f"{title} of every run by step", axes, *lines)


def _ceiling(trials: Sequence[TrialReport]) -> float | None:
    """Return the loss at which curves are cut off, so that one run does not flatten the rest."""
    first = [trial.loss[0][1] for trial in trials if trial.loss and trial.loss[0][1] is not None]
    known = [loss for trial in trials for _, loss in trial.loss if loss is not None]
    limit = _CEILING * max(first, default=float("inf"))
    return limit if max(known, default=0.0) > limit > 0 else None


def _first_alarms(trials: Sequence[TrialReport]) -> list[tuple[str, int]]:
    first: dict[str, int] = {}
    for trial in trials:
        for monitor, step in trial.first_alarms.items():
            first[monitor] = min(step, first.get(monitor, step))
    return sorted(first.items(), key=lambda item: (item[1], item[0]))[:_MOST_ALARMS]
