"""Any module: models of the user's own, from Python and from factories."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from support.commands import left_with
from support.given_models import (
    FAST,
    HandGPT,
    Recurrent,
    SmallViT,
    gpt,
    half_gpt,
    images,
    tokens,
)
from support.places import SUPPORT
from torch import nn
from torch.nn import functional as F

import rksp
from rksp.ground.errors import InputError
from rksp.models.anatomy.parts import equivalent_shape
from rksp.models.given import module_source
from rksp.models.resolve import resolve

FORWARD = FAST | {"evidence": "forward"}
OWN = {"gpt": (HandGPT, tokens), "vit": (SmallViT, images), "lstm": (Recurrent, tokens)}


@pytest.fixture(scope="module")
def results() -> dict[str, rksp.Result]:
    torch.manual_seed(0)
    return {n: rksp.score(make(), batch(), lr=1e-3, **FAST) for n, (make, batch) in OWN.items()}


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_ones_own_gets_the_whole_answer(results, name):
    found = results[name]
    assert found.evidence == "gradient" and found.grad_norm > 0
    if name == "lstm":  # no labelled run lacks a stream
        assert found.probability_failed is found.likely_edge is None and found.curve == []
    else:
        assert 0 <= found.probability_failed <= 1
        assert found.likely_edge > 0 and found.curve
    assert found.loss == pytest.approx(found.uniform_loss, abs=0.5)
    assert any(finding.code == "RKSP503" for finding in found.findings)  # no warm-up


def test_spectra_are_measured_where_there_is_a_stream(results):
    assert results["gpt"].blocks == results["vit"].blocks == [("blocks", 2)]
    assert results["gpt"].published_score is not None
    lacking = results["lstm"]
    assert lacking.blocks == [] and lacking.layers == [] and lacking.published_score is None
    assert lacking.verdict == "cannot tell" and "width 24 and 2 blocks," in lacking.notes[-1]
    assert "no residual stream of constant width" in lacking.report.seeds[0].spectra.reason


@pytest.mark.parametrize("name", ["gpt", "vit", "lstm"])
def test_a_factory_scores_from_the_command_line(name, capsys, monkeypatch):
    monkeypatch.chdir(SUPPORT)
    assert (
        left_with(f"score given_models:{name} --lr 1e-3 --snapshots 128 --format json".split()) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["target"]["kind"] == "factory" and report["target"]["parameters"] > 1000
    chance = report["seeds"][0]["risk"].get("probability_failed")
    assert chance is None if name == "lstm" else 0 <= chance <= 1


def test_python_and_command_line_agree(capsys, monkeypatch):
    monkeypatch.chdir(SUPPORT)
    torch.manual_seed(0)
    model, batch = gpt()
    left_with(["score", "given_models:gpt", "--lr", "1e-3", "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    told = report["seeds"][0]["risk"]
    found = rksp.score(model, batch, lr=1e-3)
    assert found.probability_failed == pytest.approx(told["probability_failed"], rel=1e-6)
    assert found.start_here == pytest.approx(told["start_here"], rel=1e-6)
    sizes = {"batch_size": batch.shape[0], "sequence_length": batch.shape[1]}
    assert {name: report["recipe"][name] for name in sizes} == sizes
    assert "a batch of" not in report["assumed"] and "sequences of" not in report["assumed"]


def test_the_traceback_of_a_factory_is_there_for_the_asking(capsys, monkeypatch):
    monkeypatch.chdir(SUPPORT)
    for asked, is_shown in (("", False), ("1", True)):
        monkeypatch.setenv("RKSP_TRACEBACK", asked)
        assert left_with(["score", "given_models:raises"]) == 2
        said = capsys.readouterr().err
        assert ("Traceback (most recent call last)" in said) is is_shown
        assert said.splitlines()[-1].startswith("rksp: given_models:raises failed (LookupError")


def test_a_factory_is_heard_as_its_module_is(capsys, monkeypatch):
    monkeypatch.chdir(SUPPORT)
    asked = "score given_models:half_gpt --lr 1e-3 --snapshots 128 --evidence forward --format json"
    assert left_with(asked.split()) == 1  # parameters in fp16
    report = json.loads(capsys.readouterr().out)
    model, batch = half_gpt()
    named = rksp.score("given_models:half_gpt", lr=1e-3, **FORWARD)
    for found in (rksp.score(model, batch, lr=1e-3, **FORWARD), named):
        assert found.report.recipe.model_dump(mode="json") == report["recipe"]
        assert [f.code for f in found.findings] == [f["code"] for f in report["findings"]]
    left_with([*asked.split(), "--precision", "fp32", "--batch-size", "3"])
    report = json.loads(capsys.readouterr().out)
    assert (report["recipe"]["precision"], report["recipe"]["batch_size"]) == ("fp32", 3)
    assert any("but the recipe says fp32" in note for note in report["target"]["notes"])


def test_a_model_is_left_bitwise_as_found():
    model = SmallViT().train()
    model.norm.eval()
    (x, y) = images()
    F.cross_entropy(model(x), y).backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad for p in model.parameters()]
    kept = [g.clone() for g in gradients]
    state = torch.get_rng_state()
    rksp.score(model, (x, y), lr=1e-2, **FAST)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(g, k) for g, k in zip(gradients, kept, strict=True))
    assert model.training and not model.norm.training and torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_model_type_scores_as_from_the_command_line():
    source = resolve("gpt2", overrides={"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 300})
    evaluation = rksp.evaluate(source, rksp.Recipe(learning_rate=1e-3), rksp_options())
    found = rksp.score(source, recipe={"learning_rate": 1e-3}, **FAST)
    assert found.probability_failed == evaluation.risk.probability_failed


def rksp_options():
    from rksp.documents.options import MeasureOptions

    return MeasureOptions(**FAST)


def test_a_factory_is_drawn_anew_at_another_seed(monkeypatch):
    monkeypatch.chdir(SUPPORT)
    source = resolve("given_models:gpt")
    assert source.at(0) is source
    other = source.at(1)
    assert other.seed == 1 and not torch.equal(other.model.head.weight, source.model.head.weight)
    assert torch.equal(source.build(1).head.weight, other.model.head.weight)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    {
        "no_loss": "The batch has no target and the model has no loss of its own; give loss=",
        "no_head": "The model's 32 outputs are no scores of token",
        "no_batch": "comes without a batch",
        "raises": "failed (LookupError: the weights are elsewhere, at given_models.py:",
        "rubbish": "returned list, not a torch.nn.Module, (model, batch)",
        "tokens": "returned Tensor, not a torch.nn.Module",
    }.items(),
)
def test_what_a_factory_lacks_is_said_in_one_sentence(factory, sentence, capsys, monkeypatch):
    monkeypatch.chdir(SUPPORT)
    assert left_with(["score", f"given_models:{factory}", "--snapshots", "128"]) == 2
    said = [x for x in capsys.readouterr().err.splitlines() if "rksp: assumed" not in x]
    said = [x for x in said if " seed 0: " not in x]  # progress
    assert len(said) == 1 and sentence in said[0]


@pytest.mark.parametrize(
    ("given", "loss", "sentence"),
    [
        ("text", None, "A batch of type str holds no tensor"),
        (torch.zeros(1, 3, 16, 16), None, "holds 1 example"),
        (images(), 3, "loss is a int"),
        (images(), lambda out, y: out, "not a scalar tensor"),
        (images(), lambda out, y: torch.zeros(()), "does not depend on the model's weights"),
        (images(), lambda out, y: out.nothing, "The loss cannot be computed (AttributeError"),
        ((torch.zeros(4, 5), torch.zeros(4)), None, "The model cannot run on the batch"),
        ((images()[0], torch.zeros(7, dtype=torch.long)), None, "No loss is known"),
    ],
)
def test_what_cannot_be_judged_is_said(given, loss, sentence):
    with pytest.raises(InputError) as error:
        rksp.score(SmallViT(), given, None, loss, **FAST)
    assert sentence in str(error.value)


def test_what_is_no_model_to_train_is_said():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for model, sentence in (
        (frozen, "no parameters to train"),
        (nn.LazyLinear(3), "lazy parameters"),
        (nn.Linear(2, 2, device="meta"), "meta device"),
    ):
        with pytest.raises(InputError, match=sentence):
            module_source(model, torch.zeros(2, 2))
    with pytest.raises(InputError, match="a loss but no batch"):
        rksp.score(HandGPT(), loss=F.cross_entropy)
    with pytest.raises(InputError, match="Only a module takes"):
        rksp.score("gpt2", tokens())
    with pytest.raises(InputError, match="learning_rate belongs to the recipe"):
        rksp.score(nn.Linear(2, 2), learning_rate=1e-3)
    with pytest.raises(InputError, match="no field 'sates'; did you mean states"):
        rksp.score(HandGPT(), tokens(), sates=3)


def test_half_precision_is_measured_as_a_copy():
    model = HandGPT().bfloat16()
    source = module_source(model, tokens())
    assert source.model is not model and source.model.head.weight.dtype == torch.float32
    assert model.head.weight.dtype == torch.bfloat16 and "float32" in source.notes[0]


def test_batch_norms_that_saw_nothing_are_noted():
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(768), nn.Linear(768, 10)), images()
    assert "Batch norms" in module_source(model, (x, y)).notes[0]
    model(x)
    assert module_source(model, (x, y)).notes == ()


def test_a_transformer_is_equivalent_to_itself():
    model = nn.Sequential(nn.Embedding(99, 64), *(nn.Linear(64, 64) for _ in range(36)))
    assert equivalent_shape(model) == (64, 3)
    assert equivalent_shape(nn.Conv2d(3, 8, 3)) == (8, 1) and equivalent_shape(nn.ReLU()) == (1, 1)


def test_a_model_that_shows_no_output_has_a_gradient_and_no_logits():
    model, (x, y) = SmallViT(), images()
    hidden = nn.Identity()
    hidden.forward = lambda images: {"score": F.cross_entropy(model(images), y[: len(images)])}
    hidden.model = model
    found = rksp.score(hidden, x, None, lambda out, _: out["score"], lr=1e-3, **FAST)
    assert found.grad_norm > 0 and found.logit_std is None
