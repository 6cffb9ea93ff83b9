"""Trained weights never meet the model of random initializations: tiers, Python, grids, gates."""

from __future__ import annotations

import json

import pytest
import torch
from support.commands import left_with
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel

import rksp
from rksp.assessment.model_choice import TRAINED
from rksp.grid.cell import Options
from rksp.grid.sweepers.gate import RiskGate

SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 64}
SETTINGS = [f"--set={name}={value}" for name, value in SIZES.items()]
NUMBERS = (
    *("probability_failed", "probability_failed_low", "probability_failed_high", "start_here"),
    *("start_excess", "start_failed", "likely_edge", "do_not_exceed", "expected_excess"),
)
SHORT = ("--sequence-length", "64", "--snapshots", "128")
TIERS = ("config", "forward", "response")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    config = GPT2Config(**SIZES, pad_token_id=0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


def scored(capsys, *arguments: str) -> dict:
    left_with(["score", *arguments, *SHORT, "--exit-zero", "--format", "json"])
    return json.loads(capsys.readouterr().out)


def is_untold(risk: dict) -> bool:
    """Whether the answer is "cannot tell" without any number."""
    blank = not any(risk[name] is not None for name in NUMBERS)
    return risk["verdict"] == "cannot tell" and blank and risk["curve"] == []


@pytest.mark.parametrize("evidence", TIERS)
def test_a_checkpoint_cannot_be_told(checkpoint, evidence, capsys):
    report = scored(capsys, str(checkpoint), "--lr", "2e-5", "--evidence", evidence)
    risk = report["seeds"][0]["risk"]
    assert is_untold(risk) and risk["reasons"][0] == TRAINED


@pytest.mark.parametrize("evidence", TIERS)
def test_a_head_on_stored_weights_cannot_be_told(classifier, evidence, capsys):
    report = scored(capsys, str(classifier), "--lr", "2e-5", "--evidence", evidence)
    assert is_untold(report["seeds"][0]["risk"])


@pytest.mark.parametrize("evidence", TIERS)
@pytest.mark.parametrize(
    "more",
    [
        ("--peft", "lora", "--lora-rank", "8"),
        ("--objective", "dpo"),
        ("--objective", "grpo"),
        ("--objective", "distillation"),
    ],
    ids=lambda more: more[1],
)
def test_adapters_and_unseen_objectives_cannot_be_told(evidence, more, capsys):
    report = scored(capsys, "gpt2", *SETTINGS, "--lr", "1e-4", *more, "--evidence", evidence)
    risk = report["seeds"][0]["risk"]
    assert is_untold(risk)
    assert (risk["reasons"][0] == TRAINED) is (more[1] != "distillation")


@pytest.mark.parametrize("evidence", ["config", "response"])
def test_random_weights_are_answered(evidence, capsys):
    report = scored(capsys, "gpt2", *SETTINGS, "--lr", "1e-4", "--evidence", evidence)
    risk = report["seeds"][0]["risk"]
    assert not is_untold(risk) and None not in [risk[name] for name in NUMBERS]


def test_the_usual_ceiling_is_still_known(checkpoint, capsys):
    report = scored(capsys, str(checkpoint), "--lr", "2e-2", "--evidence", "config")
    finding = next(f for f in report["findings"] if f["code"] == "RKSP508")
    assert "Lower the learning rate to" in finding["fix"] and "2e-2" not in finding["fix"]


@pytest.mark.parametrize("evidence", ["config", "response"])
def test_python_cannot_tell_either(checkpoint, evidence):
    found = rksp.score(str(checkpoint), lr=2e-5, evidence=evidence, states=128)
    assert is_untold(found.report.seeds[0].risk.model_dump(mode="json"))
    assert found.rates() == {} and found.probability_failed is None
    tuned = rksp.score(
        GPT2LMHeadModel(GPT2Config(**SIZES)),
        lr=2e-5,
        is_pretrained=True,
        evidence=evidence,
        states=128,
    )
    assert is_untold(tuned.report.seeds[0].risk.model_dump(mode="json"))


def test_a_grid_and_a_gate_cannot_tell_either(checkpoint, tmp_path, capsys):
    store = str(tmp_path / "grid.db")
    grid = ["grid", str(checkpoint), "lr=2e-5,2e-3", "--evidence", "config", "-o", store]
    left_with([*grid, "--format", "json"])
    for cell in json.loads(capsys.readouterr().out)["cells"]:
        assert cell["verdict"] == "cannot tell" and cell["reasons"].startswith(TRAINED)
        assert cell["start_here"] is cell["probability_failed"] is None
    look = RiskGate(target=str(checkpoint), options=Options(evidence="config")).look({"lr": 1e-3})
    assert (look.verdict, look.prune, look.start_here) == ("cannot tell", False, None)


def test_a_run_file_with_adapters_cannot_be_told(tmp_path, capsys):
    file = tmp_path / "lora.yaml"
    file.write_text("learning_rate: 2.0e-4\nuse_peft: true\nlora_r: 8\nwarmup_ratio: 0.1\n")
    more = ("--recipe", str(file), "--evidence", "config")
    report = scored(capsys, "gpt2", *SETTINGS, *more)
    assert report["recipe"]["peft"] == "lora"
    assert is_untold(report["seeds"][0]["risk"])


@pytest.mark.parametrize(
    ("key", "is_trained"), [("model_name_or_path", True), ("config_name", False)]
)
def test_a_run_file_that_names_weights_cannot_be_told(tmp_path, key, is_trained, capsys):
    file = tmp_path / "run.yaml"
    arguments = "learning_rate: 2.0e-5\nwarmup_ratio: 0.1\nper_device_train_batch_size: 8\n"
    file.write_text(f"{key}: gpt2\n{arguments}output_dir: out\nmax_steps: 500\n")
    for more in ((str(file),), ("gpt2", "--recipe", str(file)), ("bert", "--recipe", str(file))):
        report = scored(capsys, *more, "--evidence", "config")
        assert is_untold(report["seeds"][0]["risk"]) is is_trained
    grid = ["grid", str(file), "lr=2e-5,2e-3", "--evidence", "config", "--format", "json"]
    left_with([*grid, "-o", str(tmp_path / "grid.db")])
    for cell in json.loads(capsys.readouterr().out)["cells"]:
        assert (cell["verdict"] == "cannot tell") is is_trained
        assert (cell["start_here"] is None) is is_trained
    assert (
        left_with(["transfer", str(file), "gpt2", "--evidence", "config", "--format", "json"]) == 0
    )
    carried = json.loads(capsys.readouterr().out)
    assert (carried["rate"] is None, carried["edge_shift"] is None) == (is_trained, is_trained)
    assert carried["reasons"] == [TRAINED] * is_trained and carried["rules"]


def test_a_rate_is_not_carried_from_stored_weights(checkpoint, capsys):
    pair = [str(checkpoint), str(checkpoint / "config.json")]
    assert left_with(["transfer", *pair, "--lr", "1e-3"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("cannot tell the rate") and TRAINED in page
    assert "the edge moves" not in page


def test_a_shrunk_confirmation_says_that_its_weights_are_random(checkpoint, tmp_path, capsys):
    assert left_with(["confirm", str(checkpoint), "--shrink", "--lr", "1e-3"]) == 2
    assert "leave out --shrink" in capsys.readouterr().err
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: gpt2\nlearning_rate: 2.0e-5\nwarmup_ratio: 0.1\n")
    few = ["--steps", "4", "--seeds", "1", "--batch-size", "2", "--sequence-length", "16"]
    quick = ["--arm", "baseline", "--monitor", "loss", *few, "--evidence", "config"]
    said = "started from random weights, but the run itself starts from trained ones"
    for target in ([str(file)], ["gpt2", "--lr", "2e-5"]):
        left_with(["confirm", *target, "--shrink", *quick, "--format", "json"])
        report = json.loads(capsys.readouterr().out)
        is_trained = target[0] != "gpt2"
        assert any(said in sentence for sentence in report["conclusions"]) is is_trained
        assert (report["prediction"]["probability_failed"] is None) is is_trained
