"""Confirmations from trained weights: adapters, fresh heads, factories, held-out loss."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import left_with
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from rksp.confirm.confirm import confirm
from rksp.confirm.options import TrialOptions
from rksp.confirm.trial import Trainee
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.models.adapters import as_trained
from rksp.models.given import module_source
from rksp.models.resolve import resolve, resolve_tiny
from rksp.own_runs.history import read_history
from rksp.own_runs.observed import Observed
from rksp.own_runs.record import read_record
from rksp.recipe import LOW_RANK, USUAL_RANK, Recipe

pytest.importorskip("peft")

SHORT = {"max_steps": 3, "batch_size": 2, "sequence_length": 16, "max_grad_norm": None}
CONFIG = MeasureOptions(evidence="config")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return str(folder)


def classifier(n_in: int = 4) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(n_in, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def rows(count: int) -> TensorDataset:
    """Rows that each hold their own number, so that one sees which are drawn."""
    numbers = torch.arange(float(count))[:, None].expand(-1, 4).clone()
    return TensorDataset(numbers, torch.arange(count) % 3)


def trained(name: str, **fields) -> Recipe:
    return Recipe(peft=name, learning_rate=1e-3, **SHORT, **fields)


@pytest.mark.parametrize("name", LOW_RANK)
def test_only_the_adapters_are_trained_and_they_begin_where_the_weights_are(checkpoint, name):
    source = resolve(checkpoint)
    tokens = torch.arange(32).reshape(2, 16)
    before = source.build()(tokens).logits
    model = as_trained(source.build(), trained(name), source.task, seed=3)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names and all("lora_" in name for name in names)
    assert model.peft_config["default"].r == model.peft_config["default"].lora_alpha == USUAL_RANK
    assert torch.allclose(model.eval()(tokens).logits, before, atol=1e-4)


def test_targets_that_no_module_has_are_one_sentence(checkpoint):
    source = resolve(checkpoint)
    recipe = trained("lora", lora_targets=("nowhere",))
    with pytest.raises(InputError, match="do not fit"):
        as_trained(source.build(), recipe, source.task, seed=0)


def test_a_fresh_head_is_drawn_by_the_seed_on_the_stored_body(checkpoint):
    source = resolve(checkpoint, task="text-classification")
    assert source.start.is_stored and source.has_fresh_head
    assert any("fresh" in note for note in source.notes)
    first, again, other = (source.build(seed) for seed in (1, 1, 2))
    assert torch.equal(first.score.weight, again.score.weight)
    assert not torch.equal(first.score.weight, other.score.weight)
    stored = resolve(checkpoint).build()
    assert torch.equal(first.transformer.wte.weight, stored.transformer.wte.weight)
    tuned = as_trained(other, trained("lora"), source.task, seed=0)
    whole = {n for n, p in tuned.named_parameters() if p.requires_grad and "lora_" not in n}
    assert whole and all("score" in name for name in whole)


def test_a_body_that_lacks_weights_is_never_made_up(checkpoint, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(checkpoint) / name, tmp_path)
    kept = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in kept if name.endswith("mlp.c_fc.weight"))
    save_file({n: t for n, t in kept.items() if n != lost}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="lack"):
        resolve(str(tmp_path), task="text-classification").build()


def test_a_language_model_is_not_given_a_fresh_head(checkpoint):
    source = resolve(checkpoint, task="causal-lm")
    assert not source.has_fresh_head and source.notes == resolve(checkpoint).notes


@pytest.mark.parametrize("peft", ["none", "lora"])
def test_a_run_that_moves_nothing_ends_where_not_training_ends(checkpoint, peft):
    recipe = trained(peft, optimizer="sgd", weight_decay=0.0)
    still = recipe.model_copy(update={"learning_rate": 1e-30})
    runs = TrialOptions(arms=["rate=1e33"], steps=3, seeds=1, monitors=["loss"])
    report = confirm(resolve(checkpoint), still, runs, measure=CONFIG)
    baseline, wild = report.trials
    assert baseline.untrained_loss == wild.untrained_loss
    assert baseline.held_out_loss == pytest.approx(baseline.untrained_loss, abs=1e-6)
    assert wild.held_out_loss is None or wild.held_out_loss != wild.untrained_loss
    assert report.conclusions[-2].startswith("On examples held out, against not training")
    assert "data of rksp" in report.conclusions[-1]
    assert report.arms[0].learned == 0


def test_random_weights_hold_nothing_out():
    recipe = Recipe(learning_rate=1e-3, **SHORT)
    source = module_source(classifier(), DataLoader(rows(8), batch_size=2), is_pretrained=False)
    forward = MeasureOptions(evidence="forward")
    runs = TrialOptions(arms=["baseline"], seeds=1, monitors=["loss"])
    (trial,) = confirm(source, recipe, runs, measure=forward).trials
    assert trial.untrained_loss is trial.held_out_loss is None


def drawn(batches) -> list[float]:
    return [number for batch in batches for number in batch.inputs[:, 0].tolist()]


@pytest.mark.parametrize("size", [None, 2])
def test_what_is_held_out_is_never_trained_on(size):
    data = rows(10)
    given = DataLoader(data, batch_size=size, shuffle=True) if size else data.tensors
    recipe = Recipe(learning_rate=1e-3, **SHORT | {"max_steps": 12})
    source = module_source(classifier(), given, is_pretrained=True)
    found = Trainee(source=source, recipe=recipe).data_of(1)
    again = Trainee(source=source, recipe=recipe).data_of(1)
    assert len(found.batches) == 12 and found.held_out
    assert not set(drawn(found.batches)) & set(drawn(found.held_out))
    assert set(drawn(found.batches)) | set(drawn(found.held_out)) == set(map(float, range(10)))
    assert drawn(found.batches) == drawn(again.batches)


def test_a_text_holds_out_places_of_its_own(checkpoint):
    recipe = Recipe(learning_rate=1e-3, **SHORT)
    found = Trainee(source=resolve(checkpoint), recipe=recipe).data_of(1)
    seen = {tuple(row.tolist()) for b in found.batches for row in b.inputs["input_ids"]}
    held = {tuple(row.tolist()) for b in found.held_out for row in b.inputs["input_ids"]}
    assert len(seen) == 6 and len(held) == 64 and not seen & held


FACTORY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def make():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    return model, DataLoader(data, batch_size=4)

def bare():
    return nn.Linear(4, 4)
"""


def test_a_factory_is_trained_on_its_own_batches(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_loop_of_ft.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    less = ["--steps", "3", "--seeds", "1", "--evidence", "forward", "--monitor", "loss"]
    assert left_with(["confirm", "own_loop_of_ft:make", "--lr", "1e-3", *less]) == 0
    assert re.search(r"own_loop_of_ft:make .*3 of 1,000 steps .*1e-3", capsys.readouterr().out)
    assert left_with(["confirm", "own_loop_of_ft:bare", "--lr", "1e-3", *less]) == 2
    assert "batch" in capsys.readouterr().err


def test_a_classifier_without_labelled_texts_is_refused(checkpoint, capsys):
    given = ["confirm", checkpoint, "--task", "text-classification", "--lr", "1e-3", "--seeds", "1"]
    assert left_with([*given, "--evidence", "config"]) == 2
    assert "classifies texts" in capsys.readouterr().err


def test_without_peft_one_sentence_says_what_to_install(checkpoint, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert left_with(["confirm", checkpoint, "--lr", "1e-4", "--peft", "lora"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'rksp[peft]'.")


def test_runs_of_a_checkpoint_are_recorded_by_their_held_out_loss(checkpoint, tmp_path):
    path = tmp_path / "runs.jsonl"
    recipe = trained("none")
    source = resolve(checkpoint)
    runs = TrialOptions(arms=["baseline"], steps=3, seeds=1, record=path)
    report = confirm(source, recipe, runs, measure=CONFIG)
    (row,) = read_record(path)
    (trial,) = report.trials
    assert row["final_loss"] == trial.held_out_loss != trial.final_loss
    found = read_history([path], source, recipe)
    assert found.ladders[0].runs[0].shape.is_of_tuning and not found.used(Observed)
    with pytest.raises(InputError, match="leave out --record"):
        random = resolve_tiny("gpt2")
        confirm(random, trained("lora"), runs, measure=CONFIG)
