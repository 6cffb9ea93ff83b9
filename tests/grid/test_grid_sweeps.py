"""Sweeps of other programs come back from a grid without the cells that fail."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest
import yaml
from support.commands import run_rksp
from support.grid_readme import example
from support.grid_runs import fill_done

from rksp.grid.axes import read_override
from rksp.grid.plan import read_plan
from rksp.grid.table import SUFFIXES, check_export, export_sweep
from rksp.ground.errors import InputError

AXES = {"lr": [1e-4, 1e-3, 0.1], "n_layer": [2, 4], "optimizer": ["adamw", "lion"]}
SWEEP = """
program: train.py
method: random
metric: {name: loss, goal: minimize}
parameters:
  optimizer:
    parameters:
      lr: {values: [0.0001, 0.1]}
  n_layer: {value: 2}
"""


def _cells(*dropped: object, **axes: list) -> list[dict]:
    """The labels of a grid without the cells that have one of these values."""
    plan = read_plan(axes or AXES, target="gpt2")
    return [dict(c.labels) for c in plan.cells if not set(c.labels.values()) & set(dropped)]


def _same(found: list[dict], kept: list[dict]) -> bool:
    by_text = lambda cell: json.dumps(cell, sort_keys=True)
    return sorted(map(by_text, found)) == sorted(map(by_text, kept))


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_a_sweep_reads_back_as_the_cells_that_were_kept(suffix, tmp_path):
    kept, path = _cells(0.1), tmp_path / f"sweep.{suffix}"
    assert export_sweep(kept, path) == ""
    found = [dict(cell.labels) for cell in read_plan(str(path), target="gpt2").cells]
    assert len(found) == 8
    assert _same(found, kept)


def test_a_product_that_holds_more_than_the_cells_says_so(tmp_path):
    kept = _cells(0.1)[1:]
    note = export_sweep(kept, tmp_path / "sweep.yaml")
    assert "also lists 1 combination outside the 7 cells" in note
    assert len(read_plan(str(tmp_path / "sweep.yaml"), target="gpt2").cells) == 8
    assert export_sweep(kept, tmp_path / "trials.json") == ""
    assert len(read_plan(str(tmp_path / "trials.json"), target="gpt2").cells) == 7


def test_a_sweep_keeps_its_head_and_its_nesting(tmp_path):
    source = tmp_path / "sweep.yaml"
    source.write_text(SWEEP)
    plan = read_plan(str(source), target="gpt2")
    cells = [dict(cell.labels) for cell in plan.cells]
    assert [cell["optimizer.lr"] for cell in cells] == [1e-4, 0.1]
    export_sweep(cells[:1], tmp_path / "kept.yaml", plan.sweep)
    assert yaml.safe_load((tmp_path / "kept.yaml").read_text()) == {
        "program": "train.py",
        "method": "random",
        "metric": {"name": "loss", "goal": "minimize"},
        "parameters": {
            "optimizer": {"parameters": {"lr": {"value": 1e-4}}},
            "n_layer": {"value": 2},
        },
    }
    assert read_plan("gpt2", ["lr=1e-3"]).sweep == {}


BAYES = """
program: train.py
method: bayes
metric: {name: loss, goal: minimize}
early_terminate: {type: hyperband, min_iter: 3}
parameters:
  lr: {distribution: KIND, min: LOW, max: HIGH}
  warmup: {min: 0, max: 500}
  optimizer: {values: [adamw, sgd]}
"""


@pytest.mark.parametrize(
    ("kind", "low", "high", "end"),
    [
        ("log_uniform_values", 1e-5, 0.1, 5e-3),
        ("log_uniform", math.log(1e-5), math.log(0.1), math.log(5e-3)),
        ("uniform", 1e-5, 0.1, 5e-3),
        ("uniform", 1e-5, 1e-3, 1e-3),  # no rate of it is too high
    ],
)
def test_an_adaptive_sweep_comes_back_from_its_store_with_a_narrower_range(
    kind, low, high, end, tmp_path
):
    source, kept = tmp_path / "sweep.yaml", tmp_path / "kept.yaml"
    source.write_text(
        BAYES.replace("KIND", kind).replace("LOW", str(low)).replace("HIGH", str(high))
    )
    plan = read_plan(str(source), target="gpt2", samples=30)
    worse = {"verdict": "risk", "probability_failed": 0.9}
    fill_done(tmp_path / "g.db", plan, lambda r: worse if r["optimizer"] == "sgd" else {})
    said = run_rksp("grid", str(tmp_path / "g.db"), "--exit-zero", "--export", str(kept))
    assert "least rate not to exceed" in said.stderr
    sweep, before = (yaml.safe_load(file.read_text()) for file in (kept, source))
    assert sweep.pop("parameters") == {
        "lr": {"distribution": kind, "min": low, "max": pytest.approx(end)},
        "warmup": {"min": 0, "max": 500},
        "optimizer": {"value": "adamw"},
    }
    del before["parameters"]
    assert sweep == before
    assert read_plan(str(kept), target="gpt2", samples=5).cells


def test_a_range_above_every_safe_rate_becomes_the_rates_of_the_cells(tmp_path):
    head = {"method": "bayes", "parameters": {"lr": {"min": 0.1, "max": 0.5}}}
    export_sweep([{"lr": 0.2}, {"lr": 0.3}], tmp_path / "kept.yaml", head, 5e-3)
    assert yaml.safe_load((tmp_path / "kept.yaml").read_text())["parameters"] == {
        "lr": {"values": [0.2, 0.3]}
    }


def test_a_line_of_overrides_reads_back_as_its_cell(tmp_path):
    odd = {"lr": 1e-5, "name": "a 'b', c", "on": True, "no": None, "zip": [1, "1"]}
    kept = [*_cells(0.1), odd]
    export_sweep(kept, tmp_path / "overrides.txt")
    lines = (tmp_path / "overrides.txt").read_text().splitlines()
    assert lines[0] == "lr=0.0001 n_layer=2 optimizer=adamw"
    found = [dict(read_override(text) for text in shlex.split(line)) for line in lines[:-1]]
    assert _same([{n: axis.values[0] for n, axis in cell.items()} for cell in found], kept[:-1])
    assert shlex.split(lines[-1])[1:] == [
        r"name='a \'b\', c'",
        "on=true",
        "no=null",
        "zip=[1,'1']",
    ]


def test_hydra_itself_reads_every_override(tmp_path):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    texts = ["a 'b', c", "1e-3", "null", "a\\b", "c\\", "d\\'"]
    values = [1e-5, 3, True, None, *texts, [1, "x y"], {"k": 1.5}]
    export_sweep([{"value": value} for value in values], tmp_path / "overrides.txt")
    lines = (tmp_path / "overrides.txt").read_text().splitlines()
    read = parser.OverridesParser.create().parse_overrides([shlex.split(line)[0] for line in lines])
    assert [override.value() for override in read] == values


def test_trials_are_what_optuna_enqueues(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kept = _cells(0.1)
    monkeypatch.chdir(tmp_path)
    export_sweep(kept, Path("trials.json"))
    ran: dict[str, object] = {}
    exec(example("enqueue_trial"), ran)  # of the README

    def objective(trial):
        trial.suggest_float("lr", 1e-5, 1.0, log=True)
        trial.suggest_int("n_layer", 1, 8)
        trial.suggest_categorical("optimizer", ["adamw", "lion"])
        return 0.0

    ran["study"].optimize(objective, n_trials=len(kept))
    assert [trial.params for trial in ran["study"].trials] == kept  # the best cell first


def test_where_no_cell_is_left_nothing_is_written(tmp_path):
    assert "no cell is left" in export_sweep([], tmp_path / "sweep.yaml")
    assert list(tmp_path.iterdir()) == []


def test_every_suffix_is_known_before_the_work(tmp_path):
    for suffix in SUFFIXES:
        check_export(tmp_path / f"x{suffix}")
    with pytest.raises(InputError, match=r"\.ndjson, \.yaml"):
        check_export(tmp_path / "x.xlsx")
