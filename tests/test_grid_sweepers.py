"""Sweeps of others: risky trials end before they train, and a model is profiled once."""

from __future__ import annotations

import pytest

from rksp.errors import InputError
from rksp.grid.cell import Options
from rksp.grid.sweepers.gate import RiskGate

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
    gate.look({"lr": 1e-5, "n_layer": 2})
    gate.look({"lr": 1e-4})
    assert gate.profiles == 2
    with pytest.raises(InputError, match="n_layerr"):
        gate.look({"lr": 1e-5, "n_layerr": 2})


def test_optuna_prunes_before_the_objective_trains(gate):
    optuna = pytest.importorskip("optuna")
    from rksp.grid.sweepers.optuna import prune_by_risk

    trained = []

    def objective(trial) -> float:
        lr = trial.suggest_float("lr", 1e-6, 10.0, log=True)
        prune_by_risk(trial, gate)
        trained.append(lr)
        return lr

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial({"lr": 10.0})
    study.enqueue_trial({"lr": 1e-6})
    study.optimize(objective, n_trials=8)
    pruned = [t for t in study.trials if t.state == optuna.trial.TrialState.PRUNED]
    complete = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    assert study.trials[0] in pruned and study.trials[1] in complete
    assert len(pruned) + len(complete) == 8
    assert trained == [t.params["lr"] for t in complete]
    assert max(trained) < min(t.params["lr"] for t in pruned)
    assert all(t.user_attrs["rksp/probability_failed"] >= 0.5 for t in pruned)
    assert gate.profiles == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_tune_stops_before_a_worker_starts(gate, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    tune = pytest.importorskip("ray.tune")
    import ray

    from rksp.grid.sweepers.ray_tune import risk_scheduler

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    folder = str(tmp_path / "trained")

    def train(config) -> dict[str, float]:
        with open(folder, "a") as file:  # noqa: PTH123 - travels to the worker by itself
            file.write(f"{config['lr']}\n")
        return {"loss": config["lr"]}

    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    try:
        scheduler = risk_scheduler(gate)
        tuner = tune.Tuner(
            train,
            param_space={"lr": tune.grid_search([1e-5, 1.0, 1e-4, 5.0])},
            tune_config=tune.TuneConfig(scheduler=scheduler, metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=str(tmp_path / "results"), verbose=0),
        )
        results = tuner.fit()
    finally:
        ray.shutdown()
    rates = sorted(float(line) for line in (tmp_path / "trained").read_text().split())
    assert rates == [1e-5, 1e-4]
    assert len(results) == 4
    assert not results.errors
    assert sorted(look.prune for look in scheduler.looks.values()) == [False, False, True, True]
    assert gate.profiles == 1
