"""The HTML page of a watched run: its loss, its alarms, and every quantity that was read."""

from __future__ import annotations

import json

from rksp.documents.watch import WatchReport
from rksp.report.confirm.html import loss_curves, profile
from rksp.report.pages import page


def render(report: WatchReport) -> str:
    """Render a page like a score's, with the run's JSON inside."""
    hues = {report.trial.arm: 0}
    drawn = [
        (
            f"{curve.monitor}: {curve.quantity}",
            curve.first_alarm,
            profile(curve.quantity, [(report.trial.arm, curve.points)], hues),
        )
        for curve in report.curves
        if len(curve.points) > 1
    ]
    return page(
        "watch.html.j2",
        json.loads(report.to_json()),
        report=report,
        version=report.provenance.get("rksp", ""),
        curves=[
            (css, loss_curves([report.trial], hues, width=width, height=height))
            for css, width, height in (("wide", 920, 340), ("narrow", 350, 290))
        ],
        drawn=drawn,
    )
