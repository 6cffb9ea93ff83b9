"""The drawings of `rksp why`: one run's curves, and the losses of sweeps over the rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from rksp.documents.own_runs import CourseReport, PastLadderReport
from rksp.ground.text import short
from rksp.report import blocks as page
from rksp.report import svg
from rksp.report.score import figures

Curve = Sequence[tuple[float, float | None]]
_DECADES = 30.0  # times: a curve that spans more is drawn on a logarithmic scale
_CUT = 3.0  # times the first value: what is higher is marked at the top
_FAR = 1e4  # times: a curve that spans more is cut
_WIDE, _HIGH = 50, 10  # characters of the drawing on a terminal, two by four dots each
_MOST_SWEEPS = 6


def of_run(course: CourseReport) -> Iterator[page.Block]:
    """Yield the curve of a run, on a terminal too, and that of its gradient's norm."""
    curves = [(course.loss, "arm0", "training")]
    curves += [(course.held_out, "arm1", "held out")] if course.held_out else []
    hint = "A dashed line marks where the run went wrong, a triangle values that are off the scale."
    key = Markup('<span><i class="{}"></i>{}</span>')
    legend = Markup().join(key.format(css, name) for _, css, name in curves)
    keys = Markup('<p class="keys">{}</p>').format(legend) if len(curves) > 1 else Markup()
    drawn = figures.panel(partial(_curves, curves, course), 340, 290)
    text = sketch(
        course.held_out if course.outcome == "overfit" else course.loss, course.onset_step
    )
    yield page.Figure(title=course.metric, hint=hint, drawing=keys + drawn, text=text)
    if len(course.grad_norm) > 1:
        drawn = figures.panel(partial(_curves, [(course.grad_norm, "arm2", "")], course), 220, 200)
        yield page.Figure(title="Gradient norm", hint="", drawing=drawn)


def _curves(
    curves: Sequence[tuple[Curve, str, str]], course: CourseReport, *, width: float, height: float
) -> Markup:
    known = [v for curve, _, _ in curves for _, v in curve if v is not None]
    if not known:
        return svg.drawing(width, 40, "No value is a number.")
    low, high, log = _scale([v for _, v in curves[0][0] if v is not None] + known)
    last = max(step for curve, _, _ in curves for step, _ in curve)
    first = min(step for curve, _, _ in curves for step, _ in curve)
    spare = 0.0 if log else 0.05 * (high - low) or 0.5
    marks = []
    across = svg.Scale(low=first, high=max(first + 1, last), start=58, end=width - 14)
    if course.onset_step is not None:
        marks = [(f"step {course.onset_step:,g}", "alarm", across(course.onset_step))]
    top = 14 + svg.FLAG * len(marks)
    up = svg.Scale(low=low - spare, high=high + spare, start=height - 44, end=top, log=log)
    parts = [svg.axes(across, up, "step", most=8 if width > 600 else 4)]
    parts += svg.flags(marks, across.end, up.start)
    for curve, css, _ in reversed(curves):
        for run in svg.unbroken(curve):
            points = [(across(step), up(value)) for step, value in run]
            parts.append(svg.polyline(points, f"run {css}"))
        over = [across(step) for step, value in curve if value is not None and value > up.high]
        parts.append(svg.off_scale(over, up.end, f"off {css}"))
        gone = [across(step) for step, value in curve if value is None]
        parts.append(svg.off_scale(gone, up.end, f"off {css}"))
    return svg.drawing(width, height, f"{course.metric} by step", *parts)


def _scale(known: Sequence[float]) -> tuple[float, float, bool]:
    """Return the ends of a vertical scale, and whether it is logarithmic.

    Where the highest value would flatten all others even so, it ends at three times the first.
    """
    low, high = min(known), max(known)
    limit = _CUT * max(abs(known[0]), abs(low))
    if high > limit and (low <= 0 or high > _FAR * low):
        high = limit
    return low, high, low > 0 and high > _DECADES * low


def sketch(curve: Curve, onset: float | None, width: int = _WIDE, height: int = _HIGH) -> str:
    """Draw a curve in Braille's dots, two by four a character, with its ends in numbers.

    On the top line ↑ stands for what is off the scale and × for what is no number; ▲ marks the
    onset below.
    """
    known = [(step, value) for step, value in curve if value is not None]
    if len(known) < 2:
        return ""
    low, high, log = _scale([value for _, value in known])
    first, last = curve[0][0], curve[-1][0]
    across = svg.Scale(low=first, high=last, start=0, end=2 * width - 1)
    up = svg.Scale(low=low, high=high, start=4 * height - 1, end=0, log=log)
    cells = [[0] * width for _ in range(height)]
    for stretch in svg.unbroken(curve):
        places = [(round(across(step)), round(up(value))) for step, value in stretch]
        for (x, y), (to, end) in zip(places, [*places[1:], places[-1]], strict=True):
            for column in range(x, to + 1):
                ends = (_between(column + d, x, y, to, end) for d in (0, 1))
                top, bottom = sorted(ends)
                for row in range(top, bottom + 1):
                    cells[row // 4][column // 2] |= _dot(column % 2, row % 4)
    lines = [[chr(0x2800 + cell) for cell in row] for row in cells]
    for step, value in curve:
        if value is None or value > high:
            lines[0][int(across(step)) // 2] = "×" if value is None else "↑"
    room = max(len(f"{value:.4g}") for value in (high, low))
    names = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    drawn = [f"{name:>{room}} {''.join(line)}" for name, line in zip(names, lines, strict=True)]
    if onset is not None:
        drawn.append(f"{'':>{room + 1 + int(across(onset)) // 2}}▲")
    left, right = f"{first:,g}", f"{last:,g}"
    between = f"{'logarithmic' if log else '':^{width - len(left) - len(right)}}"
    drawn.append(f"{'':>{room}} {left}{between}{right}")
    return "\n".join(line.rstrip("\u2800 ") for line in drawn)


def _between(column: int, x: int, y: int, to: int, end: int) -> int:
    share = 1.0 if to <= x else min(1.0, (column - x) / (to - x))
    return round(y + share * (end - y))


def _dot(x: int, y: int) -> int:
    """Return the bit of a dot in a character of Braille (Unicode 15, chapter 21)."""
    return (0x40 if x == 0 else 0x80) if y == 3 else 1 << (y + 3 * x)


def of_sweeps(ladders: Sequence[PastLadderReport]) -> Iterator[page.Block]:
    """Yield the picture of each sweep: its losses over the rate, and what rksp says of the rate."""
    swept = [x for x in ladders if len({run.learning_rate for run in x.runs}) > 1]
    hint = "Green: trained; red: failed. Losses far above the best are marked at the top."
    for ladder in swept[:_MOST_SWEEPS]:
        drawn = figures.panel(partial(_sweep, ladder), 300, 270)
        yield page.Figure(title=f"Loss by learning rate: {ladder.name}", hint=hint, drawing=drawn)


def _sweep(ladder: PastLadderReport, *, width: float, height: float) -> Markup:
    told = [
        ("likely best", "safe", ladder.best_said),
        ("do not exceed", "edge", ladder.exceed_said),
        ("likely edge", "edge", ladder.likely_edge),
    ]
    marked = [(f"{name} {short(value, 2)}", css, value) for name, css, value in told if value]
    losses = [run.final_loss for run in ladder.runs if run.final_loss is not None]
    if not losses:
        return svg.drawing(width, 40, "No run has a finite loss.")
    low = min(losses)
    high = max(value for value in losses if value <= low + _CUT * max(abs(low), 0.5))
    spare = 0.08 * (high - low) or 0.1
    rates = [run.learning_rate for run in ladder.runs] + [value for _, _, value in marked]
    across = svg.Scale(
        low=min(rates) / 1.3, high=max(rates) * 1.3, start=58, end=width - 14, log=True
    )
    top = 20 + svg.FLAG * len(marked)
    up = svg.Scale(low=low - spare, high=high + spare, start=height - 44, end=top)
    parts = [svg.axes(across, up, "learning rate")]
    flags = [(words, css, across(value)) for words, css, value in marked]
    parts += svg.flags(flags, across.end, up.start)
    for run in ladder.runs:
        bad = run.label in ("failed", "diverged")
        is_off = run.final_loss is None or run.final_loss > up.high
        x, y = across(run.learning_rate), up.end if is_off else up(run.final_loss or math.nan)
        title = f"{run.name}: {short(run.learning_rate)}, {run.label}"
        parts.append(svg.circle(x, y, 5, "past bad" if bad else "past good", title))
        parts += [svg.off_scale([x], up.end - 8, "off arm0")] if is_off else []
    return svg.drawing(width, height, "Final loss of every run by learning rate", *parts)
