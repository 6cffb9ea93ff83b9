"""What a target means, and what a stranger's configuration may not do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support.places import CONFIGS
from support.tiny_models import IDS, TINY_GPT2

from rksp.ground.errors import InputError
from rksp.models.config_guard import read_config, sanitize
from rksp.models.configuration import ModelSettings, parse_value, resized
from rksp.models.resolve import resolve


def test_a_model_type_is_counted_before_it_is_built():
    source = resolve("gpt2")
    assert source.kind == "model_type" and source.task == "causal-lm"
    assert source.num_parameters == 124_439_808  # Radford et al., 2019, as transformers counts
    assert source.start.is_scratch


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
    source = resolve("gpt2", overrides=TINY_GPT2 | IDS, seed=5)
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
    merged = ModelSettings(known=settings).merged(settings, {"num_hidden_layers": 2})
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
    with pytest.raises(InputError, match=r"6.74 B parameters.*--max-params 2e\+09.*--set"):
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


def test_heads_that_do_not_divide_the_width_are_refused_with_a_number_that_does():
    with pytest.raises(InputError, match=r"width 128: try --set n_head=8\.$"):
        resolve("gpt2", overrides={"n_embd": 128})
    assert resolve("gpt2", overrides={"n_embd": 128, "n_head": 8}).num_parameters
