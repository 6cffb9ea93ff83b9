"""Forecasts of runs are scored against how the runs ended, beside the rule of one rate."""

from __future__ import annotations

import json

import pytest

from lab.fit.real_ladders import read_real_ladders
from lab.forecasts import forecasts, scored


def _run(rate: float) -> dict[str, object]:
    arch = {"family": "llama", "hidden_size": 1024, "layers": 24, "vocab": 50_000, "seq_len": 2048}
    recipe = {"optimizer": "adamw", "warmup_steps": 2000, "schedule": "cosine", "steps": 50_000}
    recipe |= {"batch_tokens": 500_000, "learning_rate": rate}
    return {"id": str(rate), "group": "a", "kind": "decoder", "arch": arch, "recipe": recipe}


@pytest.fixture
def said(tmp_path):
    path = tmp_path / "runs.jsonl"
    rows = [_run(rate) | {"trained_well": None} for rate in (1e-4, 1.0)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_real_ladders([path]) == []  # nobody knows yet how they end
    runs = read_real_ladders([path], unfinished=True)
    return forecasts(runs, [], leave_out=False, day="2026-11-24")


def test_a_forecast_has_its_date_its_data_and_the_three_rates(said):
    low, high = said
    assert low["made"] == "2026-11-24" and len(low["data"]) == 64
    assert low["do_not_exceed"] < low["likely_edge"] == high["likely_edge"]
    assert low["failed"] < 0.05 < 0.95 < high["failed"]


def test_what_comes_true_scores_near_zero_and_what_does_not_near_one(said):
    brier = lambda ended: float(scored(said, ended).splitlines()[2].split("|")[4])
    assert brier({"0.0001": False, "1.0": True}) < 0.01
    assert brier({"0.0001": True, "1.0": False}) > 0.9
    assert scored(said, {}) == "None of the runs has ended."
