"""A watched run for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rksp.documents.watch import WatchReport

_STYLES = {"failed": "red", "alarmed": "yellow", "quiet": "green"}
_MOST_ALARMS = 12


def render(report: WatchReport) -> Group:
    """Render the conclusions, the forecast, and the first alarm of each quantity."""
    title = Text.assemble(
        (report.model, "bold"),
        f", {report.trial.steps} steps, {report.ended}",
        f"  {report.verdict.upper()}",
        style=_STYLES[report.verdict],
    )
    parts: list[Any] = [title, *(Text(f"  {one}", style="default") for one in report.conclusions)]
    if report.forecast is not None:
        told = " ".join(line.strip() for line in report.forecast.text[1:3])
        parts.append(Text(f"  Forecast: {told}", style="default"))
    if report.alarms:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("step", justify="right")
        table.add_column("alarm")
        for alarm in report.alarms[:_MOST_ALARMS]:
            table.add_row(str(alarm.step), alarm.text)
        more = len(report.alarms) - _MOST_ALARMS
        parts += [Text(), table, *([Text(f"and {more} more", style="dim")] if more > 0 else [])]
    return Group(*parts)
