"""Record the actions of interventions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rksp.watch.interventions.base import Action, Intervention
from rksp.watch.moment import Moment


def record(
    intervention: Intervention,
    moment: Moment,
    what: str,
    *,
    since: float,
    moved_weights: bool = False,
    **detail: float,
) -> None:
    """Append an action that began at `since`, a reading of `time.perf_counter`.

    The seconds are host time and do not include work that a device still has queued.
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
    """Append an action with the means of the micro-batches' numbers, if there are any.

    Args:
        intervention: The intervention that acted.
        moment: The step of the action.
        what: A sentence without numbers.
        noted: The same scalars for every micro-batch.
        spent: Seconds spent so far.
    """
    if not noted:
        return
    since = time.perf_counter() - spent
    means: dict[str, Any] = {
        key: math.fsum(float(n[key]) for n in noted) / len(noted) for key in noted[0]
    }
    record(intervention, moment, what, since=since, **means)
