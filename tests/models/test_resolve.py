"""What a target means, and what a stranger's configuration may not do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.places import CONFIGS

from rksp.datasets.probe import make_probe, spread_bytes
from rksp.ground.errors import InputError, NotCovered
from rksp.measure.snapshots import collect
from rksp.models.checkpoint import find_weights
from rksp.models.config_guard import read_config, sanitize
from rksp.models.overrides import merge, parse_value, resized
from rksp.models.resolve import resolve

TINY = {"n_embd": "32", "n_layer": "2", "n_head": "2", "vocab_size": "300", "n_positions": "64"}
IDS = {"bos_token_id": "0", "eos_token_id": "0"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint of a small GPT-2, saved by transformers."""
    resolve("gpt2", overrides=TINY | IDS, seed=3).build().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def states(model, probe) -> list[torch.Tensor]:
    seen = []
    collect(model, probe.batch, consume=lambda t: seen.append(t.y.clone()))
    return seen


def test_a_model_type_is_counted_before_it_is_built():
    source = resolve("gpt2")
    assert source.kind == "model_type" and source.task == "causal-lm"
    assert source.num_parameters == 124_439_808  # Radford et al., 2019, as transformers counts
    assert not source.is_pretrained


@pytest.mark.parametrize(
    ("target", "task"),
    [
        ("bert", "masked-lm"),
        ("bart", "seq2seq"),
        ("t5", "seq2seq"),
        ("vit", "image-classification"),
        ("llama", "causal-lm"),
        ("clip_text_model", "other"),
    ],
)
def test_task_of_a_type(target, task):
    assert resolve(target).task == task


def test_seed_decides_the_weights_and_the_global_generator_stays():
    source = resolve("gpt2", overrides=TINY | IDS, seed=5)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, again, other = source.build(), source.build(5), source.build(6)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [m.state_dict()["transformer.h.0.mlp.c_fc.weight"] for m in (first, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert not first.training and next(first.parameters()).dtype == torch.float32


def test_overrides_change_the_configuration_and_its_hash():
    plain, changed = resolve("gpt2"), resolve("gpt2", overrides={"num_hidden_layers": "3"})
    assert changed.config.n_layer == 3 and plain.config.n_layer == 12
    assert plain.config_hash != changed.config_hash
    assert plain.config_hash == resolve("gpt2").config_hash


def test_overrides_reach_nested_settings():
    source = resolve("qwen3_vl", overrides={"text_config.num_hidden_layers": "2"})
    assert source.config.text_config.num_hidden_layers == 2


def test_unknown_override_names_the_nearest():
    with pytest.raises(InputError, match="hidden_size"):
        resolve("llama", overrides={"hiden_size": "64"})
    with pytest.raises(InputError, match="no such setting"):
        resolve("llama", overrides={"vision.hidden_size": "64"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("12", 12),
        ("1_000", 1000),
        ("true", True),
        ("null", None),
        ("no", "no"),
        ("gelu", "gelu"),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_values_are_read_as_yaml_1_2_reads_them(text, value):
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)


def test_lists_with_an_entry_a_layer_follow_the_depth():
    settings = {"num_hidden_layers": 6, "layer_types": ["a", "a", "b"] * 2, "other": [1, 2]}
    merged = merge(settings, {"num_hidden_layers": 2}, known=settings)
    assert merged["layer_types"] == ["a", "b"]  # both kinds stay
    assert merged["other"] == [1, 2]
    assert settings["num_hidden_layers"] == 6
    assert resized(["a", "b"], 5) == ["a", "b", "a", "b", "a"]


def test_unknown_type_names_three_nearest():
    with pytest.raises(InputError, match="did you mean") as caught:
        resolve("gpt3")
    assert "gpt2" in str(caught.value) and str(caught.value).count(",") == 2


def test_a_hub_id_is_not_fetched_unasked():
    with pytest.raises(InputError, match=r"--allow-hub .* or a type such as llama"):
        resolve("nobody/nothing-of-this-name")


@pytest.mark.parametrize("target", ["no/such/folder/config.json", "./nowhere", "weights.bin"])
def test_missing_files(target):
    with pytest.raises(InputError):
        resolve(target)


def test_too_large_is_refused_before_it_is_built():
    source = resolve("llama")
    with pytest.raises(InputError, match=r"6.74B parameters.*--max-params 2e\+09.*--set"):
        source.build()
    assert resolve("llama", max_params=1e10).check_size() is None


def test_factory(tmp_path, monkeypatch):
    (tmp_path / "my_factory_module.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Linear(3, 4)\n"
        "def wrong(): return 'a model'\n"
        "class Name: pass\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    source = resolve("my_factory_module:make", seed=2)
    assert source.kind == "factory" and source.num_parameters == 16
    assert torch.equal(source.build().weight, source.build().weight)
    assert sys.path == path
    with pytest.raises(InputError, match="str, not a"):
        resolve("my_factory_module:wrong")
    with pytest.raises(InputError, match="more than --max-params 1"):
        resolve("my_factory_module:make", max_params=1)
    with pytest.raises(InputError, match="did you mean make"):
        resolve("my_factory_module:mak")
    with pytest.raises(InputError, match="cannot be imported"):
        resolve("no_such_module_here:make")
    with pytest.raises(InputError, match="--set"):
        resolve("my_factory_module:make", overrides={"a": "1"})


def test_checkpoint_scores_like_the_model_in_memory(folder):
    source, memory = resolve(str(folder)), resolve("gpt2", overrides=TINY | IDS, seed=3)
    assert source.kind == "checkpoint" and source.is_pretrained
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
    assert resolve(str(folder)).is_pretrained
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


def write(tmp_path, **settings) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(settings))
    return str(file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers to 0"),
        ({"model_type": "llama", "num_hidden_layers": -1}, "num_hidden_layers to -1"),
        ({"model_type": "llama", "num_hidden_layers": 10**7}, "from 1 to 1024"),
        ({"model_type": "llama", "vocab_size": 10**12}, "vocab_size"),
        ({"model_type": "llama", "hidden_size": 10**6}, "hidden_size"),
        ({"model_type": "mixtral", "num_local_experts": 10**5}, "num_local_experts"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"hidden_size": 64}, "has no model_type"),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot be built"),
        ({"model_type": "llama", "num_hidden_layers": "4"}, "cannot be built"),
        ({"model_type": "baichuan", "auto_map": {"AutoConfig": "x.Y"}}, "--trust-remote-code"),
    ],
)
def test_bad_configurations_give_one_sentence(tmp_path, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve(write(tmp_path, **settings))
    assert "\n" not in str(caught.value)


def test_override_out_of_range():
    with pytest.raises(InputError, match="num_hidden_layers to 0"):
        resolve("llama", overrides={"num_hidden_layers": "0"})


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000])
def test_what_is_no_configuration(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError):
        read_config(file)


def test_what_could_act_is_dropped_at_every_depth():
    hostile = {
        "model_type": "llama",
        "auto_map": {"AutoModel": "evil.Model"},
        "attn_implementation": "evil/kernel",
        "_attn_implementation_internal": "evil/kernel",
        "use_kernels": True,
        "kernel_size": 3,
        "conv_kernel": [2],
        "text_config": {"trust_remote_code": True, "hidden_size": 8, "_name_or_path": "evil/x"},
        "parts": [{"quantization_config": {}, "depth": 2}],
    }
    clean, dropped = sanitize(hostile)
    assert clean == {
        "model_type": "llama",
        "kernel_size": 3,
        "conv_kernel": [2],
        "text_config": {"hidden_size": 8},
        "parts": [{"depth": 2}],
    }
    assert "text_config.trust_remote_code" in dropped and "auto_map" in dropped


def test_a_hostile_configuration_builds_the_plain_model(tmp_path):
    file = write(
        tmp_path,
        model_type="llama",
        attn_implementation="evil/kernel",
        auto_map={"AutoConfig": "evil.Config"},
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=64,
    )
    source = resolve(file)
    assert source.build().config._attn_implementation == "sdpa"
    assert any("attn_implementation" in note for note in source.notes)


def test_caps_on_attention_logits_are_kept():
    small = {"num_hidden_layers": "1", "hidden_size": "32", "vocab_size": "64"}
    source = resolve("gemma2", overrides=small | {"intermediate_size": "32"})
    assert source.build().config._attn_implementation == "eager"  # sdpa leaves the cap out


def test_published_configurations_resolve():
    expected = {
        "Qwen--Qwen3-0.6B_config.json": ("Qwen3ForCausalLM", 596e6),
        "deepseek-ai--DeepSeek-V3_config.json": ("DeepseekV3ForCausalLM", 671e9),
        "moonshotai--Kimi-K2-Instruct_config.json": ("DeepseekV3ForCausalLM", 1026e9),
        "openai--gpt-oss-20b_config.json": ("GptOssForCausalLM", 20.9e9),
        "phi-2.json": ("PhiForCausalLM", 2.78e9),
    }
    for name, (kind, size) in expected.items():
        source = resolve(str(CONFIGS / name))
        assert source.model_class == kind, name
        assert source.num_parameters == pytest.approx(size, rel=0.02), name


@pytest.mark.slow
def test_importing_resolve_leaves_the_environment_alone():
    code = (
        "import os, sys; import rksp.models; assert 'transformers' not in sys.modules;"
        "from rksp.models.resolve import resolve; before = dict(os.environ); resolve('gpt2');"
        "import huggingface_hub.constants as c; assert c.HF_HUB_OFFLINE;"
        "changed = {name for name, _ in os.environ.items() ^ before.items()};"
        "assert changed <= {'TORCHINDUCTOR_CACHE_DIR'}, changed"  # torch's own
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The probe.


def test_bytes_are_spread_over_the_vocabulary():
    ids = spread_bytes(50_257)
    assert len(set(ids.tolist())) == 256 and int(ids.min()) > 0 and int(ids.max()) < 50_257
    assert torch.equal(ids, spread_bytes(50_257)) and not torch.equal(ids, spread_bytes(50_257, 1))
    assert int(spread_bytes(100).max()) == 99
    with pytest.raises(InputError):
        spread_bytes(1)


def test_probe_of_a_language_model():
    source = resolve("gpt2")
    probe = make_probe(source)
    tokens = probe.inputs["input_ids"]
    assert tokens.shape == (16, 128) and probe.num_tokens == 2048
    assert torch.equal(probe.labels[:, :-1], tokens[:, 1:])
    assert len(torch.unique(tokens, dim=0)) == 16
    assert "bytes" in probe.description
    assert torch.equal(make_probe(source).inputs["input_ids"], tokens)


def test_probe_fits_the_model():
    short = make_probe(resolve("gpt2", overrides={"n_positions": "32"}))
    assert short.inputs["input_ids"].shape == (64, 32) and "shortened" in short.description
    folded = make_probe(resolve("gpt2", overrides={"vocab_size": "50", **IDS}))
    assert int(folded.inputs["input_ids"].max()) < 50 and "folded" in folded.description
    pair = make_probe(resolve("t5"))
    assert pair.inputs["decoder_input_ids"].shape == pair.inputs["input_ids"].shape
    masked = make_probe(resolve("bert"))
    assert torch.equal(masked.labels, masked.inputs["input_ids"])
    images = make_probe(resolve("vit"), num_sequences=2)
    assert images.inputs["pixel_values"].shape == (2, 3, 224, 224)


def test_probe_files(tmp_path):
    source = resolve("gpt2", overrides=TINY | IDS)
    file = tmp_path / "text.txt"
    file.write_text("To be, or not to be: that is the question. " * 20)
    assert "text.txt" in make_probe(source, text=file).description
    for content in ("", "a"):
        file.write_text(content)
        with pytest.raises(InputError, match="token"):
            make_probe(source, text=file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        make_probe(source, text=file)
    with pytest.raises(InputError, match="cannot be read"):
        make_probe(source, text=tmp_path / "none.txt")
    with pytest.raises(InputError, match="at least two"):
        make_probe(source, num_sequences=1, sequence_length=1)


def test_probe_uses_the_tokenizer_beside_the_target(folder):
    stored = Path(make_probe.__code__.co_filename).parent / "tokenizers/shakespeare-bpe-1k.json"
    (folder / "tokenizer.json").write_bytes(stored.read_bytes())
    source = resolve(str(folder))
    with pytest.raises(InputError, match="vocabulary has 300"):
        make_probe(source)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        make_probe(source)
    larger = resolve("gpt2", overrides=TINY | IDS | {"vocab_size": "1024"})
    probe = make_probe(larger, tokenizer=stored, num_sequences=2, sequence_length=32)
    assert "tokenizer" in probe.description and int(probe.inputs["input_ids"].max()) > 256


def test_token_ids_beyond_the_vocabulary():
    model = resolve("gpt2", overrides=TINY | IDS).build()
    with pytest.raises(InputError, match="token id 300, but the vocabulary has 300"):
        collect(model, {"input_ids": torch.tensor([[1, 300]])}, consume=lambda t: None)
    assert issubclass(NotCovered, InputError)


def test_a_hub_model_is_a_folder_in_the_cache(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["rksp.models.resolve"],  # rksp.models.resolve is the function
        "hub_folder",
        lambda name, allow: asked.append((name, allow)) or folder,
    )
    source = resolve("someone/model", allow_hub=True)
    assert source.kind == "hub" and source.is_pretrained and source.target == "someone/model"
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


def test_heads_that_do_not_divide_the_width_are_refused_with_a_number_that_does():
    with pytest.raises(InputError, match=r"width 128: try --set n_head=8\.$"):
        resolve("gpt2", overrides={"n_embd": 128})
    assert resolve("gpt2", overrides={"n_embd": 128, "n_head": 8}).num_parameters
