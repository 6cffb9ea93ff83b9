"""One reader of a configuration: everyone is told the same, and what it says is right."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest
from support.commands import left_with
from support.places import CONFIGS
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from rksp.assessment.risk import declared_inputs
from rksp.checks.evidence import CheckEvidence
from rksp.ground.errors import InputError
from rksp.models.configuration import refusals
from rksp.models.declared import Declared
from rksp.models.families import FAMILIES, KINDS, lineage_of
from rksp.models.resolve import resolve
from rksp.recipe import Recipe


def configurations():
    """Every model type whose defaults make a configuration."""
    for name in CONFIG_MAPPING_NAMES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield name, CONFIG_MAPPING[name]()
            except refusals():  # its defaults are incomplete
                continue


@pytest.mark.slow
def test_the_edge_model_and_the_checks_are_told_the_same_of_every_type():
    told = 0
    for name, config in configurations():
        checks = CheckEvidence(recipe=Recipe(), config=config)
        try:
            edge = declared_inputs(Declared(config), Recipe())
        except InputError:
            assert checks.settings.shape is None, name
            continue
        assert (edge.width, edge.depth) == (
            checks.settings.shape.width,
            checks.settings.shape.depth,
        ), name
        told += 1
    assert told > 600


@pytest.mark.parametrize(
    ("name", "width", "depth", "experts"),
    [
        ("bart", 1024, 24, None),
        ("blenderbot", 2560, 26, None),
        ("mt5", 512, 16, None),
        ("dbrx", 2048, 24, 4),
        ("llava", 4096, 32, None),
        ("swin", 768, 12, None),
        ("mixtral", 4096, 32, 8),
        ("zamba2", 2560, 54, None),
    ],
)
def test_known_sizes_are_read(name, width, depth, experts):
    said = Declared(AutoConfig.for_model(name))
    assert (said.width, said.depth, said.experts) == (width, depth, experts)


def test_an_image_classifier_is_its_vision_part():
    whole = {
        "model_type": "clip",
        "vision_config": {"hidden_size": 8, "num_hidden_layers": 2},
        "text_config": {"hidden_size": 16, "num_hidden_layers": 3, "vocab_size": 99},
    }
    image, text = Declared(whole, "image-classification"), Declared(whole)
    assert (image.width, image.depth, image.vocabulary) == (8, 2, None)
    assert (text.width, text.depth, text.vocabulary) == (16, 3, 99)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert", "t5", "bart", "llama", "qwen3", "vit", "gpt_neox", "opt"]
)
def test_the_computed_size_is_near_the_counted_one(name):
    source = resolve(name)
    computed = Declared(source.config, source.task).shape.parameters
    assert computed == pytest.approx(source.num_parameters, rel=0.08)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
        ("clip", {}),
        ("dinov2", {"hidden_size": 384, "num_attention_heads": 6}),
        ("hubert", {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}),
        ("mamba", {"num_hidden_layers": 12}),
        ("mamba", {"hidden_size": 2048}),
        ("openai-gpt", {}),
        ("swin", {}),
        ("swin", {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}),
        ("xlnet", {"n_layer": 12}),
    ],
)
def test_what_is_no_plain_transformer_has_the_size_that_is_counted(name, settings):
    source = resolve(name, overrides=settings)
    computed = Declared(source.config, source.task).shape.parameters
    assert computed == pytest.approx(source.num_parameters, rel=0.16)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_says_the_same_as_the_configuration_made_from_it(file):
    raw = Declared(json.loads(file.read_text()))
    try:
        made = Declared(resolve(str(file), counts=False).config)
    except InputError:
        pytest.skip("exists only as remote code")
    if raw.part is not raw.config or raw.width is None:
        pytest.skip("the parts have names of their own")
    assert (raw.width, raw.depth) == (made.width, made.depth)


@pytest.mark.parametrize("target", ["llava", "dbrx", "Qwen--Qwen3-VL-4B-Instruct_config.json"])
def test_a_nested_configuration_has_a_width_and_a_size_in_json(target, capsys):
    file = CONFIGS / target
    target = str(file) if file.exists() else target
    assert left_with(["score", target, "--evidence", "config", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["target"]
    assert found["width"] > 0 and found["parameters"] > 1e8


def test_every_row_of_the_families_is_a_type():
    others = {"kimi_k2", "smollm4", "minimax_m2"}  # remote code, or a newer transformers
    stray = {n for n in FAMILIES if n not in CONFIG_MAPPING_NAMES} - others
    stray = {name for name in stray if f"{name}_text" not in CONFIG_MAPPING_NAMES}
    assert stray == set()


@pytest.mark.parametrize(
    ("model_type", "lineage", "kind"),
    [
        ("xlm-roberta", "roberta", "encoder"),
        ("qwen3_moe", "qwen3", "decoder"),
        ("big_bird", "bigbird", "encoder"),
        ("mt5", "t5", "encoder_decoder"),
        ("a new one", "a new one", None),
    ],
)
def test_a_model_type_has_a_lineage_and_a_kind(model_type, lineage, kind):
    assert lineage_of(model_type) == lineage
    kinds = {row.kind for name, row in FAMILIES.items() if (row.of or name) == lineage}
    assert kinds == ({kind} if kind else set())


def test_the_types_of_one_lineage_are_of_one_kind():
    kinds = {}
    for name, row in FAMILIES.items():
        assert row.kind in (*KINDS, None), name
        assert kinds.setdefault(lineage_of(name), row.kind) == row.kind, name


def test_reading_a_configuration_loads_neither_torch_nor_transformers():
    code = (
        "import sys; from rksp.models.declared import Declared; "
        "print(Declared({'n_embd': 8, 'n_layer': 2}).shape.depth); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr
