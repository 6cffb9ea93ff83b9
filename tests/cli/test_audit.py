"""`rksp audit`, and the same advisories in a score, a grid and an explanation."""

from __future__ import annotations

import json

import pytest
from support.commands import left_with
from support.places import TESTS

from rksp.checks.advisories import Affected
from rksp.checks.environment import Environment, read_environment

FREEZES = TESTS / "checks/freezes"
LATE = str(FREEZES / "late_2024.txt")
FILE = """\
model_name_or_path: gpt2
dataset_name: owner/data
max_prompt_length: 64
beta: 0.1
learning_rate: 1.0e-6
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_steps: 100
bf16: true
"""


def _without_trl(monkeypatch):
    monkeypatch.setattr(
        "rksp.checks.environment.installed_here",
        lambda names: Environment(releases={}, is_whole=True),
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def test_a_known_fault_fails_with_its_fix_and_source(file, capsys):
    assert left_with(["audit", str(file), "--env", LATE]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("error    RKSA-2026-0003") and "run.yaml:7" in out
    told = " ".join(out.split())
    assert "transformers 4.46.3, affected >=4.46.2,<4.48.0" in told
    assert '(pip install "transformers>=4.48.0")' in told
    assert "https://github.com/huggingface/transformers/pull/35207" in out
    assert "checked 2026-" in out and "rksp audit -v lists them" in err


def test_another_release_has_no_such_fault(file, capsys):
    assert left_with(["audit", str(file), "--env", str(FREEZES / "newest.txt")]) == 0
    assert "RKSA-2026-0003" not in capsys.readouterr().out


def test_what_is_ignored_is_left_out(file, capsys):
    assert left_with(["audit", str(file), "--env", LATE, "--ignore", "rksa-2026-0003"]) == 0
    assert "0003" not in capsys.readouterr().out
    assert left_with(["audit", str(file), "--env", LATE, "--ignore", "RKSA-2026-9999"]) == 2


def test_what_is_not_known_is_listed_on_demand(file, capsys):
    left_with(["audit", str(file), "--env", LATE, "-v"])
    out = capsys.readouterr().out
    assert "unknown  RKSA-2026-0010" in out and "Not known: world size." in out


def test_json_has_the_findings(file, capsys):
    left_with(["audit", str(file), "--env", LATE, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["code"] == "RKSA-2026-0003"
    (unsettled,) = (one for one in found["unsettled"] if one["code"] == "RKSA-2026-0010")
    assert unsettled["lacks"] == ["world_size"]
    assert unsettled["affected"] and unsettled["source"].startswith("https://")


@pytest.mark.parametrize(
    ("allowed", "is_included"),
    [
        (">=4.46.2,<4.47", True),
        ("~=4.47.0", True),
        (">=4.48", False),
        ("!=4.47.1,<4.46", False),
        (">=4.46", None),  # a part is affected
        ("", None),
    ],
)
def test_a_range_of_releases_is_judged_where_all_or_none_of_it_is_affected(
    allowed, is_included, tmp_path
):
    file = tmp_path / "requirements.txt"
    file.write_text(f"transformers{allowed}\n")
    affected = Affected(package="transformers", range=">=4.46.2,<4.48.0")
    assert affected.includes(read_environment(file)) is is_included


def test_a_gpu_and_a_model_decide(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(FILE.replace("gpt2", "owner/name"))
    args = ["audit", str(file), "--env", str(FREEZES / "newest.txt")]
    left_with([*args, "--gpu", "H100"])
    assert "RKSA-2026-0036" in capsys.readouterr().out
    left_with([*args, "--gpu", "A100"])
    assert "RKSA-2026-0036" not in capsys.readouterr().out
    assert left_with([*args, "--model", "no-such-type"]) == 2


def test_this_python_is_judged_alone_or_where_the_trainer_is(file, capsys, monkeypatch):
    assert left_with(["audit"]) == 0
    assert "established" in capsys.readouterr().out
    _without_trl(monkeypatch)
    assert left_with(["audit", str(file)]) == 2
    assert "trl is not installed here; give --env" in capsys.readouterr().err


def test_a_score_has_the_findings_and_a_file_may_not_ask_for_another_environment(
    file, capsys, tmp_path, monkeypatch
):
    args = ["score", str(file), "--evidence", "config", "--format", "json"]
    assert left_with([*args, "--env", LATE]) == 1
    report = json.loads(capsys.readouterr().out)
    codes = {one["code"]: one["level"] for one in report["findings"]}
    assert codes["RKSA-2026-0003"] == "error" and report["verdict"] == "risk"
    left_with([*args, "--env", LATE, "--ignore", "RKSA-2026-0003"])
    report = json.loads(capsys.readouterr().out)
    assert "RKSA-2026-0003" not in {one["code"] for one in report["findings"]}
    left_with([*args, "--env", LATE, "--select", "RKSA"])
    report = json.loads(capsys.readouterr().out)
    assert {one["code"][:4] for one in report["findings"]} == {"RKSA"}
    _without_trl(monkeypatch)
    left_with(args)
    out, err = capsys.readouterr()
    assert "RKSA" not in out and "trl is not installed here" in err
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".rksp.toml").write_text('[score]\nenv = "late.txt"\n')
    assert left_with(args) == 2
    assert "cannot stand in a file of defaults" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sarif", "junit", "markdown", "github", "gitlab", "html", "full"])
def test_every_format_of_a_score_shows_it(file, capsys, name):
    args = ["score", str(file), "--evidence", "config", "--env", LATE, "--format", name]
    assert left_with(args) == 1
    assert "RKSA-2026-0003" in capsys.readouterr().out


def test_a_comment_silences_what_does_not_fail(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(f"# rksp: ignore RKSA-2026-0037, RKSA-2026-0003\n{FILE}")
    args = ["score", str(file), "--evidence", "config", "--format", "json"]
    left_with([*args, "--env", LATE, "--gpu", "h100", "--level", "RKSA-2026-0037=warning"])
    out, err = capsys.readouterr()
    codes = {one["code"] for one in json.loads(out)["findings"]}
    assert "RKSA-2026-0003" in codes and "cannot ignore RKSA-2026-0003, an error" in err
    assert "RKSA-2026-0037" not in codes


def test_a_grid_says_it_once(file, capsys):
    left_with(["grid", str(file), "lr=1e-6,1e-5,1e-4", "--env", LATE, "--dry-run"])
    out, err = capsys.readouterr()
    assert err.count("error RKSA-2026-0003") == 1 and "RKSA" not in out


def test_an_advisory_is_explained(capsys):
    assert left_with(["explain", "rksa-2026-0036"]) == 0
    out = capsys.readouterr().out
    assert "torch >=2.11.0,<=2.13.0" in out and "ADV4-036" in out and "gpu H100 or H200" in out
    assert left_with(["explain", "RKSA-2026-9999"]) == 2


def test_a_trainer_without_a_package_is_one_sentence(tmp_path, capsys):
    file = tmp_path / "grpo.sh"
    file.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 "
        "actor_rollout_ref.model.path=Qwen/Qwen2-7B actor_rollout_ref.actor.optim.lr=1e-6\n"
    )
    assert left_with(["audit", str(file)]) == 2
    assert "rksp knows no package of its trainer, verl" in capsys.readouterr().err
    assert left_with(["report", str(file)]) == 2
    assert f"judge it with rksp score {file}" in capsys.readouterr().err
    store = tmp_path / "g.db"
    store.write_bytes(b"SQLite format 3\0" + bytes(100))
    assert left_with(["report", str(store)]) == 2
    assert f"show it with rksp grid {store}" in capsys.readouterr().err
