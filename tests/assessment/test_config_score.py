"""`--evidence config`: an answer from the configuration and the recipe, without a model."""

from __future__ import annotations

import json

import pytest
from support.commands import left_with, run_rksp
from torch import nn
from transformers import AutoConfig

import rksp
from rksp.assessment.risk import declared_inputs
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY
from rksp.ground.errors import InputError
from rksp.models.declared import Declared
from rksp.recipe import Recipe


def scored(capsys, *arguments: str) -> tuple[int, dict]:
    command = ["score", *arguments, "--evidence", "config", "--format", "json"]
    code = left_with(command)
    return code, json.loads(capsys.readouterr().out)


def test_a_configuration_alone_gets_three_rates(capsys):
    code, report = scored(capsys, "gpt2", "--lr", "6e-4", "--warmup-steps", "2000")
    risk = report["seeds"][0]["risk"]
    assert code == 0 and risk["evidence"] == "config"
    assert risk["start_here"] < risk["likely_edge"]
    assert report["seeds"][0]["spectra"]["layers"] == []
    assert "RKSP505" in {finding["code"] for finding in report["findings"]}


def test_checks_that_need_a_model_are_listed_as_not_run(capsys):
    code, report = scored(capsys, "gpt2", "--lr", "1e-4", "--warmup-steps", "100")
    missing = {check["code"]: check["reason"] for check in report["not_run"]}
    assert code == 0
    assert "a forward pass" in missing["RKSP101"]
    assert "RKSP503" not in missing


def test_a_module_has_no_configuration_to_read(capsys):
    arguments = ["score", "collections:OrderedDict", "--evidence", "config"]
    assert left_with(arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("rate", ["1e-4", "10"])
def test_the_rate_decides(capsys, rate):
    code, report = scored(capsys, "gpt2", "--lr", rate, "--warmup-steps", "100")
    assert (code == 1) == (rate == "10") == (report["verdict"] == "risk")


def test_a_verdict_that_an_assumption_decides_says_so(capsys):
    _, report = scored(capsys, "gpt2", "--lr", "1.6e-3", "--exit-zero")
    others = {a["assumption"]: a["verdict"] for a in report["seeds"][0]["alternatives"]}
    assert report["verdict"] == "risk" and others["100 steps of warm-up"] == "caution"
    assert others["a batch of 2048"] == "caution"
    arguments = ["score", "gpt2", "--lr", "1.6e-3", "--evidence", "config", "--exit-zero"]
    assert left_with(arguments) == 0
    said = "would be caution with a batch of 256 or sequences of 2048 tokens"
    assert said in " ".join(capsys.readouterr().out.split())


def test_what_was_given_has_no_alternative(capsys):
    _, report = scored(
        capsys, "gpt2", "--lr", "4e-3", "--warmup-steps", "0", "--max-steps", "1000", "--exit-zero"
    )
    said = [a["assumption"] for a in report["seeds"][0]["alternatives"]]
    assert said and not any("warm-up" in text or " steps" in text for text in said)


def test_the_findings_advise_one_rate_that_none_complains_of(capsys):
    _, report = scored(capsys, "gpt2", "--lr", "0.5", "--warmup-steps", "50", "--exit-zero")
    advised = {f["code"]: f["fix"] for f in report["findings"] if "learning rate to" in f["fix"]}
    assert {"RKSP501", "RKSP502"} <= set(advised)
    (rate,) = {fix.rpartition(" to ")[2].rstrip(".") for fix in advised.values()}
    _, better = scored(capsys, "gpt2", "--lr", rate, "--warmup-steps", "50", "--exit-zero")
    assert not set(advised) & {f["code"] for f in better["findings"]}


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("gpt2", (768, 12, 50257, "pre")),
        ("bert", (768, 12, 30522, "post")),
        ("vit", (768, 12, 256, "pre")),
        ("t5", (512, 12, 32128, "pre")),
        ("bart", (1024, 24, 50265, "post")),
        ("llava", (4096, 32, 32000, "pre")),
        ("swin", (768, 12, 256, "pre")),
        ("wav2vec2", (768, 12, 32, "post")),
    ],
)
def test_a_configuration_of_any_kind_states_its_shape(model_type, expected):
    read = declared_inputs(Declared(AutoConfig.for_model(model_type)), Recipe())
    assert (read.width, read.depth, read.vocabulary, read.norm) == expected


def test_a_configuration_without_a_width_is_refused():
    with pytest.raises(InputError, match="no width or depth"):
        declared_inputs(Declared(AutoConfig.for_model("convnext")), Recipe())


def test_what_a_configuration_cannot_tell_is_to_be_measured(capsys):
    assert left_with(["score", "convnext", "--lr", "1e-3", "--evidence", "config"]) == 0
    assert "next: rksp score convnext --lr 1e-3  " in capsys.readouterr().out


def test_a_text_classifier_counts_as_a_classifier():
    read = declared_inputs(Declared(AutoConfig.for_model("gpt2"), "text-classification"), Recipe())
    assert read.vocabulary == CLASSIFIER_VOCABULARY


def _answer(report: dict) -> dict:
    return report["seeds"][0]["risk"]


def test_python_the_command_and_a_grid_answer_alike(capsys, tmp_path):
    _, report = scored(capsys, "gpt2", "--lr", "2e-3", "--exit-zero")
    expected = _answer(report)
    found = rksp.score("gpt2", lr=2e-3, evidence="config")
    assert found.report.seeds[0].risk.model_dump(mode="json") == expected
    assert found.report.target.width == 768 and found.report.target.parameters > 1e8
    store = str(tmp_path / "grid.db")
    grid = ["grid", "gpt2", "lr=2e-3", "n_layer=2,12", "--evidence", "config", "-o", store]
    assert left_with([*grid, "--format", "json"]) in (0, 1)
    cells = json.loads(capsys.readouterr().out)["cells"]
    cell = next(cell for cell in cells if cell["n_layer"] == 12)
    for name in ("probability_failed", "start_here", "do_not_exceed", "verdict"):
        assert cell[name] == expected[name], name


def test_a_configuration_has_no_seed(capsys):
    more = ("--lr", "1e-3", "--seeds", "3", "--seed", "7")
    assert left_with(["score", "gpt2", "--evidence", "config", "--format", "json", *more]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert "A configuration has no seed" in printed.err
    assert [seed["seed"] for seed in report["seeds"]] == [0] and report["spread"] == {}
    _, alone = scored(capsys, "gpt2", "--lr", "1e-3")
    assert _answer(alone) == _answer(report)


def test_a_module_without_a_configuration_is_refused_in_python():
    with pytest.raises(InputError, match="has no configuration; leave out"):
        rksp.score(nn.Linear(2, 2), evidence="config")


def test_v_says_that_nothing_but_the_configuration_was_read():
    page = run_rksp("score", "gpt2", "--evidence", "config", "-v").stdout
    assert "only the configuration was read" in " ".join(page.split())
    assert "probe: nothing" not in page
    assert "residual stream" not in page and "Ranges hold" not in page
