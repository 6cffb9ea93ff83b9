"""Ray Tune: stop a trial by its risk, before it is given a worker.

    gate = RiskGate(target="gpt2", recipe={"max_steps": 2000})
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-5, 1e-1)},
        tune_config=tune.TuneConfig(scheduler=risk_scheduler(gate), num_samples=50),
    )

It works with every search algorithm and every scheduler. A stopped trial ends without a result.
"""

from __future__ import annotations

from rksp.grid.sweepers.gate import Look, RiskGate
from rksp.ground.errors import InputError


def risk_scheduler(gate: RiskGate, scheduler=None):
    """Return a trial scheduler that stops risky trials before they start.

    All other trials go to the inner scheduler. The attribute `looks` holds the answers by trial.

    Args:
        gate: The gate that judges trials; it works in the driver.
        scheduler: The inner scheduler; by default first in, first out.

    Raises:
        InputError: Ray Tune is not installed.
    """
    try:
        from ray.tune.schedulers import FIFOScheduler, TrialScheduler
    except ImportError as error:
        raise InputError("Stopping trials needs Ray Tune; pip install 'ray[tune]'.") from error

    class RiskScheduler(TrialScheduler):
        """Asks the gate when a trial is added, and passes everything else on."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = scheduler or FIFOScheduler()
            self.looks: dict[str, Look] = {}
            self.condemned: list = []

        def set_search_properties(self, metric, mode, **spec) -> bool:
            return self.inner.set_search_properties(metric, mode, **spec)

        def on_trial_add(self, tune_controller, trial) -> None:
            self.inner.on_trial_add(tune_controller, trial)
            look = self.looks[trial.trial_id] = gate.look(trial.config)
            if look.prune:
                self.condemned.append(trial)

        def on_trial_error(self, tune_controller, trial) -> None:
            self.inner.on_trial_error(tune_controller, trial)

        def on_trial_result(self, tune_controller, trial, result) -> str:
            return self.inner.on_trial_result(tune_controller, trial, result)

        def on_trial_complete(self, tune_controller, trial, result) -> None:
            self.inner.on_trial_complete(tune_controller, trial, result)

        def on_trial_remove(self, tune_controller, trial) -> None:
            self.inner.on_trial_remove(tune_controller, trial)

        def choose_trial_to_run(self, tune_controller):
            while self.condemned:
                trial = self.condemned.pop()
                trial.init_local_path()  # Tune names a folder when a trial starts, and asks later
                tune_controller.stop_trial(trial)
            return self.inner.choose_trial_to_run(tune_controller)

        def debug_string(self) -> str:
            stopped = sum(look.prune for look in self.looks.values())
            return f"{self.inner.debug_string()}; {stopped} trials stopped by risk"

    return RiskScheduler()
