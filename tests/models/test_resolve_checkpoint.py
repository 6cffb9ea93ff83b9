"""Targets with weights: a folder, shards, a model of the Hub, and what is refused of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.places import ROOT
from support.tiny_models import IDS, TINY_GPT2

from rksp.datasets.probe import make_probe
from rksp.ground.errors import InputError
from rksp.measure.snapshots import collect
from rksp.models.checkpoint import find_weights
from rksp.models.resolve import resolve


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint of a small GPT-2, saved by transformers."""
    resolve("gpt2", overrides=TINY_GPT2 | IDS, seed=3).build().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def states(model, probe) -> list[torch.Tensor]:
    seen = []
    collect(model, probe.batch, consume=lambda t: seen.append(t.y.clone()))
    return seen


def test_checkpoint_scores_like_the_model_in_memory(folder):
    source, memory = resolve(str(folder)), resolve("gpt2", overrides=TINY_GPT2 | IDS, seed=3)
    assert source.kind == "checkpoint" and source.start.is_stored
    probe = make_probe(memory, num_sequences=2, sequence_length=16)
    for mine, theirs in zip(
        states(source.build(), probe), states(memory.build(), probe), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_sharded_checkpoint(folder, tmp_path):
    model = resolve(str(folder)).build()
    model.save_pretrained(tmp_path / "sharded", max_shard_size="30KB")
    assert len(find_weights(tmp_path / "sharded")) > 1
    again = resolve(str(tmp_path / "sharded")).build()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    next((tmp_path / "sharded").glob("model-00002*")).unlink()
    with pytest.raises(InputError, match="missing shard"):
        resolve(str(tmp_path / "sharded"))


def test_damaged_weights(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for size in (len(whole) - 100, 20, 3):
        file.write_bytes(whole[:size])
        with pytest.raises(InputError, match="truncated"):
            resolve(str(folder))
    file.write_bytes(whole)
    assert resolve(str(folder)).start.is_stored
    tensors = load_file(file)
    name = "transformer.h.1.mlp.c_fc.weight"
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"NaN or infinity in transformer\.h\.1\.mlp\.c_fc"):
        resolve(str(folder)).build()


def test_missing_weights_are_named(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack transformer\.h\.1\.mlp\.c_fc\.weight"):
        resolve(str(folder)).build()


def test_pickles_and_quantized_weights_are_refused(folder):
    file = folder / "model.safetensors"
    config = folder / "config.json"
    settings = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    config.write_text(json.dumps(settings))
    with pytest.raises(InputError, match="quantized"):
        resolve(str(folder))
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled"):
        resolve(str(folder))
    with pytest.raises(InputError, match="pickle"):
        resolve(str(folder / "pytorch_model.bin"))


def test_overrides_of_a_checkpoint_are_refused(folder):
    with pytest.raises(InputError, match="--set"):
        resolve(str(folder), overrides={"n_layer": "1"})
    source = resolve(str(folder / "config.json"), overrides={"n_layer": "1"})
    assert source.kind == "config" and source.config.n_layer == 1


def test_probe_uses_the_tokenizer_beside_the_target(folder):
    stored = ROOT / "datasets" / "tokenizers" / "shakespeare-bpe-1k.json"
    (folder / "tokenizer.json").write_bytes(stored.read_bytes())
    source = resolve(str(folder))
    with pytest.raises(InputError, match="vocabulary has 300"):
        make_probe(source)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        make_probe(source)
    larger = resolve("gpt2", overrides=TINY_GPT2 | IDS | {"vocab_size": "1024"})
    larger = replace(larger, tokenizer_path=stored)
    probe = make_probe(larger, num_sequences=2, sequence_length=32)
    assert "tokenizer" in probe.description and int(probe.inputs["input_ids"].max()) > 256


def test_a_hub_model_is_a_folder_in_the_cache(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["rksp.models.resolve"],  # rksp.models.resolve is the function
        "hub_folder",
        lambda name, allow: asked.append((name, allow)) or folder,
    )
    source = resolve("someone/model", allow_hub=True)
    assert source.kind == "hub" and source.start.is_stored and source.target == "someone/model"
    assert asked == [("someone/model", True)]


def test_remote_code_runs_only_when_asked_for(tmp_path, monkeypatch):
    code = tmp_path / "own"
    code.mkdir()
    (code / "own.py").write_text(
        "import torch\n"
        "from transformers import PreTrainedConfig, PreTrainedModel\n"
        "class OwnConfig(PreTrainedConfig):\n"
        "    model_type = 'own_type'\n"
        "class OwnModel(PreTrainedModel):\n"
        "    config_class = OwnConfig\n"
        "    def __init__(self, config, **more):\n"
        "        super().__init__(config)\n"
        "        self.linear = torch.nn.Linear(3, 3)\n"
        "        self.post_init()\n"
    )
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (code / "config.json").write_text(json.dumps({"model_type": "own_type", "auto_map": auto_map}))
    with pytest.raises(InputError, match="--trust-remote-code"):
        resolve(str(code))
    resolve("gpt2")  # imports transformers
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    source = resolve(str(code), trust_remote_code=True)
    assert source.model_class == "OwnModel" and source.num_parameters == 12
    assert any("--trust-remote-code" in note for note in source.notes)
    assert source.build().linear.weight.shape == (3, 3)
