"""A confirmation as Markdown: a job summary or a comment on a pull request."""

from __future__ import annotations

from rksp.documents.confirm import ArmReport, ConfirmReport, MonitorReport
from rksp.report.score.markdown import code, number, plain, table

_MOST_MONITORS = 8


def render(report: ConfirmReport) -> str:
    """Render the verdict, the conclusions, the arms, and the alarms of the baseline."""
    trained, before = report.trained, report.arms[0].untrained_loss
    held = before is not None
    untrained = [("not training", *["–"] * 4, number(before, ".3f"), "–", "–")] if held else []
    ends = ("Final loss", "Held out") if held else ("Final loss",)
    parts = [
        f"## rksp confirm: {report.verdict.upper()} — {code(report.target.name)}",
        f"{trained.max_steps} of {report.asked.max_steps} steps at learning rate "
        f"{number(trained.learning_rate)}",
        "\n".join(f"- {plain(sentence)}" for sentence in report.conclusions),
        table(
            ("Arm", "Failed", "Diverged", "Fisher p", *ends, "Saved", "Time a step"),
            [*untrained, *(_arm(arm, held) for arm in report.arms)],
        ),
    ]
    loud = [monitor for monitor in report.arms[0].monitors if monitor.runs]
    if loud:
        order = sorted(loud, key=lambda m: (m.lead is None, -(m.lead or 0), m.first_alarm))
        rows = [_monitor(monitor, report.arms[0].runs) for monitor in order[:_MOST_MONITORS]]
        parts.append(table(("Monitor", "Alarmed in", "First alarm", "Lead over the loss"), rows))
    return "\n\n".join(parts) + "\n"


def _arm(arm: ArmReport, held: bool) -> tuple[str, ...]:
    return (
        code(arm.arm),
        f"{arm.failed}/{arm.runs}",
        f"{arm.diverged}/{arm.runs}",
        number(arm.p_value, ".2g"),
        number(arm.final_loss, ".3f"),
        *((number(arm.held_out_loss, ".3f"),) if held else ()),
        "–" if arm.p_value is None else str(arm.saved),
        number(arm.overhead, "+.0%"),
    )


def _monitor(monitor: MonitorReport, runs: int) -> tuple[str, ...]:
    return (
        code(monitor.monitor),
        f"{monitor.runs}/{runs}",
        number(monitor.first_alarm, "g"),
        number(monitor.lead, "+g"),
    )
