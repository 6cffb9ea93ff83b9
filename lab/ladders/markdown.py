"""Write the tables of the lab's cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose others are numbers."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def percent(part: int, whole: int) -> str:
    """Return a share in percent with one decimal; a dash of nothing."""
    return f"{100 * part / whole:.1f}" if whole else "—"


def span(values: Iterable[float]) -> str:
    """Return the smallest and the largest of some values."""
    found = list(values)
    return f"{min(found):.3g} to {max(found):.3g}"
