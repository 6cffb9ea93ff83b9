"""Writing down what an intervention did."""

from __future__ import annotations

import time

from rksp.interventions.base import Action, Intervention
from rksp.moment import Moment


def record(
    intervention: Intervention,
    moment: Moment,
    what: str,
    *,
    since: float,
    moved_weights: bool = False,
    **detail: float,
) -> None:
    """Appends an action that began at `since`, a reading of `time.perf_counter`.

    Seconds are the host's; work that a device still has queued is not waited for.
    """
    intervention.actions.append(
        Action(
            intervention=intervention.name,
            step=moment.step,
            what=what,
            seconds=time.perf_counter() - since,
            detail=detail,
            moved_weights=moved_weights,
        )
    )
