"""Optuna: prune a trial by its risk, before its objective trains.

    gate = RiskGate(target="gpt2", recipe={"max_steps": 2000})

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        prune_by_risk(trial, gate)
        return train(lr)

The study records a pruned trial as it would after a bad start, and samplers learn from it. The
verdict, P(failed) and the recommended rates stay with the trial as user attributes.
"""

from __future__ import annotations

from collections.abc import Mapping

from rksp.grid.sweepers.gate import Look, RiskGate
from rksp.ground.errors import InputError


def prune_by_risk(trial, gate: RiskGate, parameters: Mapping[str, object] | None = None) -> Look:
    """Judge a trial; raise `optuna.TrialPruned` if its P(failed) is at or above the bar.

    Args:
        trial: The trial, after its suggestions were made.
        gate: The gate that judges it.
        parameters: By default the trial's own; give them if their names differ from rksp's.

    Returns:
        The answer, for a trial that may train.

    Raises:
        InputError: Optuna is not installed, or a parameter cannot be read.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("Pruning trials needs Optuna; pip install 'rksp[optuna]'.") from error
    look = gate.look(trial.params if parameters is None else parameters)
    for name, value in (
        ("verdict", look.verdict),
        ("probability_failed", look.probability_failed),
        ("start_here", look.start_here),
        ("do_not_exceed", look.do_not_exceed),
    ):
        trial.set_user_attr(f"rksp/{name}", value)
    if look.prune:
        raise optuna.TrialPruned(look.why)
    return look
