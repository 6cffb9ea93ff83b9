"""Trained weights never meet the model of random initializations: tiers, Python, grids, gates."""

from __future__ import annotations

import json

import pytest
import torch
from support.commands import left_with
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel

import rksp
from rksp.documents.score import ADAPTERS_BESIDE
from rksp.question.carry import TRAINED

SMALL = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 64}
SIZES = SMALL | {"n_embd": 640}  # ten million parameters, as few as the data let one judge
SETTINGS = [f"--set={name}={value}" for name, value in SIZES.items()]
NUMBERS = (
    *("probability_failed", "probability_failed_low", "probability_failed_high", "start_here"),
    *("start_excess", "start_failed", "likely_edge", "do_not_exceed", "expected_excess"),
)
RATES = ("start_here", "likely_edge", "do_not_exceed", "probability_failed")
SHORT = ("--sequence-length", "64", "--snapshots", "128")
TIERS = ("config", "forward", "gradient")


def saved(folder, make, sizes) -> str:
    torch.manual_seed(0)
    make(GPT2Config(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=1)).save_pretrained(
        folder
    )
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("weights"), GPT2LMHeadModel, SIZES)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    make = AutoModelForSequenceClassification.from_config
    return saved(tmp_path_factory.mktemp("head"), make, SIZES)


def scored(capsys, *arguments: str) -> dict:
    left_with(["score", *arguments, *SHORT, "--exit-zero", "--format", "json"])
    return json.loads(capsys.readouterr().out)


def risk_of(report: dict) -> dict:
    return report["seeds"][0]["risk"]


def is_untold(risk: dict) -> bool:
    """Whether the answer is "cannot tell" without any number."""
    return risk["verdict"] == "cannot tell" and not {*NUMBERS, "curve"} & risk.keys()


def is_tuned(risk: dict) -> bool:
    """Whether the model of fine-tuning answers."""
    return risk["kind"] == "fine-tuning" and None not in [risk[name] for name in RATES]


@pytest.mark.parametrize("more", [(), ("--peft", "lora", "--lora-rank", "8")], ids=["all", "lora"])
def test_every_tier_and_python_give_a_checkpoint_one_answer(checkpoint, more, capsys):
    risks = [
        risk_of(scored(capsys, checkpoint, "--lr", "2e-5", *more, "--evidence", evidence))
        for evidence in TIERS
    ]
    recipe = {"peft": "lora", "lora_rank": 8} if more else {}
    found = rksp.score(checkpoint, lr=2e-5, recipe=recipe, evidence="config")
    assert all(map(is_tuned, risks)) and found.answer.kind == "fine-tuning"
    for name in RATES:
        assert {risk[name] for risk in risks} == {getattr(found, name)}


def test_a_head_on_stored_weights_is_answered(classifier, capsys):
    risks = [
        risk_of(scored(capsys, classifier, "--lr", "2e-5", "--evidence", evidence))
        for evidence in ("config", "gradient")
    ]
    assert all(map(is_tuned, risks)) and risks[0]["start_here"] == risks[1]["start_here"]


@pytest.mark.parametrize("evidence", ["config", "gradient"])
@pytest.mark.parametrize("objective", ["distillation", "other"])
def test_unseen_objectives_cannot_be_told(evidence, objective, capsys):
    more = ("--objective", objective, "--evidence", evidence)
    assert is_untold(risk_of(scored(capsys, "gpt2", *SETTINGS, "--lr", "1e-4", *more)))


@pytest.mark.parametrize("evidence", ["config", "gradient"])
def test_random_weights_are_answered_by_their_own_model(evidence, capsys):
    report = scored(capsys, "gpt2", *SETTINGS, "--lr", "1e-4", "--evidence", evidence)
    risk = risk_of(report)
    assert None not in [risk[name] for name in NUMBERS]
    assert risk["kind"] == "edge" and "forgets_from" not in risk


def test_weights_between_the_lab_and_the_public_sizes_cannot_be_told(tmp_path, capsys):
    between = SMALL | {"n_embd": 424}  # 4.3 million parameters beside the embeddings
    small = saved(tmp_path, GPT2LMHeadModel, between)
    for more in ((), ("--peft", "lora")):
        report = scored(capsys, small, "--lr", "2e-5", *more, "--evidence", "config")
        risk = risk_of(report)
        assert is_untold(risk) and "number of parameters" in risk["reasons"][0]


def test_a_tiny_model_is_answered_by_the_ladders_of_the_lab(tmp_path, checkpoint, capsys):
    tiny = saved(tmp_path, GPT2LMHeadModel, SMALL | {"n_embd": 64})
    for more in ((), ("--peft", "lora")):
        rates = [
            risk_of(scored(capsys, model, "--lr", "2e-5", *more, "--evidence", "config"))
            for model in (tiny, checkpoint)
        ]
        assert all(map(is_tuned, rates))
        assert rates[0]["start_here"] > 3 * rates[1]["start_here"]


def test_without_a_rate_lora_stands_beside_all_weights(checkpoint, capsys):
    def others(report: dict) -> list[dict]:
        found = report["seeds"][0]["alternatives"]
        return [other for other in found if other["assumption"] == ADAPTERS_BESIDE]

    report = scored(capsys, checkpoint, "--evidence", "config")
    (beside,) = others(report)
    lora = risk_of(scored(capsys, checkpoint, "--peft=lora", "--lora-rank=16", "--evidence=config"))
    assert beside["start_here"] == lora["start_here"] != risk_of(report)["start_here"]
    assert others(scored(capsys, "gpt2", *SETTINGS, "--evidence", "config")) == []


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_each_page_says_which_model_answers_and_where_lora_forgets(checkpoint, form, capsys):
    given = ["score", checkpoint, "--evidence", "config", *SHORT, "--format", form]
    left_with([*given, "--peft", "lora", "--lr", "1e-4"])
    page = capsys.readouterr().out.lower()
    assert "so the fine-tuning model answers" in page and "expect to lose a tenth" in " ".join(
        page.split()
    )
    left_with(given)
    assert "with lora adapters of rank 16: start here" in capsys.readouterr().out.lower()


def test_the_usual_ceiling_of_decoders_is_still_known(checkpoint, capsys):
    report = scored(capsys, checkpoint, "--lr", "2e-2", "--evidence", "config")
    finding = next(f for f in report["findings"] if f["code"] == "RKSP508")
    assert "Lower the learning rate to" in finding["fix"] and "2e-2" not in finding["fix"]
    adapted = scored(capsys, checkpoint, "--lr", "2e-2", "--peft", "lora", "--evidence", "config")
    codes = {finding["code"] for finding in adapted["findings"]}
    assert "RKSP501" in codes and "RKSP508" not in codes


def test_python_answers_a_trained_module():
    tuned = rksp.score(
        GPT2LMHeadModel(GPT2Config(**SIZES)), lr=2e-5, is_pretrained=True, evidence="config"
    )
    assert tuned.answer.kind == "fine-tuning" and set(tuned.rates()) < set(RATES)


def test_a_grid_gives_the_same_answer(checkpoint, tmp_path, capsys):
    store = str(tmp_path / "grid.db")
    grid = ["grid", checkpoint, "lr=1e-6,2e-4,3e-2", "sequence-length=64", "--evidence", "config"]
    left_with([*grid, "-o", store, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    first = report["cells"][0]
    score = risk_of(scored(capsys, checkpoint, "--lr", "2e-4", "--evidence", "config"))
    assert first["learning_rate"] == 2e-4  # the nearest to the rate to start with
    assert {name: first[name] for name in RATES} == {name: score[name] for name in RATES}


def test_a_run_file_with_adapters_is_answered(tmp_path, capsys):
    file = tmp_path / "lora.yaml"
    file.write_text("learning_rate: 2.0e-4\nuse_peft: true\nlora_r: 8\nwarmup_ratio: 0.1\n")
    report = scored(capsys, "gpt2", *SETTINGS, "--recipe", str(file), "--evidence", "config")
    assert report["recipe"]["peft"] == "lora" and is_tuned(risk_of(report))
    assert risk_of(report)["verdict"] == "ok"


@pytest.mark.parametrize(
    ("key", "model"),
    [("model_name_or_path", "fine-tuning"), ("config_name", "edge")],
)
def test_a_run_file_that_names_weights_is_fine_tuning(tmp_path, key, model, capsys):
    file = tmp_path / "run.yaml"
    arguments = "learning_rate: 2.0e-5\nwarmup_ratio: 0.1\nper_device_train_batch_size: 8\n"
    file.write_text(f"{key}: gpt2\n{arguments}output_dir: out\nmax_steps: 500\n")
    for more in ((str(file),), ("gpt2", "--recipe", str(file))):
        report = scored(capsys, *more, "--evidence", "config")
        assert risk_of(report)["kind"] == model
    is_trained = model == "fine-tuning"
    alone = risk_of(scored(capsys, str(file), "--evidence", "config"))
    grid = ["grid", str(file), "lr=2e-5,2e-3", "--evidence", "config", "--format", "json"]
    left_with([*grid, "-o", str(tmp_path / "grid.db")])
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["likely_edge"] for cell in cells] == [alone["likely_edge"]] * 2
    tuned = ["score", "gpt2", "--tuned", str(file), "--evidence", "config", "--format", "json"]
    left_with(tuned)
    carried = json.loads(capsys.readouterr().out)["carried"]
    assert (carried["rate"] is None, carried["edge_shift"] is None) == (is_trained, is_trained)
    assert carried["reasons"] == [TRAINED] * is_trained and carried["rules"]


def test_a_rate_is_not_carried_from_stored_weights(checkpoint, capsys):
    pair = [checkpoint, f"{checkpoint}/config.json"]
    command = ["score", pair[1], "--tuned", f"{pair[0]}=1e-3", "--evidence", "config", *SHORT]
    assert left_with(command) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "is not carried here" in page and TRAINED in page
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
