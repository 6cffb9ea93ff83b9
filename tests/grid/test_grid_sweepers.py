"""Sweeps of others: risky trials end before they train."""

from __future__ import annotations

import pytest
from support.grid_readme import example


def test_optuna_prunes_before_the_objective_trains():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ran: dict[str, object] = {}
    exec(example("TrialPruned"), ran)
    trials, trained = ran["study"].trials, ran["trained"]
    states = optuna.trial.TrialState
    pruned = [t for t in trials if t.state == states.PRUNED]
    complete = [t for t in trials if t.state == states.COMPLETE]
    assert pruned and complete and len(pruned) + len(complete) == 12
    assert trained == [t.params["lr"] for t in complete]
    assert max(trained) < min(t.params["lr"] for t in pruned)
