"""Labels of past runs: rksp's own rule, as far as a tracker's words allow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rksp.own_runs.metrics import in_nats, is_metric, loss_among
from rksp.own_runs.outcome import Trained, ended, final_loss, judge
from rksp.own_runs.run import Curve


def run(rate: float, final: float = math.nan, **more: object) -> Trained:
    given = {"loss": None, "grad_norm": None, "ended": "finished"} | more
    return Trained(rate=rate, final=final, **given)


def curve(*values: float, every: int = 1) -> Curve:
    return Curve(steps=np.arange(len(values)) * every, values=np.array(values, float))


def labels(*runs: Trained, guess: float | None = None) -> list[str]:
    return [judged.label for judged in judge(runs, guess)]


def test_a_quarter_of_a_nat_above_the_best_is_a_failure_at_a_higher_rate_alone():
    found = labels(run(1e-4, 3.3), run(1e-3, 3.0), run(1e-2, 3.2), run(3e-2, 3.3))
    assert found == ["undertrained", "healthy", "healthy", "failed"]


def test_values_that_are_not_finite_are_a_divergence_whatever_the_tracker_says():
    assert ended("finished", math.inf, None, None) == "diverged"
    assert ended("crashed", 3.0, curve(3, math.nan), None) == "diverged"
    assert ended("finished", 99.0, None, None) == "diverged"


@pytest.mark.parametrize("state", ["crashed", "killed", "failed", "running", "preempted"])
def test_a_crash_is_no_divergence(state):
    assert ended(state, 3.0, None, None) == "unfinished"
    found = judge([run(1e-3, 3.0), run(1e-2, 3.1, ended="unfinished")], None)
    assert [one.label for one in found] == ["healthy", "unfinished"]
    assert math.isnan(found[1].failed)


def test_a_crash_far_above_a_lower_rate_is_a_failure_and_one_at_a_low_rate_is_none():
    ladder = [
        run(1e-4, 9.0, ended="unfinished"),
        run(1e-3, 3.7),
        run(1e-2, 7.8, ended="unfinished"),
    ]
    assert [one.label for one in judge(ladder, None)] == ["unfinished", "healthy", "failed"]


def test_a_run_that_stopped_early_counts_as_far_as_it_went():
    long = curve(*np.linspace(5, 3, 40))
    lags = curve(*np.linspace(5, 4.9, 20))
    keeps_up = curve(*np.linspace(5, 4, 20))
    base = run(1e-3, 3.0, loss=long)
    assert labels(base, run(1e-2, loss=lags, ended="unfinished"))[1] == "failed"
    assert labels(base, run(1e-2, loss=keeps_up, ended="unfinished"))[1] == "unfinished"
    assert labels(base, run(1e-4, loss=lags, ended="unfinished"))[1] == "unfinished"
    assert ended("", 3.0, curve(5, 4, every=10), 100) == "unfinished"


def test_a_single_run_passes_if_it_has_learned():
    assert labels(run(1e-3, 3.0), guess=math.log(50_000)) == ["healthy"]
    assert labels(run(1e-3, 10.7), guess=math.log(50_000)) == ["unknown"]
    assert labels(run(1e-3, 3.0)) == ["unknown"]
    assert labels(run(1e-3, 3.0, loss=curve(5, 4, 3))) == ["healthy"]
    assert labels(run(1e-3, ended="diverged")) == ["diverged"]


def test_a_dense_curve_shows_spikes():
    calm = curve(*np.linspace(5, 3, 100))
    values = np.linspace(5, 3, 100)
    values[60:75] += 1.5
    found = labels(run(1e-3, 3.0, loss=calm), run(2e-3, 3.0, loss=curve(*values)))
    assert found == ["healthy", "spiked"]


def test_the_final_loss_is_the_mean_of_the_last_tenth():
    assert final_loss(curve(*range(100)), 100) == pytest.approx(94.5)
    assert final_loss(curve(9, 8, 7, every=50), 101) == 7
    assert math.isnan(final_loss(None, 100))


def test_labels_that_rksp_made_before_stay():
    assert labels(run(1e-3, 3.0), run(1e-2, 3.0, outcome="diverged"))[1] == "diverged"


def test_the_loss_is_found_among_metrics():
    assert loss_among(["eval_loss", "train_loss", "train/loss", "accuracy"]) == "train/loss"
    assert loss_among(["accuracy", "val_loss"]) == "val_loss"
    assert loss_among(["accuracy", "epoch"]) is None
    assert is_metric("metrics.train_loss") and not is_metric("loss_scale")


def test_other_units_become_nats():
    assert in_nats("train/loss", 2.0) == 2.0
    assert in_nats("loss_bits", 2.0) == pytest.approx(2 * math.log(2))
    assert in_nats("loss (bits)", 2.0) == pytest.approx(2 * math.log(2))
    assert is_metric("Loss (nats)") and is_metric("summary.train/loss [bits]")
    assert in_nats("val/perplexity", math.e**2) == pytest.approx(2.0)
