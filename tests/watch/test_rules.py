"""Alarm rules: what they fire at, what they leave alone, and that they can be replayed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from rksp.watch.monitors import rules
from rksp.watch.monitors.base import NO_RULE, Reading, Rule, Severity
from rksp.watch.monitors.rules import (
    MAD_EFFICIENCY,
    SINGLE_TAIL,
    Judge,
    Rules,
    fit_baseline,
    replay,
)
from rksp.watch.registry import RULES, rule_of

PLAIN = Rule(direction="up")


def _rules(rule: Rule = PLAIN, **numbers: object) -> Rules:
    return Rules(table={"q": rule}, **numbers)


def _readings(values, *, layer: str = "", every: int = 1, quantity: str = "q") -> list[Reading]:
    return [
        Reading(monitor="m", quantity=quantity, step=i * every, layer=layer, value=float(value))
        for i, value in enumerate(values)
    ]


def _together(*series: list[Reading]) -> list[Reading]:
    return [reading for row in zip(*series, strict=True) for reading in row]


def _ar(count: int, correlation: float, seed: int) -> np.ndarray:
    """Stationary Gaussian AR(1) of unit variance."""
    rng = np.random.default_rng(seed)
    shocks = rng.standard_normal(count)
    shocks[1:] *= math.sqrt(1 - correlation**2)
    return lfilter([1.0], [1.0, -correlation], shocks)


def _fit(samples, **options):
    return fit_baseline(samples, **{"floor": 0.0, "layers": 1, **options})


# the baseline


def test_white_noise_has_the_nominal_thresholds_and_its_own_spread() -> None:
    baseline = _fit(5 + 2 * _ar(256, 0.0, seed=0))
    assert (baseline.single_z, baseline.run_z) == (6.0, 4.0)
    assert baseline.scale == pytest.approx(2.0, rel=0.15)
    assert baseline.reference("up") == pytest.approx(5.0, abs=0.6)
    assert baseline.correlation < 0.3


def test_the_correlation_is_that_of_the_series() -> None:
    for rho in (0.0, 0.5, 0.9):
        found = np.mean([_fit(_ar(31, rho, seed=s)).correlation for s in range(40)])
        assert found == pytest.approx(rho, abs=0.22)


@pytest.mark.parametrize("count", [12, 16, 31])
def test_few_samples_raise_the_bar_to_student_s(count: int) -> None:
    baseline = _fit(_ar(count, 0.0, seed=1))
    n = count * (1 - baseline.correlation**2) / (1 + baseline.correlation**2)
    quantile = stats.t.isf(SINGLE_TAIL, max(1.0, MAD_EFFICIENCY * n))
    assert baseline.single_z > 6.0
    assert quantile < baseline.single_z < 2 * quantile  # widened by the error of the center
    assert baseline.single_z > _fit(_ar(2 * count, 0.0, seed=1)).single_z


def test_more_layers_and_more_correlation_raise_the_bar() -> None:
    samples = _ar(24, 0.0, seed=2)
    assert _fit(samples, layers=12).single_z > _fit(samples).single_z
    bars = [np.mean([_fit(_ar(48, r, seed=s)).single_z for s in range(20)]) for r in (0, 0.9)]
    assert bars[1] > bars[0] + 1


def test_a_trend_is_neither_spread_nor_correlation() -> None:
    for sign in (1, -1):
        ramp = sign * 0.02 * np.arange(100) + 0.2 * _ar(100, 0.0, seed=3)
        baseline = _fit(ramp)
        assert baseline.slope == pytest.approx(sign * 0.02, rel=0.1)
        assert baseline.correlation < 0.3
        step = 0.02 * math.sqrt(100)  # of a walk that comes as far
        assert baseline.scale == pytest.approx(math.hypot(0.2, step), rel=0.25)
        assert baseline.distance(ramp[-1] + 3, "up") > baseline.single_z * baseline.scale


def test_a_trend_toward_the_bad_side_may_go_on_and_one_toward_the_good_side_end() -> None:
    ramp = 0.1 * np.arange(60) + 0.2 * _ar(60, 0.0, seed=3)
    baseline = _fit(ramp)
    assert baseline.reference("up", 10) == pytest.approx(6.9, abs=0.3)
    assert baseline.distance(6.9, "up", 10) < 4 * baseline.scale
    assert baseline.reference("down", 10) == pytest.approx(4.95, abs=0.3)  # the newest third
    assert baseline.distance(5.0, "down", 10) < 4 * baseline.scale
    smooth = _fit(np.arange(30) ** 2 / 30)
    assert smooth.single_z > 20  # nothing smooth is judged by a few samples


# the rules


def test_a_single_sample_six_deviations_out_warns() -> None:
    x = _ar(200, 0.0, seed=4)
    assert replay(_readings(x), _rules()) == []
    x[150] = 9.0
    (alarm,) = replay(_readings(x), _rules())
    assert (alarm.step, alarm.severity, alarm.value) == (150, Severity.WARN, 9.0)
    assert alarm.baseline == pytest.approx(0.0, abs=0.6) and alarm.rule.startswith("z ")
    assert replay(_readings(-x), _rules()) == []  # the good side
    down = replay(_readings(-x), _rules(Rule(direction="down")))
    both = replay(_readings(-x), _rules(Rule(direction="both")))
    assert [a.step for a in down] == [a.step for a in both] == [150]


def test_three_samples_over_four_deviations_warn_and_two_do_not() -> None:
    x = _ar(200, 0.0, seed=5)
    x[150:152] = 5.0
    assert replay(_readings(x), _rules()) == []
    x[152] = 5.0
    (alarm,) = replay(_readings(x), _rules())
    assert alarm.step == 152 and "3 in a row" in alarm.rule


def test_a_lasting_shift_becomes_critical_once_and_its_baseline_is_frozen() -> None:
    x = _ar(400, 0.0, seed=6)
    x[200:] += 9.0
    alarms = replay(_readings(x), _rules())
    assert [(a.severity, a.step) for a in alarms] == [
        (Severity.WARN, 200),
        (Severity.CRITICAL, 209),
    ]
    x[300:] -= 9.0
    x[350] = 9.0
    again = replay(_readings(x), _rules())
    assert [a.step for a in again] == [200, 209, 350]  # it closed, on the old baseline
    assert [a.is_escalation for a in again] == [False, True, False]


def test_a_falling_loss_that_jumps_warns_and_one_that_returns_from_a_dip_does_not() -> None:
    """The trend counts as spread, so that z alone would let two nats pass."""
    rng = np.random.default_rng(0)
    falling = 6.0 - 0.07 * np.arange(32) + rng.normal(scale=0.05, size=32)
    jumped = np.concatenate([falling, np.full(5, falling[-1] + 2.0)])
    alarms = replay(_readings(jumped), _rules(Rule(floor=0.05)))
    assert [alarm.step for alarm in alarms] == [32] and "leap" in alarms[0].rule
    dipped = np.concatenate([falling, [falling[-1] - 2.0], falling[-1:]])
    assert replay(_readings(dipped), _rules(Rule(floor=0.05))) == []


def test_flagged_samples_never_enter_the_baseline(monkeypatch) -> None:
    x = _ar(300, 0.0, seed=7)
    x[100::5] = 7.0  # over the bar, never three in a row
    monkeypatch.setattr(rules, "SINGLE_Z", 20.0)
    judge = Judge(_rules())
    for reading in _readings(x):
        assert judge.feed([reading]) == []
    (series,) = judge._quantities["m", "q"].layers.values()
    assert max(series.samples) < 7.0 and series.count == 260


def test_a_logarithm_tames_heavy_tails() -> None:
    x = np.exp(1.0 * _ar(400, 0.0, seed=8))
    log = Rule(direction="up", transform="log")
    assert replay(_readings(x), _rules(log)) == []
    assert replay(_readings(x), _rules()) != []
    x[300] = math.exp(8.0)
    (alarm,) = replay(_readings(x), _rules(log))
    assert alarm.baseline == pytest.approx(1.0, rel=0.7)


def test_a_floor_is_the_smallest_change_worth_an_alarm() -> None:
    x = 1 + 1e-4 * _ar(100, 0.0, seed=9)
    x[80] = 1.1
    assert [a.step for a in replay(_readings(x), _rules())] == [80]
    assert replay(_readings(x), _rules(Rule(direction="up", floor=0.05))) == []


def test_hard_limits_speak_at_once_and_soft_ones_only_when_crossed() -> None:
    rule = Rule(direction=None, warn=1.0, critical=5.0)
    assert [a.severity for a in replay(_readings([6.0]), _rules(rule))] == [Severity.CRITICAL]
    assert replay(_readings([2.0] * 50), _rules(rule)) == []  # it starts there
    (alarm,) = replay(_readings([0.5, 2.0, 2.0]), _rules(rule))
    assert (alarm.step, alarm.severity, alarm.baseline) == (1, Severity.WARN, None)
    down = Rule(direction="down", warn=4.0)
    assert [a.step for a in replay(_readings([9, 8, 4, 3]), _rules(down))] == [2]


def test_patience_waits() -> None:
    rule = Rule(direction=None, critical=1.0, patience=4)
    assert replay(_readings([1, 1, 1, 0, 1, 1, 1]), _rules(rule)) == []
    assert [a.step for a in replay(_readings([0, 1, 1, 1, 1]), _rules(rule))] == [4]


def test_ten_times_the_median_three_times_is_critical() -> None:
    x = np.exp(0.5 * _ar(100, 0.0, seed=10))
    x[80:83] = 40.0
    rule = dataclasses.replace(RULES["gradient_norm"], floor=3.0)  # the ratio alone
    (alarm,) = replay(_readings(x), _rules(rule))
    assert (alarm.step, alarm.severity) == (82, Severity.CRITICAL)
    x[82] = 1.0
    assert replay(_readings(x), _rules(rule)) == []


def test_a_series_that_often_passes_the_ratio_has_a_wider_one() -> None:
    rule = dataclasses.replace(RULES["gradient_norm"], floor=9.0)  # the ratio alone
    for spread, count in ((0.5, 1), (2.0, 0)):
        x = np.exp(spread * _ar(100, 0.0, seed=10))
        x[80:83] = 40.0 * np.median(x)
        assert len(replay(_readings(x), _rules(rule))) == count


def test_what_is_not_finite_is_critical_whatever_the_rule() -> None:
    for value in (math.nan, math.inf, -math.inf):
        (alarm,) = replay(_readings([1.0, value]), Rules(warmup_steps=100))
        assert (alarm.step, alarm.severity, alarm.rule) == (1, Severity.CRITICAL, "not finite")


def test_a_leap_far_beyond_every_threshold_is_critical_at_once() -> None:
    loss = np.linspace(4.0, 1.2, 60) + 0.05 * _ar(60, 0.0, seed=15)
    for height, severity in ((3.0, Severity.WARN), (82.0, Severity.CRITICAL)):
        readings = _readings(np.append(loss, height), quantity="loss")
        (alarm,) = replay(readings, Rules())
        assert (alarm.step, alarm.severity) == (60, severity), alarm


def test_no_alarm_advises_what_is_on_already() -> None:
    x = np.exp(0.1 * _ar(100, 0.0, seed=16))
    x[90:] = 60.0
    readings = _readings(x, quantity="attention_max_logit")
    for active, advice in (
        ((), "qk_clip"),
        (("qk_clip",), "backoff"),
        (("qk_clip", "backoff"), ""),
    ):
        alarms = replay(readings, Rules(active=frozenset(active)))
        assert alarms and {alarm.advice for alarm in alarms} == {advice}


def test_warm_up_is_silent_and_leaves_no_trace() -> None:
    x = _ar(300, 0.0, seed=11)
    x[:100] += np.linspace(30, 0, 100)
    x[50] = 200.0
    quiet = _rules(warmup_steps=100)
    assert replay(_readings(x), quiet) == []
    assert [a.step for a in replay(_readings(x), _rules())] == [50]
    x[250] = 8.0  # nothing beside the warm-up's own spread
    assert [a.step for a in replay(_readings(x), quiet)] == [250]
    hard = _rules(Rule(direction="up", critical=50.0), warmup_steps=100)
    assert replay(_readings(x), hard)[0].step == 50


def test_the_worst_layer_speaks_for_all() -> None:
    rows = [_readings(_ar(200, 0.0, seed=s), layer=f"layer.{s}") for s in range(6)]
    clean = _together(*rows)
    assert replay(clean, _rules()) == []
    for s, value in ((2, 20.0), (4, 30.0)):
        rows[s][150] = dataclasses.replace(rows[s][150], value=value)
    (alarm,) = replay(_together(*rows), _rules())
    assert (alarm.layer, alarm.layers, alarm.step) == ("layer.4", 2, 150)


def test_quantities_without_a_rule_are_kept_and_not_judged() -> None:
    x = _ar(200, 0.0, seed=14)
    x[150] = 1e9
    assert replay(_readings(x), Rules(table={})) == []


@pytest.mark.parametrize(
    ("correlation", "every"), [(0.0, 1), (0.5, 1), (0.9, 1), (0.97, 1), (0.5, 50)]
)
def test_at_most_a_false_alarm_in_a_thousand_stationary_steps_for_thirty_quantities(
    correlation: float, every: int
) -> None:
    """Runs of thirty series and a thousand steps, all starting cold; hardest near a random walk."""
    runs, steps, alarms = 2 if every == 1 else 20, 1000 // every, 0
    for run in range(30 * runs):
        x = _ar(steps, correlation, seed=1000 + run)
        alarms += len(replay(_readings(x, every=every), _rules()))
    assert alarms / runs <= (1.0 if correlation <= 0.9 else 5.0)


def test_the_table_is_sound() -> None:
    for name, rule in RULES.items():
        for value in (0.5, 2.0):
            assert rule.restored(rule.transformed(value)) == pytest.approx(value), name
        if rule is not NO_RULE:  # which watches nothing: its quantity is advice
            limits = (rule.direction, rule.warn, rule.critical)
            assert any(limit is not None for limit in limits), name
        if rule.ratio is not None:
            assert rule.direction in ("up", "down"), name


def test_a_window_in_the_name_has_the_rule_of_its_stem() -> None:
    assert rule_of("qk_delta2_rank_500", RULES) is RULES["qk_delta2_rank"]
    assert rule_of("gradient_norm", RULES) is RULES["gradient_norm"]
    assert rule_of("gradient_norm_x", RULES) is rule_of("absent_50", RULES) is NO_RULE


def test_a_replay_in_pieces_is_the_replay() -> None:
    rows = [_readings(_ar(300, 0.6, seed=s), layer=f"layer.{s}") for s in range(3)]
    rows[1][200] = dataclasses.replace(rows[1][200], value=40.0)
    readings = _together(*rows)
    judge = Judge(_rules())
    live = []
    for step in range(300):
        for layer in range(3):  # each layer on its own, as a monitor that reports late would
            live += judge.feed([readings[3 * step + layer]])
    assert [a.step for a in replay(readings, _rules())] == [200]
    assert [a.step for a in live] == [200]
