"""The drawings of a score report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from rksp.documents.answer import CurvePoint, Estimate, FromFineTuning
from rksp.documents.score import LayerReport, ScoreReport
from rksp.documents.spectrum import NEAR_UNIT, Status, Variant
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.report import svg
from rksp.report.blocks import Numbers

_MOST_DOTS = 1024  # a circle: more only darken the same disk
_PART = 0.3  # eigenvalues right of it and this near to the real axis fill only a part of the circle
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_CIRCLES = 24
_FRAME = 2.5  # beyond it on either axis eigenvalues are drawn at the frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A square of the complex plane about `middle` on the real axis; `is_part` of the circle."""

    middle: float
    reach: float
    is_part: bool


def gauge(probability: float, low: float | None, high: float | None, bar: float) -> Markup:
    """Draw P(failed) with its interval and the bar, on a line from 0 to 1 with its ends."""
    low, high = definite(low), definite(high)
    return Markup(
        '<svg class="gauge" width="100%" height="26" role="img" aria-label="{}">'
        '<rect x="0" y="10" width="100%" height="6" rx="3" class="track"/>'
        '<rect x="{:.1f}%" y="10" width="{:.1f}%" height="6" class="span"/>'
        '<line x1="{t:.1f}%" x2="{t:.1f}%" y1="3" y2="23" class="bar"/>'
        '<circle cx="{:.1f}%" cy="13" r="7" class="here"/></svg><p class="ends"><span>0%</span>'
        '<span class="at" style="--x:{t:.1f}%">bar {t:.0f}%</span><span>100%</span></p>'
    ).format(
        f"P(failed) {probability:.1%}, interval {low:.1%} to {high:.1%}, bar {bar:.0%}",
        100 * low,
        100 * (high - low),
        100 * probability,
        t=100 * bar,
    )


def sparkline(curve: Sequence[CurvePoint]) -> str:
    """Return P(failed) by learning rate, with one character per quarter of a decade."""
    last = {round(4 * math.log10(point.learning_rate)): point for point in curve}
    bars = "".join(_BARS[min(7, int(point.probability * 8))] for point in last.values())
    ends = (short(curve[n].learning_rate, 1) for n in (0, -1))
    return f"P(failed) at rates from {' to '.join(ends)}: {bars}"


def panel(draw: Callable[..., Markup], wide: int, narrow: int) -> Markup:
    """Return the box of a drawing that is made for wide and for narrow screens.

    So text does not shrink with the screen.

    Args:
        draw: Draws it, given `width` and `height` in pixels.
        wide: The height on a wide screen.
        narrow: The height on a narrow one.
    """
    made = (("wide", draw(width=920, height=wide)), ("narrow", draw(width=350, height=narrow)))
    inner = Markup().join(Markup('<div class="{}">{}</div>').format(*one) for one in made)
    return Markup('<div class="panel">{}</div>').format(inner)


def risk_panel(report: ScoreReport, risk: Estimate) -> Markup:
    """Draw P(failed) by learning rate with the team's own runs, for both screens."""
    rate, past = report.recipe.learning_rate, _past(report, risk)
    return panel(partial(risk_curve, risk, rate, past=past), 360, 320)


def _past(report: ScoreReport, risk: Estimate) -> list[tuple[float, bool]]:
    """Return the rates of past runs that count, and whether they failed.

    Those of another model are drawn where the shipped model, which saw none of them, would put the
    same distance from the edge.
    """
    if report.own_runs is None or risk.learned is None:
        return []
    expected = risk.likely_edge / 10**risk.learned.edge_shift
    tunes = isinstance(risk, FromFineTuning)
    return [
        (run.learning_rate * expected / ladder.likely_edge, run.label in ("failed", "diverged"))
        for ladder in report.own_runs.ladders
        if ladder.likely_edge is not None and not ladder.unused and ladder.is_of_tuning == tunes
        for run in ladder.runs
        if run.label not in ("unknown", "unfinished")
    ]


def risk_curve(
    risk: Estimate,
    rate: float | None,
    *,
    width: float,
    height: float,
    past: Sequence[tuple[float, bool]] = (),
) -> Markup:
    """Draw P(failed) by learning rate, with the recommended and the recipe's rates.

    Args:
        risk: The answer.
        rate: The recipe's.
        width: In pixels.
        height: In pixels.
        past: (rate, whether it failed) of past runs, drawn at 0 % and at 100 %.
    """
    marks = [
        (name, css, value)
        for name, css, value in (
            ("start here", "safe", risk.start_here),
            ("recipe", "recipe", rate),
            ("do not exceed", "edge", risk.do_not_exceed),
            ("likely edge", "edge", risk.likely_edge),
        )
        if value is not None
    ]
    low, high = _range(risk, [value for _, _, value in marks])
    rows = svg.FLAG * len(marks)
    across = svg.Scale(low=low, high=high, start=46, end=width - 14, log=True)
    up = svg.Scale(low=0, high=1, start=height - 44, end=20 + rows)
    points = [point for point in risk.curve if low <= point[0] <= high]
    place = [across(point[0]) for point in points]
    at = [[(x, up(point[i])) for x, point in zip(place, points, strict=True)] for i in (1, 2, 3)]
    bar = up(risk.threshold)
    parts = [
        _safe_zone(across, up, risk.do_not_exceed),
        svg.axes(across, up, "learning rate", ".0%", most=9 if width > 600 else 5),
        svg.band(at[2], at[1], "band"),
        svg.line(across.start, bar, across.end, bar, "bar"),
        svg.text(across.start + 6, bar - 5, f"bar {risk.threshold:.0%}", "tick clear"),
        svg.polyline(at[0], "curve"),
    ]
    flags = [(f"{name} {short(value, 2)}", css, across(value)) for name, css, value in marks]
    parts += svg.flags(flags, across.end, up.start)
    parts += [
        svg.circle(across(x), up(float(failed)), 3, "past bad" if failed else "past good")
        for x, failed in past
        if low <= x <= high
    ]
    if rate is not None and risk.probability_failed is not None:
        parts.append(svg.circle(across(rate), up(risk.probability_failed), 5, "here"))
    return svg.drawing(width, height, "P(failed) by learning rate, with its interval", *parts)


def _safe_zone(across: svg.Scale, up: svg.Scale, safe: float | None) -> str:
    if safe is None:
        return ""
    left, right = across.start, across(safe)
    return svg.band(
        [(left, up.end), (right, up.end)], [(left, up.start), (right, up.start)], "zone"
    )


def _range(risk: Estimate, marked: list[float]) -> tuple[float, float]:
    rises = [point[0] for point in risk.curve if 0.02 < point[1] < 0.98]
    wanted = [*rises, *marked] or [1e-5, 1e-1]
    ends = risk.curve[0][0], risk.curve[-1][0]
    low = 10.0 ** math.floor(math.log10(min(wanted)) - 0.3)
    high = 10.0 ** math.ceil(math.log10(max(wanted)) + 0.3)
    return max(low, ends[0]), min(high, ends[1])


def frame(layers: list[LayerReport]) -> Frame:
    """Return one frame for all blocks: the unit circle, or the part where all values lie."""
    values = [value for layer in layers for value in layer.eigenvalues]
    reals = [real for real, _ in values] or [0.0]
    tall = max((abs(imaginary) for _, imaginary in values), default=0.0)
    is_part = min(reals) > _PART and tall < _PART
    left = min(reals) if is_part else max(-_FRAME, min(-1.1, *reals))
    right = max(1.0, *reals) if is_part else min(_FRAME, max(1.1, *reals))
    up = tall if is_part else min(_FRAME, max(1.1, tall))
    reach = (1.15 if is_part else 1.03) * max((right - left) / 2, up)
    return Frame(middle=(left + right) / 2, reach=reach, is_part=is_part)


def small_multiples(
    layers: list[LayerReport], within: Frame, variant: Variant | None, number: Numbers
) -> Markup:
    """Draw every block's eigenvalues on one scale, with what the colors mean.

    Values beyond the frame are drawn at its edge. A deep model shows a part of its blocks, and all
    of them unfolded.

    Args:
        layers: The blocks.
        within: The part of the plane that is shown.
        variant: Says which moduli count as near-unit, drawn as a ring.
        number: Writes numbers of the seed.
    """
    near_unit = None if variant is None else NEAR_UNIT
    drawn = [
        Markup("<figure>{}<figcaption>{}<br>ρ {}{}</figcaption></figure>").format(
            circle(layer, within, near_unit),
            layer.name,
            number(f"spectra/layers/{index}/spectral_radius", ".2f"),
            Markup()
            if layer.status == Status.OK
            else Markup("<br>{}").format(layer.status.replace("_", " ")),
        )
        for index, layer in enumerate(layers)
    ]
    keys = [("in", "inside the unit circle")]
    keys.append(("out", "outside: grows with depth"))
    if any('class="eigen far"' in one for one in drawn):
        keys.append(("far", "beyond the frame"))
    if near_unit is not None:
        keys.append(("ringed", f"near-unit, {near_unit[0]:.2f} to {near_unit[1]:.2f}"))
    legend = Markup().join(Markup('<span><i class="{}"></i>{}</span>').format(*k) for k in keys)
    step = max(1, -(-len(drawn) // _SHOWN_CIRCLES))
    shown = _circles(drawn[::step])
    if step > 1:
        folded = Markup(
            '<details><summary>All {} blocks</summary><div class="scroll">{}</div></details>'
        )
        shown += folded.format(len(drawn), _circles(drawn))
    return Markup('<p class="keys">{}</p>').format(legend) + shown


def _circles(drawn: Sequence[Markup]) -> Markup:
    few = " few" if len(drawn) < 6 else ""
    return Markup('<div class="circles{}">{}</div>').format(few, Markup().join(drawn))


def circle(layer: LayerReport, within: Frame, near_unit: tuple[float, float] | None) -> Markup:
    """Draw one block's eigenvalues in the unit circle."""
    left, right = within.middle - within.reach, within.middle + within.reach
    across = svg.Scale(low=left, high=right, start=3, end=137)
    up = svg.Scale(low=-within.reach, high=within.reach, start=137, end=3)
    # The largest first, so that thinning never drops what matters.
    ordered = sorted(layer.eigenvalues, key=lambda value: (-math.hypot(*value), value))
    step = max(1, -(-len(ordered) // _MOST_DOTS))
    shown = [value for i, value in enumerate(ordered) if i < 40 or i % step == 0]
    groups: dict[str, list[svg.Point]] = {"eigen in": [], "eigen out": [], "eigen far": []}
    for real, imaginary in shown:
        css = "eigen out" if math.hypot(real, imaginary) > 1 else "eigen in"
        if not (across.low <= real <= across.high and up.low <= imaginary <= up.high):
            css = "eigen far"
        groups[css].append((across(real), up(imaginary)))
    # Scales hold at their ends: the middle of the circle may lie outside.
    unit = (across.end - across.start) / (across.high - across.low)
    middle = across.start - unit * across.low
    ring = ""
    if near_unit:
        inner, outer = (unit * modulus for modulus in near_unit)
        ring = svg.ring(middle, up(0), inner, outer, "ring")
    return svg.drawing(
        140,
        140,
        f"{len(layer.eigenvalues)} eigenvalues of {layer.name}",
        svg.line(3, up(0), 137, up(0), "grid"),
        svg.line(middle, 3, middle, 137, "grid"),
        ring,
        svg.circle(middle, up(0), unit, "unit"),
        *(svg.dots(points, css) for css, points in groups.items()),
        *(svg.text(across(x), 135, short(x), "tick", "middle") for x in across.ticks(3)),
    )
