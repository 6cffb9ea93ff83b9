"""Hydra: skip a job of a multirun by its risk, before its task trains.

    gate = RiskGate(target="gpt2", recipe={"max_steps": 2000})

    @hydra.main(version_base=None, config_path="conf", config_name="train")
    @skip_by_risk(gate, lambda config: config.optimizer)
    def train(config):
        ...

It works with every sweeper and launcher of Hydra, because it wraps the task and is no plugin. It
does not import Hydra.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping

from rksp.grid.sweepers.gate import RiskGate

Task = Callable[[Mapping[str, object]], object]


def skip_by_risk(
    gate: RiskGate,
    parameters: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None,
    *,
    loss: object = math.inf,
) -> Callable[[Task], Task]:
    """Return a decorator of a task that judges the task's configuration first.

    Args:
        gate: The gate that judges jobs.
        parameters: Returns the part of a configuration that the gate should read. By default it
            reads the whole configuration, without what `gate.ignore` lists.
        loss: What a skipped task returns to the sweeper.

    Returns:
        The decorator. The task raises InputError where a parameter cannot be read.
    """

    def decorate(task: Task) -> Task:
        @functools.wraps(task)  # Hydra looks behind it for the folder of the configuration
        def judged(config: Mapping[str, object]) -> object:
            look = gate.look(config if parameters is None else parameters(config))
            if not look.prune:
                return task(config)
            logging.getLogger("rksp").warning("skipped: %s", look.why)
            return loss

        return judged

    return decorate
