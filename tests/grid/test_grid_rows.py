"""Rows of CSV and JSON Lines: columns set the model that they name, and exports read back."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from safetensors.torch import save_file
from support.grid_runs import fill_done

from rksp.grid.group import Options
from rksp.grid.plan import GridPlan, read_plan
from rksp.grid.run import read_grid, run_grid
from rksp.grid.table import export
from rksp.ground.errors import InputError

COLUMNS = "Name,learning_rate,n_layer,hidden_size,val/loss,_runtime\n"


def keys(plan: GridPlan) -> list[str]:
    return sorted(cell.key(Options()) for cell in plan.cells)


def test_columns_that_are_settings_of_the_target_set_it(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"{COLUMNS}a,1e-3,2,64,3.1,9\nb,3e-3,4.0,64,2.9,9\n")
    plan = read_plan(str(path), target="gpt2")
    assert [dict(cell.overrides) for cell in plan.cells] == [
        {"n_layer": 2, "hidden_size": 64},
        {"n_layer": 4, "hidden_size": 64},
    ]
    assert type(plan.cells[1].overrides["n_layer"]) is int
    assert plan.notes == (
        "Ignored columns (neither recipe nor settings of the model): Name, _runtime, val/loss.",
    )


@pytest.mark.parametrize(
    ("column", "is_trained"),
    [("model_name_or_path", True), ("config.model_name_or_path", True), ("model", False)],
)
def test_a_column_that_names_weights_is_fine_tuning(column, is_trained, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"Name,learning_rate,{column}\na,2e-5,gpt2\n")
    assert [cell.has_weights for cell in read_plan(str(path)).cells] == [is_trained]
    sweep = read_plan({"lr": [2e-5], column: ["gpt2"]})
    assert [(c.target, c.has_weights) for c in sweep.cells] == [("gpt2", is_trained)]


def test_each_row_is_read_by_its_own_target(tmp_path):
    path = tmp_path / "runs.jsonl"
    rows = [{"target": name, "lr": 1e-3, "n_embd": 64} for name in ("gpt2", "llama")]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [dict(c.overrides) for c in read_plan(str(path)).cells] == [{"n_embd": 64}, {}]


def test_columns_that_repeat_a_checkpoints_settings_do_not_change_it(tmp_path):
    settings = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    path = tmp_path / "runs.csv"
    path.write_text(f"{COLUMNS}a,1e-3,2,8,3.1,9\nb,3e-3,4,8,2.9,9\n")
    plan = read_plan(str(path), target=str(tmp_path))
    assert [dict(cell.overrides) for cell in plan.cells] == [{}, {"n_layer": 4}]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_an_export_reads_back_as_the_same_cells(suffix, tmp_path):
    grids = [
        {"lr": [1e-4, 1e-2], "warmup": [0, 0.1], "n_layer": [2, 4], "seed": [0, 1]},
        {"lr": [1.0], "optimizer": ["sgd"], "clip": [0], "schedule": ["step"],
         "decay_milestones": ["100,200"], "batch_ramp": ["0:16,100:32"], "dropout": [0.1]},
        {"lr": [2e-5], "model_name_or_path": ["gpt2"]},
    ]  # fmt: skip
    plan = read_plan(grids, target="gpt2", overrides={"activation_function": "relu"})
    fill_done(
        tmp_path / "g.db",
        plan,
        lambda recipe: {"findings": [{"code": "RKSP501", "level": "error"}]},
    )
    result = read_grid(tmp_path / "g.db")
    path = tmp_path / f"cells.{suffix}"
    export(result.records(), path)
    again = read_plan(str(path))
    assert keys(again) == keys(plan)
    assert len(again.cells) == 18
    assert not any("repeat" in note for note in again.notes)


def test_findings_are_a_list_in_a_document_and_a_text_in_a_table(tmp_path):
    plan = read_plan({"lr": [1e-4]}, target="gpt2")
    found = [{"code": "RKSP501", "level": "error"}, {"code": "RKSP503", "level": "warning"}]
    fill_done(tmp_path / "g.db", plan, lambda recipe: {"findings": found})
    [record] = read_grid(tmp_path / "g.db").records()
    assert [one.model_dump() for one in record.findings] == found
    export([record], tmp_path / "cells.csv")
    [row] = csv.DictReader((tmp_path / "cells.csv").read_text().splitlines())
    assert row["findings"] == "RKSP501 error RKSP503 warning"


def test_a_field_that_a_later_row_sets_is_refused_beside_its_option(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("lr,warmup,n_layer\n1e-3,,\n2e-3,10,2\n")
    with pytest.raises(InputError, match="--warmup-steps and the axis warmup set the same"):
        read_plan(str(path), target="gpt2", recipe={"warmup_steps": 5})
    with pytest.raises(InputError, match="--set n_layer and the axis n_layer set the same"):
        read_plan(str(path), target="gpt2", overrides={"n_layer": 3})


UNTOLD = """\
model_name_or_path: gpt2
learning_rate: ${oc.env:LR}
per_device_train_batch_size: 4
max_steps: 1000
output_dir: out
"""


def test_what_a_run_file_leaves_unknown_is_unknown_in_each_cell(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(UNTOLD)
    options = Options(evidence="config")
    plan = read_plan(str(path), ["warmup_steps=0,100"])
    found = run_grid(plan, tmp_path / "grid.db", options=options).records()
    assert [record.verdict for record in found] == ["cannot tell"] * 2
    assert all("${oc.env:LR}" in record.reasons for record in found)
    told = read_plan(str(path), ["lr=1e-4,1e-3"])  # the axis says what the file does not
    assert {cell.key(options) for cell in told.cells}.isdisjoint(c.key(options) for c in plan.cells)
    found = run_grid(told, tmp_path / "told.db", options=options).records()
    assert "cannot tell" not in {record.verdict for record in found}
