"""The comparison of arms: from trials that are known to sentences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from rksp.confirm.compare import (
    compare,
    conclude,
    failed_trials,
    limit,
    prediction_held,
    verdict,
    why_failed,
)
from rksp.documents.confirm import PredictionReport, TrialReport


def _trial(arm: str, seed: int, outcome: str = "healthy", final: float | None = 1.0, **fields):
    given = {
        "steps": 40,
        "undone": 0,
        "onset": None,
        "first_alarms": {},
        "leads": {},
        "alarms": {},
        "silent": {},
        "actions": {},
        "action_seconds": 0.0,
        "monitor_seconds": 0.0,
        "seconds": 4.0,
        "loss": [(0, 1.0)],
        "grad_norm": [(0, 1.0)],
    }
    final = None if outcome == "diverged" else final
    return TrialReport(arm=arm, seed=seed, outcome=outcome, final_loss=final, **given | fields)


def _prediction(verdict: str = "risk", probability: float | None = 0.9) -> PredictionReport:
    return PredictionReport(
        probability_failed=probability,
        low=None,
        high=None,
        verdict=verdict,
        reasons=[],
        start_here=None,
        do_not_exceed=None,
        threshold=0.5,
    )


def test_a_plateau_is_a_failure_beside_a_better_arm_of_its_seed() -> None:
    trials = [
        _trial("baseline", 0, final=2.0),
        _trial("rate=0.3", 0, final=1.5),
        _trial("baseline", 1, final=1.6),
        _trial("rate=0.3", 1, final=1.5),
    ]
    assert failed_trials(trials) == {("baseline", 0)}
    assert failed_trials(trials[:1]) == set()


def test_an_arm_that_is_only_slower_is_behind_and_has_not_failed() -> None:
    trials = [
        _trial("baseline", 0, final=1.5),
        _trial("rate=0.3", 0, final=2.0),
        _trial("clip=1", 0, final=2.0),
    ]
    assert failed_trials(trials) == set()
    said = conclude(_prediction("ok", 0.1), compare(trials), [])
    assert "rate=0.3 trained too, and ended 0.50 nats above the baseline." in said


def test_fisher_against_the_hypergeometric_law() -> None:
    trials = [_trial("baseline", s, "diverged" if s < 7 else "healthy") for s in range(8)]
    trials += [_trial("kss", s, "diverged" if s < 1 else "healthy") for s in range(8)]
    baseline, arm = compare(trials)
    table = hypergeom(16, 8, 8)
    at = table.pmf(1)
    two_sided = sum(p for p in table.pmf(np.arange(9)) if p <= at * (1 + 1e-9))
    assert arm.p_value == pytest.approx(two_sided)
    assert baseline.p_value is None
    assert (baseline.failed, baseline.diverged, arm.failed) == (7, 7, 1)
    assert (arm.saved, arm.lost) == (6, 0)


def test_overhead_is_of_the_median_step() -> None:
    trials = [_trial("baseline", s, step_seconds=0.4) for s in range(3)]
    trials += [_trial("kss", s, step_seconds=0.5 if s else 5.0) for s in range(3)]
    trials += [_trial("rate=0.1", s, step_seconds=0.5) for s in range(3)]
    assert compare(trials)[1].overhead == pytest.approx(0.25)
    assert compare(trials)[2].overhead is None  # its steps are the baseline's


def test_the_conclusions_say_what_happened() -> None:
    seen = {"first_alarms": {"loss": 20, "update-rms": 9}, "leads": {"loss": 1, "update-rms": 12}}
    trials = [_trial("baseline", s, "diverged", onset=21, **seen) for s in range(3)]
    trials += [_trial("kss", s) for s in range(3)]
    trials += [_trial("clip=1", s, "diverged") for s in range(3)]
    arms = compare(trials)
    prediction, monitor, helped, useless = conclude(_prediction(), arms, [])
    assert prediction == "The prediction held."
    assert "update-rms saw it first, 12 steps before" in monitor
    assert "the loss monitor by 1" in monitor
    assert "kss would have saved 3 of 3" in helped
    assert "clip=1 would not" in useless
    quiet = compare([_trial("baseline", s) for s in range(3)])
    assert conclude(_prediction(), quiet, [])[1] == "No monitor raised an alarm in the baseline."
    assert "did not hold" in conclude(_prediction("ok", 0.1), arms, [])[0]
    assert "without a fault" in conclude(_prediction(), arms, ["bitflip:step=5"])[0]


def test_whether_the_prediction_held() -> None:
    bad = compare([_trial("baseline", s, "diverged") for s in range(3)])
    good = compare([_trial("baseline", s) for s in range(3)])
    assert prediction_held(_prediction("risk"), bad)
    assert not prediction_held(_prediction("risk"), good)
    assert prediction_held(_prediction("ok"), good)
    assert prediction_held(_prediction("cannot tell"), bad) is None
    assert prediction_held(_prediction("ok"), bad, ["bitflip:step=5"]) is None  # of another run


def test_a_failure_without_an_onset_names_the_first_alarm() -> None:
    alarms = {"first_alarms": {"attention-logits": 20, "key-null-sum": 120}}
    said = conclude(
        _prediction(), compare([_trial("baseline", s, "failed", **alarms) for s in range(3)]), ()
    )
    assert said[1].startswith("The monitor attention-logits raised the first alarm, at step 20")
    quiet = compare([_trial("baseline", s, "failed") for s in range(3)])
    assert conclude(_prediction(), quiet, ())[1] == "No monitor saw the failure."


def test_runs_that_learned_nothing_but_frequencies_decide_nothing() -> None:
    dull = {"trivial_loss": 1.1}  # the final loss is 1.0, within the margin, an eighth of it
    none = [_trial(arm, s, **dull) for arm in ("baseline", "rate=0.3") for s in range(2)]
    arms = compare(none)
    assert verdict(arms) == "undecided"
    assert prediction_held(_prediction("ok"), arms) is None
    assert "give more --steps" in conclude(_prediction("ok"), arms, ())[0]
    one = compare([*none[:3], _trial("rate=0.3", 1, final=0.9, **dull)])
    assert verdict(one) == "trained" and prediction_held(_prediction("ok"), one)
    failed = compare([_trial("baseline", 0, "diverged", **dull), *none[1:]])
    assert verdict(failed) == "failed"


def test_ending_worse_than_not_training_is_no_success() -> None:
    def tuned(arm: str, after: float | None) -> TrialReport:
        return _trial(arm, 0, untrained_loss=2.0, held_out_loss=after)

    better, worse = tuned("baseline", 1.9), tuned("baseline", 2.1)
    assert verdict(compare([better])) == "trained"
    assert verdict(compare([worse])) == "undecided"  # within the margin
    assert failed_trials([tuned("baseline", 2.3)]) == {("baseline", 0)}
    assert failed_trials([tuned("baseline", None)]) == {("baseline", 0)}
    arms = compare([worse, tuned("rate=0.3", 1.8)])
    said = conclude(_prediction("ok", 0.1), arms, [])[-1]
    assert "(2.00): baseline ended 0.10 nats worse, rate=0.3 ended 0.20 nats better." in said
    assert "not training" not in " ".join(
        conclude(_prediction(), compare([_trial("baseline", 0)]), [])
    )


def test_a_failure_has_its_number() -> None:
    """Each way to fail is said with what was measured and the limit; no failure says nothing."""
    trials = [_trial("baseline", 0, final=3.13), _trial("rate=0.1", 0, final=2.62)]
    assert why_failed(trials) == (
        "The run of seed 0 ended at 3.13, 0.51 nats above the same run with rate=0.1; "
        "the limit is 0.25."
    )
    bar = limit(trials)
    assert bar is not None and bar == (pytest.approx(2.87), "rate=0.1")
    near = [_trial("baseline", 0, final=2.8), _trial("rate=0.1", 0, final=2.62)]
    assert why_failed(near) == "" and limit(near) is None
    lost = [_trial("baseline", 0, "diverged", onset=21), _trial("rate=0.1", 0)]
    assert why_failed(lost).startswith("The run of seed 0 diverged at step 21: its loss passed 50")
    assert limit(lost) is None
    assert "above where it began" in why_failed([_trial("baseline", 0, "failed", final=5.0)])
