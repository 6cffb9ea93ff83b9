"""The cells of a grid that pass come back as sets of parameters for a sweeper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.grid_readme import example

from rksp.grid.plan import read_plan
from rksp.grid.table import SUFFIXES, check_export, export_cells
from rksp.ground.errors import InputError

AXES = {"lr": [1e-4, 1e-3, 0.1], "n_layer": [2, 4], "optimizer": ["adamw", "lion"]}


def _cells(*dropped: object) -> list[dict]:
    """The labels of a grid without the cells that have one of these values."""
    plan = read_plan(AXES, target="gpt2")
    return [dict(c.labels) for c in plan.cells if not set(c.labels.values()) & set(dropped)]


def test_sets_read_back_as_the_cells_that_were_kept(tmp_path):
    kept, path = _cells(0.1)[1:], tmp_path / "trials.json"
    export_cells(kept, path)
    found = [dict(cell.labels) for cell in read_plan(str(path), target="gpt2").cells]
    by_text = lambda cell: json.dumps(cell, sort_keys=True)
    assert len(found) == 7 and sorted(map(by_text, found)) == sorted(map(by_text, kept))


def test_trials_are_what_optuna_enqueues(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kept = _cells(0.1)
    monkeypatch.chdir(tmp_path)
    export_cells(kept, Path("trials.json"))
    ran: dict[str, object] = {}
    exec(example("enqueue_trial"), ran)  # of the README

    def objective(trial):
        trial.suggest_float("lr", 1e-5, 1.0, log=True)
        trial.suggest_int("n_layer", 1, 8)
        trial.suggest_categorical("optimizer", ["adamw", "lion"])
        return 0.0

    ran["study"].optimize(objective, n_trials=len(kept))
    assert [trial.params for trial in ran["study"].trials] == kept  # the best cell first


def test_every_suffix_is_known_before_the_work(tmp_path):
    for suffix in SUFFIXES:
        check_export(tmp_path / f"x{suffix}")
    with pytest.raises(InputError, match=r"\.ndjson, \.json"):
        check_export(tmp_path / "sweep.yaml")
