"""The drawings of a score report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from rksp.report import svg
from rksp.report.schema import LayerReport, RiskReport
from rksp.status import Status

_MOST_DOTS = 1024  # a circle: more only darken the same disk
_FRAME = 2.5  # beyond it on either axis eigenvalues are drawn at the frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """One block's eigenvalues in the unit circle; `status` is empty where all is well."""

    index: int
    name: str
    status: str
    drawing: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One quantity over the blocks, first to last, with the ends of its color scale."""

    title: str
    drawing: Markup
    low: str
    high: str


def gauge(risk: RiskReport) -> Markup | None:
    """P(failed) with its interval and the bar, on a line from 0 to 1."""
    if risk.probability_failed is None:
        return None
    low, high = risk.probability_failed_low, risk.probability_failed_high
    return Markup(
        '<svg class="gauge" width="100%" height="26" role="img" aria-label="{}">'
        '<rect x="0" y="10" width="100%" height="6" rx="3" class="track"/>'
        '<rect x="{:.1f}%" y="10" width="{:.1f}%" height="6" class="span"/>'
        '<line x1="{t:.1f}%" x2="{t:.1f}%" y1="3" y2="23" class="bar"/>'
        '<circle cx="{:.1f}%" cy="13" r="7" class="here"/></svg>'
    ).format(
        f"P(failed) {risk.probability_failed:.1%}, interval {low:.1%} to {high:.1%}, "
        f"bar {risk.threshold:.0%}",
        100 * low,
        100 * (high - low),
        100 * risk.probability_failed,
        t=100 * risk.threshold,
    )


def risk_curve(risk: RiskReport, rate: float | None, *, width: float, height: float) -> Markup:
    """P(failed) against the learning rate, with the rates that matter."""
    marks = [
        (name, css, value)
        for name, css, value in (
            ("safe", "safe", risk.safe_learning_rate),
            ("recipe", "recipe", rate),
            ("likely edge", "edge", risk.likely_edge),
        )
        if value is not None
    ]
    low, high = _range(risk, [value for _, _, value in marks])
    top = 20 + 18 * len(marks)
    across = svg.Scale(low=low, high=high, start=46, end=width - 14, log=True)
    up = svg.Scale(low=0, high=1, start=height - 44, end=top)
    points = [point for point in risk.curve if low <= point[0] <= high]
    place = [across(point[0]) for point in points]
    at = [[(x, up(point[i])) for x, point in zip(place, points, strict=True)] for i in (1, 2, 3)]
    bar = up(risk.threshold)
    parts = [
        svg.axes(across, up, "learning rate", ".0%", most=9 if width > 600 else 5),
        svg.band(at[2], at[1], "band"),
        svg.line(across.start, bar, across.end, bar, "bar"),
        svg.text(across.end, bar - 5, f"bar {risk.threshold:.0%}", "tick", "end"),
        svg.polyline(at[0], "curve"),
    ]
    for row, (name, css, value) in enumerate(sorted(marks, key=lambda mark: mark[2])):
        x, y = across(value), 16 + 18 * row
        # To the right: lines further right start lower, so only the last labels can be crossed.
        anchor, shift = ("end", -6) if x > across.end - 130 else ("start", 6)
        parts.append(svg.line(x, y - 8, x, up.start, f"mark {css}"))
        parts.append(svg.text(x + shift, y, f"{name} {svg.short(value)}", f"label {css}", anchor))
    return svg.drawing(
        width, height, "P(failed) against the learning rate, with its interval", *parts
    )


def _range(risk: RiskReport, marked: list[float]) -> tuple[float, float]:
    """Whole decades that hold the marks and where the curve rises."""
    rises = [point[0] for point in risk.curve if 0.02 < point[1] < 0.98]
    wanted = [*rises, *marked] or [1e-5, 1e-1]
    ends = risk.curve[0][0], risk.curve[-1][0]
    low = 10.0 ** math.floor(math.log10(min(wanted)) - 0.3)
    high = 10.0 ** math.ceil(math.log10(max(wanted)) + 0.3)
    return max(low, ends[0]), min(high, ends[1])


def circles(layers: list[LayerReport]) -> list[Circle]:
    """Small multiples on one scale; what lies beyond the frame is drawn at its edge."""
    values = [value for layer in layers for value in layer.eigenvalues]
    left = max(-_FRAME, min([-1.1, *(real for real, _ in values)]))
    right = min(_FRAME, max([1.1, *(real for real, _ in values)]))
    tall = min(_FRAME, max([1.1, *(imaginary for _, imaginary in values)]))
    middle, reach = (left + right) / 2, 1.03 * max((right - left) / 2, tall)
    across = svg.Scale(low=middle - reach, high=middle + reach, start=3, end=137)
    up = svg.Scale(low=-reach, high=reach, start=137, end=3)
    return [
        Circle(
            index=index,
            name=layer.name,
            status="" if layer.status == Status.OK.value else layer.status.replace("_", " "),
            drawing=_circle(layer, across, up),
        )
        for index, layer in enumerate(layers)
    ]


def _circle(layer: LayerReport, across: svg.Scale, up: svg.Scale) -> Markup:
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
    return svg.drawing(
        140,
        140,
        f"{len(layer.eigenvalues)} eigenvalues of {layer.name}",
        svg.line(3, up(0), 137, up(0), "grid"),
        svg.line(across(0), 3, across(0), 137, "grid"),
        svg.circle(across(0), up(0), across(1) - across(0), "unit"),
        *(svg.dots(points, css) for css, points in groups.items()),
    )


def heat_map(layers: list[LayerReport]) -> list[HeatRow]:
    """One row a quantity, each on its own color scale; rows without a number are left out."""
    growth = [_ratio(layer.rms_out, layer.rms_in) for layer in layers]
    rows = [
        ("near-unit mass", [layer.near_unit_mass for layer in layers], False),
        ("spectral radius ρ", [layer.spectral_radius for layer in layers], False),
        ("condition κ(V)", [layer.eigenvector_condition for layer in layers], True),
        ("energy gain", [layer.energy_gain for layer in layers], True),
        ("rms out ÷ rms in", growth, True),
    ]
    return [
        _heat_row(title, values, [layer.name for layer in layers], log)
        for title, values, log in rows
        if any(value is not None for value in values)
    ]


def _heat_row(title: str, values: list[float | None], names: list[str], log: bool) -> HeatRow:
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    scale = svg.Scale(low=low, high=high, start=0, end=1, log=log and low > 0)
    cells = [
        svg.cell(
            index,
            None if value is None else scale(value),
            f"{name}: {title} {'not measured' if value is None else svg.short(value)}",
        )
        for index, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    drawn = Markup(
        '<svg viewBox="0 0 {} 1" preserveAspectRatio="none" role="img" aria-label="{}" '
        'class="heat">{}</svg>'
    ).format(len(values), f"{title} over the blocks", Markup("".join(cells)))
    return HeatRow(title=title, drawing=drawn, low=svg.short(low), high=svg.short(high))


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below
