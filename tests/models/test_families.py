"""A sample of model types and published configurations, read end to end."""

from __future__ import annotations

import pytest
import torch
from support.places import CONFIGS

from rksp.datasets.probe import make_probe
from rksp.ground.errors import InputError
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve, resolve_tiny

SAMPLE = {  # type → the chains at tiny size
    "gpt2": ["transformer.h"],
    "llama": ["model.layers"],
    "bloom": ["transformer.h"],
    "opt": ["model.decoder.layers"],
    "gpt_neox": ["gpt_neox.layers"],
    "mixtral": ["model.layers"],
    "mamba": ["backbone.layers"],
    "rwkv": ["rwkv.blocks"],
    "falcon_h1": ["model.layers"],
    "bert": ["bert.encoder.layer"],
    "modernbert": ["model.layers"],
    "bart": ["model.encoder.layers", "model.decoder.layers"],
    "t5": ["encoder.block", "decoder.block"],
    "vit": ["vit.layers"],
}


def read(source) -> tuple[list[str], int]:
    seen = []

    def consume(transition):
        assert transition.x.shape == transition.y.shape and len(transition.x) > 1
        assert torch.isfinite(transition.y).all()
        assert not torch.equal(transition.x, transition.y)
        seen.append(transition.layer)

    probe = make_probe(source, num_sequences=2, sequence_length=32)
    result = collect(source.build(0), probe.batch, consume=consume)
    assert seen == list(range(len(seen)))
    assert sum(count for _, count in result.chains) == len(seen)
    return [path for path, _ in result.chains], len(seen)


@pytest.mark.parametrize("name", SAMPLE)
def test_type(name):
    paths, blocks = read(resolve_tiny(name))
    assert paths == SAMPLE[name]
    assert blocks == (2 if name == "bloom" else 4) * len(paths)  # bloom's default depth is 2


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("Qwen--Qwen3-0.6B_config.json", 4),
        ("Qwen--Qwen3-VL-4B-Instruct_config.json", 4),
        ("deepseek-ai--DeepSeek-V3_config.json", 4),
        ("google--gemma-4-26B-A4B_config.json", 4),
        ("moonshotai--Kimi-K2-Instruct_config.json", 4),
        ("nvidia--Nemotron-H-56B-Base-8K_config.json", 4),
        ("openai--gpt-oss-20b_config.json", 4),
    ],
)
def test_published_configuration_shrunk(name, blocks):
    assert read(resolve_tiny(str(CONFIGS / name)))[1] == blocks


def test_a_published_configuration_shrunk_by_the_user():
    overrides = {
        "num_hidden_layers": "2",
        "hidden_size": "64",
        "intermediate_size": "96",
        "num_attention_heads": "4",
        "num_key_value_heads": "2",
        "head_dim": "16",
        "vocab_size": "512",
        "bos_token_id": "0",
        "eos_token_id": "0",
    }
    source = resolve(str(CONFIGS / "Qwen--Qwen3-0.6B_config.json"), overrides=overrides)
    assert read(source) == (["model.layers"], 2)


def test_a_type_that_transformers_lacks_is_one_sentence():
    with pytest.raises(InputError, match="baichuan") as caught:
        resolve(str(CONFIGS / "baichuan.json"))
    assert "\n" not in str(caught.value)
