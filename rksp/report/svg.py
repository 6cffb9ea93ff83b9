"""Drawing by hand: scales, ticks and shapes as inline SVG.

Colors are CSS classes of the page, so one drawing serves light and dark. Coordinates carry one
decimal: a tenth of a pixel, and the same bytes for the same numbers. Whatever text goes in is
escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from rksp.ground.text import short

Point = tuple[float, float]
FLAG = 18  # pixels from one row of labels to the next
_TRIANGLE = 8  # pixels a mark of what is off the scale is wide
_LETTER = 7.6  # pixels a letter of a label is wide, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values to pixels, linear or logarithmic; values outside are held at the ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` ticks: decades of a logarithmic scale, or multiples of 1, 2, 5."""
        if self.log:
            first = math.ceil(math.log10(self.low) - 1e-9)
            last = math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / most))
            return [10.0**power for power in range(first, last + 1, every)]
        rough = (self.high - self.low) / most or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def drawing(width: float, height: float, label: str, *parts: str, css: str = "") -> Markup:
    """Draw a figure that scales with its container; a screen reader says `label`."""
    box = f"0 0 {number(width)} {number(height)}"
    return Markup('<svg viewBox="{}" role="img" aria-label="{}" class="{}">{}</svg>').format(
        box, label, css, Markup("").join(Markup(part) for part in parts)
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Draw a straight line."""
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'class="{css}"/>'
    )


def circle(x: float, y: float, radius: float, css: str, title: str = "") -> str:
    """Draw a circle; `title` shows on hovering."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" class="{css}">'
        f"{inner}</circle>"
    )


def ring(x: float, y: float, inner: float, outer: float, css: str) -> str:
    """Draw the area between two circles with the same center."""
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{number((inner + outer) / 2)}" '
        f'stroke-width="{number(outer - inner)}" class="{css}"/>'
    )


def text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    """Draw a line of text."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" class="{css}">'
        f"{escape(words)}</text>"
    )


def polyline(points: Iterable[Point], css: str) -> str:
    """Draw a line through all points."""
    return f'<path d="{_through(points)}" class="{css}"/>'


def band(upper: Sequence[Point], lower: Sequence[Point], css: str) -> str:
    """Draw the area between two curves over the same positions."""
    return f'<path d="{_through([*upper, *reversed(lower)])}Z" class="{css}"/>'


def dots(points: Iterable[Point], css: str) -> str:
    """Draw many points as one path of strokes without length: eleven bytes each, not sixty."""
    marks = "".join(f"M{number(x)} {number(y)}h0" for x, y in points)
    return f'<path d="{marks}" class="{css}"/>' if marks else ""


def off_scale(places: Iterable[float], top: float, css: str) -> str:
    """Draw triangles under the upper end of a plot: what lies above is not drawn where it is.

    One stands for all that it would cover.
    """
    kept: list[float] = []
    for x in sorted(places):
        if not kept or x - kept[-1] >= _TRIANGLE:
            kept.append(x)
    half, base = _TRIANGLE / 2, top + _TRIANGLE
    tips = (
        "M" + "L".join((at(x, top), at(x - half, base), at(x + half, base))) + "Z" for x in kept
    )
    return (
        f'<path d="{"".join(tips)}" class="{css}"><title>off the scale</title></path>'
        if kept
        else ""
    )


def unbroken(curve: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """Return the stretches of a curve between values that are missing."""
    runs: list[list[Point]] = [[]]
    for step, value in curve:
        if value is not None:
            runs[-1].append((step, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def flags(marks: Sequence[tuple[str, str, float]], end: float, bottom: float) -> list[str]:
    """Draw vertical lines with labels next to their tops, one row per label.

    A label stands left of its line if on the right it would pass `end` or the line of another such
    label. These come first, the last line on top, then the others, the first line on top: so a line
    starts below the labels it would cross. All lines are drawn before all labels.

    Args:
        marks: Words, CSS class and position across, each.
        end: Where the drawing ends on the right.
        bottom: Where the lines end.
    """
    left, right = [], []
    for mark in sorted(marks, key=lambda mark: mark[2], reverse=True):
        words, _, x = mark
        width = 6 + _LETTER * len(words)
        if x + width > end and x - width > 0:
            left.append(mark)
            end = x
        else:
            right.append(mark)
    lines, labels = [], []
    for row, (words, css, x) in enumerate([*left, *reversed(right)]):
        y = 16 + FLAG * row
        anchor, shift = ("end", -6) if row < len(left) else ("start", 6)
        lines.append(line(x, y - 8, x, bottom, f"mark {css}"))
        labels.append(text(x + shift, y, words, f"label {css}", anchor))
    return lines + labels


def axes(across: Scale, up: Scale, x_label: str, y_form: str = "", *, most: int = 6) -> str:
    """Draw grid lines with tick labels, and the name of the horizontal scale below.

    Numbers of the vertical scale have three digits unless `y_form` formats them.
    """
    parts = []
    for tick in up.ticks(5):
        y = up(tick)
        parts.append(line(across.start, y, across.end, y, "grid"))
        said = format(tick, y_form) if y_form else short(tick)
        parts.append(text(across.start - 6, y + 4, said, "tick", "end"))
    for tick in across.ticks(most):
        x = across(tick)
        parts.append(line(x, up.start, x, up.start + 4, "axis"))
        parts.append(text(x, up.start + 17, short(tick), "tick", "middle"))
    parts.append(line(across.start, up.start, across.end, up.start, "axis"))
    middle = (across.start + across.end) / 2
    parts.append(text(middle, up.start + 34, x_label, "tick", "middle"))
    return "".join(parts)


def number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written


def _through(points: Iterable[Point]) -> str:
    return "M" + "L".join(at(x, y) for x, y in points)


def at(x: float, y: float) -> str:
    """Write a position in a path."""
    return f"{number(x)} {number(y)}"
