"""Checks from end to end: what `rksp score` says of a public mistake, and of its healthy twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rksp.cli import main

GOOD = [
    *("--lr", "3e-4", "--warmup-steps", "2000", "--max-steps", "100000", "--beta2", "0.95"),
    *("--batch-size", "1024", "--sequence-length", "64", "--evidence", "forward"),
]


def scored(capsys, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the level of every finding by code."""
    with pytest.raises(SystemExit) as leaving:
        main(["score", *arguments, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    return leaving.value.code, {f["code"]: f["level"] for f in report["findings"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model of each kind as configurations and one trained checkpoint."""
    from transformers import BertConfig, BertForSequenceClassification

    home = tmp_path_factory.mktemp("targets")
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64}
    mixtral = {
        **{"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64},
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64},
    }
    for name, config in {
        "gpt2": gpt2,
        "dropped": gpt2 | {"resid_pdrop": 0.9},
        "mixtral": mixtral | {"output_router_logits": False},
        "balanced": mixtral | {"output_router_logits": True},
    }.items():
        (home / f"{name}.json").write_text(json.dumps(config | {"vocab_size": 512}))
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=512, intermediate_size=128, num_labels=3, **sizes)
    BertForSequenceClassification(config).save_pretrained(home / "classifier")
    return home


CASES = {
    "a clipping bound of 1e-6": ("gpt2", ["--clip", "1e-6"], "RKSP406", "gpt2"),
    "sequences beyond the table": ("gpt2", ["--sequence-length", "128"], "RKSP205", "gpt2"),
    "a warm-up longer than the run": ("gpt2", ["--max-steps", "1000"], "RKSP505", "gpt2"),
    "dropout of nine in ten": ("dropped", [], "RKSP704", "gpt2"),
    "no balance loss": ("mixtral", [], "RKSP804", "balanced"),
}


SILENT: set[str] = set()  # twins that were scored before


@pytest.mark.parametrize("case", CASES)
def test_score_finds_the_mistake_and_not_in_its_twin(case: str, folder: Path, capsys):
    target, change, code, twin = CASES[case]
    status, seen = scored(capsys, str(folder / f"{target}.json"), *GOOD, *change)
    assert code in seen and status == int("error" in seen.values())
    if twin not in SILENT:
        assert scored(capsys, str(folder / f"{twin}.json"), *GOOD) == (0, {})
        SILENT.add(twin)


def test_a_trainer_of_rewards_adds_no_loss_of_the_models(folder, capsys):
    mixture, start = str(folder / "mixtral.json"), ("--evidence", "config", "--pretrained")
    assert "RKSP804" in scored(capsys, mixture, *GOOD, *start)[1]
    assert "RKSP804" not in scored(capsys, mixture, *GOOD, *start, "--objective", "grpo")[1]


def test_a_classifier_of_texts_is_scored_and_its_rate_judged_as_fine_tuning(folder, capsys):
    tuned = ["--batch-size", "32", "--sequence-length", "128", "--evidence", "forward"]
    status, seen = scored(capsys, str(folder / "classifier"), *tuned, "--lr", "0.2")
    assert status == 1 and seen["RKSP501"] == "error"
    status, seen = scored(capsys, str(folder / "classifier"), *tuned, "--lr", "2e-5")
    assert (status, seen) == (0, {})


def answered(folder, capsys, *change):
    with pytest.raises(SystemExit):
        main(["score", str(folder / "gpt2.json"), *GOOD, *change, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    return report, {finding["code"] for finding in report["findings"]}


def test_what_the_labelled_runs_do_not_hold_is_not_judged(folder, capsys):
    report, seen = answered(folder, capsys, "--optimizer", "lamb")
    assert report["verdict"] == "cannot tell" and "RKSP901" in seen
    assert "lamb" in " ".join(report["seeds"][0]["risk"]["reasons"])


def test_arithmetic_of_8_bits_widens_the_answer_by_name(folder, capsys):
    known, whole = (answered(folder, capsys, *more) for more in ([], ["--precision", "fp8"]))
    before, after = (report["seeds"][0]["risk"] for report, _ in (known, whole))
    assert after["likely_edge"] == before["likely_edge"]
    assert after["do_not_exceed"] < before["do_not_exceed"]
    assert "precision" in after["widened_by"] and "precision" not in before["widened_by"]
    assert "RKSP901" in whole[1] - known[1]
