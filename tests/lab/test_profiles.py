"""Profiles over training: curves and the table."""

from __future__ import annotations

import pytest

from lab.experiments.profiles import PROFILES, ProfileRow
from rksp.confirm.trial import profile_curves
from rksp.watch.monitors.base import Reading


def _read(quantity: str, step: int, value: float, layer: str = "") -> Reading:
    return Reading(monitor="m", quantity=quantity, step=step, layer=layer, value=value)


def test_a_curve_takes_the_model_s_mass_a_geometric_mean_and_the_shortest_window() -> None:
    readings = [
        _read("near_unit_mass", 0, 0.5),
        _read("near_unit_mass", 0, 0.9, "block"),
        *(_read("stable_rank", 10, value, f"w{value}") for value in (2.0, 8.0)),
        *(_read("qk_delta2_rank_10", 10, value, f"a{value}") for value in (2.0, 4.0)),
        _read("qk_delta2_rank_100", 10, 50.0, "a"),
        _read("qk_delta2_rank_10", 20, float("nan"), "a"),
        _read("loss", 0, 3.0),
    ]
    curves = profile_curves(readings)
    assert curves == {
        "near_unit_mass": [(0, 0.5)],
        "stable_rank": [(10, pytest.approx(4.0))],
        "qk_delta2_rank": [(10, 3.0)],
    }
    assert profile_curves([]) == {}


def test_the_table_shows_means_over_seeds_and_how_many_runs_learned() -> None:
    rows = [
        ProfileRow(family="zoo_pre_ln", rate=0.1, seed=seed, final_loss=2.0 + 2 * seed,
                   loss=[(0, 5.0), (30, 2.0 + seed)],
                   profiles={"near_unit_mass": [(0, 0.25), (30, 0.5 + seed / 2)]})
        for seed in range(2)
    ]  # fmt: skip
    printed = PROFILES.table(rows)
    assert "| pre_ln | 1/2 | 0 | 5.00 | 0.25 | – | – |" in printed  # 4.0 nats is no learning
    assert "|  |  | 30 | 2.50 | 0.75 | – | – |" in printed
    assert "costs 3.313 nats" in printed
