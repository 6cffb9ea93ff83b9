"""A confirmation for a person at a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rksp.documents.confirm import ArmReport, ConfirmReport, MonitorReport
from rksp.ground.model import definite
from rksp.ground.text import short

_MOST_MONITORS = 8
_STYLES = {"failed": "red", "trained": "green", "undecided": "yellow"}


def render(report: ConfirmReport) -> Group:
    """Render the conclusions, then the arms, then the alarms of each monitor."""
    target, trained = report.target, report.trained
    title = Text.assemble(
        (target.name, "bold"),
        f", {trained.max_steps} of {report.asked.max_steps} steps",
        f" at {short(definite(trained.learning_rate), 6)}",
        f"  {report.verdict.upper()}",
        style=_STYLES[report.verdict],
    )
    parts: list[Any] = [
        title,
        *(Text(f"  {sentence}", style="default") for sentence in report.conclusions),
    ]
    parts += [Text(), _arms(report.arms)]
    watched = [m for m in report.arms[0].monitors if m.runs]
    if watched:
        parts += [Text(), _monitors(watched, report.arms[0].runs)]
    silent: dict[str, list[str]] = {}
    for monitor in report.arms[0].monitors:
        if monitor.silent:
            silent.setdefault(monitor.silent, []).append(monitor.monitor)
    parts += [Text(f"· {note}", style="dim") for note in target.notes]
    parts += [
        Text(f"· {', '.join(names)} did not measure: {reason}", style="dim")
        for reason, names in silent.items()
    ]
    return Group(*parts)


def _arms(arms: list[ArmReport]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("arm")
    before = arms[0].untrained_loss
    held = () if before is None else ("held out",)
    for name in ("failed", "diverged", "Fisher p", "final loss", *held, "saved", "time a step"):
        table.add_column(name, justify="right")
    if before is not None:
        table.add_row("not training", *["–"] * 4, f"{before:.3f}", "–", "–")
    for arm in arms:
        after = "–" if arm.held_out_loss is None else f"{arm.held_out_loss:.3f}"
        table.add_row(
            arm.arm,
            f"{arm.failed}/{arm.runs}",
            f"{arm.diverged}/{arm.runs}",
            "–" if arm.p_value is None else f"{arm.p_value:.2g}",
            "–" if arm.final_loss is None else f"{arm.final_loss:.3f}",
            *([after] if held else []),
            "–" if arm.p_value is None else str(arm.saved),
            "–" if arm.overhead is None else f"{arm.overhead:+.0%}",
        )
    return table


def _monitors(monitors: list[MonitorReport], runs: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("monitor, baseline")
    for name in ("alarmed in", "first alarm", "lead over the loss"):
        table.add_column(name, justify="right")
    order = sorted(monitors, key=lambda m: (m.lead is None, -(m.lead or 0), m.first_alarm))
    for monitor in order[:_MOST_MONITORS]:
        table.add_row(
            monitor.monitor,
            f"{monitor.runs}/{runs}",
            f"{monitor.first_alarm:g}",
            "–" if monitor.lead is None else f"{monitor.lead:+g}",
        )
    return table
