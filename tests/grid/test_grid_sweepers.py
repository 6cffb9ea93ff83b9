"""Sweeps of others: risky trials end before they train, and a model is profiled once."""

from __future__ import annotations

import pytest
from support.grid_readme import example

from rksp.grid.cell import Options
from rksp.grid.gate import RiskGate
from rksp.ground.errors import InputError

TINY = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 256}


@pytest.fixture
def gate() -> RiskGate:
    return RiskGate(
        target="gpt2",
        overrides=TINY,
        recipe={"warmup": 10, "max_steps": 100},
        options=Options(states=256),
        ignore=("dropout",),
    )


def test_the_gate_profiles_each_model_once(gate):
    low, high = gate.look({"lr": 1e-5, "dropout": 0.1}), gate.look({"lr": 1.0})
    assert (low.prune, high.prune) == (False, True)
    assert low.probability_failed < high.probability_failed
    assert gate.profiles == 1
    nested = gate.look({"optim": {"lr": 1.0}})
    assert nested == high
    gate.look({"lr": 1e-5, "n_layer": 2})
    gate.look({"lr": 1e-4})
    assert gate.profiles == 2
    with pytest.raises(InputError, match="n_layerr"):
        gate.look({"lr": 1e-5, "n_layerr": 2})


def test_what_the_gate_cannot_tell_it_lets_pass(gate):
    look = gate.look({"lr": 1.0, "initializer_range": 5.0})  # as no labelled run was
    assert (look.verdict, look.prune) == ("cannot tell", False)
    assert (look.probability_failed, look.start_here) == (None, None)
    assert "outside the labelled runs" in look.reason
    certain = gate.look({"lr": 1e-6, "initializer_range": 1e25})  # no finite logits
    assert (certain.prune, certain.probability_failed) == (True, 1.0)


def test_optuna_prunes_before_the_objective_trains():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ran: dict[str, object] = {}
    exec(example("TrialPruned"), ran)
    trials, gate, trained = ran["study"].trials, ran["gate"], ran["trained"]
    states = optuna.trial.TrialState
    pruned = [t for t in trials if t.state == states.PRUNED]
    complete = [t for t in trials if t.state == states.COMPLETE]
    assert pruned and complete and len(pruned) + len(complete) == 12
    assert trained == [t.params["lr"] for t in complete]
    assert max(trained) < min(t.params["lr"] for t in pruned)
    assert gate.profiles == 1
