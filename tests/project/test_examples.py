"""What lies in examples/ does what the README says of it."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from support.commands import run_rksp
from support.places import ROOT

import rksp

EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_every_example():
    named = {*re.findall(r"examples/([\w.]+)", README)} | {"train.py"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} <= named


def test_the_broken_recipe_is_the_fine_one_with_another_rate():
    fine, hot = (
        yaml.safe_load((EXAMPLES / name).read_text()) for name in ("gpt2.yaml", "gpt2_hot.yaml")
    )
    assert {key for key in fine if fine[key] != hot[key]} == {"learning_rate"}
    fixed = rksp.fix(EXAMPLES / "gpt2_hot.yaml", devices=1)
    assert (fixed.before.verdict, fixed.after.verdict) == ("risk", "ok")


def test_a_folder_of_examples_is_scored_in_one_call():
    done = run_rksp("score", str(EXAMPLES), "--devices", "1", "--format", "json")
    rows = {
        row["name"].rpartition("/")[2]: row["verdict"] for row in json.loads(done.stdout)["rows"]
    }
    assert rows["gpt2.yaml"] == "ok" and rows["gpt2_hot.yaml"] == "risk"
    assert "workflow.yml" not in rows
    assert done.returncode == 1


def test_the_log_of_the_failed_run_is_told_right():
    done = run_rksp("why", str(EXAMPLES / "failed_run"), "--format", "json")
    assert json.loads(done.stdout)["verdict"] == "failed"


def test_the_grid_has_settings_that_are_a_risk_and_others():
    done = run_rksp("grid", str(EXAMPLES / "grid.yaml"), "--evidence", "config", "--format", "json")
    assert {"ok", "risk"} <= {cell["verdict"] for cell in json.loads(done.stdout)["cells"]}


def test_the_cells_of_the_notebook_run(monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, object] = {}
    for cell in json.loads((EXAMPLES / "score.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["hot"].verdict == "risk" and "learning_rate" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["target", "devices", "fail-on"])
def test_the_workflow_gives_inputs_that_the_action_has(key):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    workflow = yaml.safe_load((EXAMPLES / "workflow.yml").read_text())
    step = workflow["jobs"]["rksp"]["steps"][-1]
    assert key in step["with"] and step["with"].keys() <= action["inputs"].keys()
