"""Writing down what an intervention did."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from torch import Tensor

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


def record_means(
    intervention: Intervention,
    moment: Moment,
    what: str,
    noted: Sequence[Mapping[str, Tensor | float]],
    *,
    spent: float = 0.0,
) -> None:
    """Appends an action with the means of what was noted at the micro-batches, if anything was.

    Args:
        noted: The same scalars for every micro-batch.
        spent: Seconds spent so far.
    """
    if not noted:
        return
    since = time.perf_counter() - spent
    means = {key: math.fsum(float(n[key]) for n in noted) / len(noted) for key in noted[0]}
    record(intervention, moment, what, since=since, **means)
