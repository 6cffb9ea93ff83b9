"""The shipped table of model types answers as transformers does, or leaves the answer to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import transformers
from support.places import CONFIGS, ROOT

from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.models import configuration, resolve
from rksp.models.config_guard import read_config
from rksp.models.configuration import declared_config, known_type, make_config, model_types
from rksp.models.type_table import common, type_names, type_row
from rksp.recipe import Recipe

KINDS = ("gpt2", "llama", "bert", "t5", "vit", "mixtral", "qwen3", "deepseek_v3", "llava")
SETS = {
    "gpt2": {"n_embd": "96", "num_hidden_layers": "3", "n_head": "4", "dropout": "0.2"},
    "llama": {"num_hidden_layers": "2", "num_attention_heads": "64", "hidden_size": "8192"},
    "bert": {"hidden_size": "384", "num_hidden_layers": "4", "hidden_act": "relu"},
    "t5": {"d_model": "256", "num_layers": "3"},
    "vit": {"image_size": "64", "num_hidden_layers": "5"},
    "mixtral": {"num_local_experts": "4", "num_experts_per_tok": "1"},
    "qwen3": {"num_hidden_layers": "31", "head_dim": "64"},
    "deepseek_v3": {"n_routed_experts": "8", "n_group": "2", "num_hidden_layers": "5"},
    "llava": {"text_config.num_hidden_layers": "3", "vision_config.hidden_size": "512"},
}


def document(target: str, overrides=None, **more) -> dict:
    """Return the document of a score without what names a release."""
    from rksp.assessment.pipeline import evaluate, score_report

    source = resolve.resolve(target, overrides=overrides, counts=False)
    recipe = Recipe(learning_rate=2e-3, **more)
    evaluation = evaluate(source, recipe, MeasureOptions(evidence="config"))
    found = json.loads(score_report(recipe, [evaluation]).to_json())
    del found["provenance"], found["timings"]
    return found


@pytest.fixture
def both(monkeypatch):
    """Return the documents of the table's road and of transformers' road."""

    def outcome(target: str, overrides) -> dict | str:
        try:
            return document(target, overrides)
        except InputError as error:
            return str(error)

    def roads(target: str, overrides=None) -> tuple[dict | str, dict | str]:
        light = outcome(target, overrides)
        with monkeypatch.context() as patch:
            patch.setattr(resolve, "declared_config", lambda *given: None)
            whole = outcome(target, overrides)
        return light, whole

    return roads


same_release = pytest.mark.skipif(
    common().transformers != transformers.__version__,
    reason=f"the table is of transformers {common().transformers}",
)


@same_release
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_both_roads_write_the_same_document(both, kind, is_set):
    light, whole = both(kind, SETS[kind] if is_set else None)
    assert light == whole


@same_release
@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_both_roads_read_a_real_configuration_alike(both, file):
    light, whole = both(str(file))
    assert light == whole


# What configurations of common models say that their type's default does not.
PUBLISHED = {
    "gpt2": {
        "activation_function": "gelu_new",
        "n_ctx": 1024,
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "llama": {
        "eos_token_id": [128001, 128008, 128009],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    },
    "mistral": {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768},
    "mixtral": {"router_aux_loss_coef": 0.02, "sliding_window": None, "rope_theta": 1e6},
    "bert": {"gradient_checkpointing": False, "position_embedding_type": "absolute"},
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000, "use_parallel_residual": True},
    "qwen2": {"max_window_layers": 21, "sliding_window": 131072, "tie_word_embeddings": True},
    "qwen2_vl": {"vision_start_token_id": 151652, "tie_word_embeddings": True},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "t5": {"d_ff": 2048, "n_positions": 512, "task_specific_params": {"a": {"prefix": "b"}}},
    "opt": {"prefix": "</s>", "_remove_final_layer_norm": False},
    "phi": {"partial_rotary_factor": 0.4, "rope_theta": 10000.0, "rope_scaling": None},
    "deepseek_v3": {"num_nextn_predict_layers": 0, "scoring_func": "sigmoid", "ep_size": 1},
}


@same_release
@pytest.mark.parametrize("kind", PUBLISHED)
def test_both_roads_read_what_models_publish_alike(both, tmp_path, kind):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind} | PUBLISHED[kind]))
    light, whole = both(str(file))
    assert light == whole


# transformers' own are settings by layer (gemma-4, Nemotron-H); baichuan exists as remote code.
READ = ("Qwen3-0.6B", "Qwen3-VL", "DeepSeek-V3", "Kimi-K2", "gpt-oss")


@same_release
@pytest.mark.parametrize("name", READ)
def test_the_table_answers_for_real_configurations(name):
    (file,) = CONFIGS.glob(f"*{name}*.json")
    settings, _ = known_type(name, read_config(file)[0], needs_code=False)
    assert declared_config(settings) is not None


@same_release
@pytest.mark.parametrize("kind", sorted({*PUBLISHED} - {"gpt_neox"}))
def test_the_table_answers_for_what_models_publish(kind):
    assert declared_config({"model_type": kind} | PUBLISHED[kind]) is not None


def test_what_one_type_interprets_another_stores():
    assert "moe_layer_freq" not in type_row("deepseek_v3").interpreted
    assert declared_config({"model_type": "deepseek_v3", "moe_layer_freq": 2}) is not None
    taken = [kind for kind in type_names() if "moe_layer_freq" in type_row(kind).interpreted]
    assert taken and declared_config({"model_type": taken[0], "moe_layer_freq": 2}) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_answers_for_the_common_types(kind):
    assert declared_config({"model_type": kind}) is not None
    if kind != "deepseek_v3":  # its groups of experts must agree, which transformers checks
        assert declared_config({"model_type": kind}, SETS[kind]) is not None


@pytest.mark.parametrize("overrides", [{"n_embed": "3"}, {"hidden": "3"}, {"n_layer": "99999"}])
def test_both_roads_refuse_in_the_same_words(overrides):
    settings = {"model_type": "gpt2"}
    with pytest.raises(InputError) as light:
        declared_config(settings, overrides)
    with pytest.raises(InputError) as whole:
        make_config("gpt2", settings, overrides)
    assert str(light.value) == str(whole.value)


@pytest.mark.parametrize(
    "overrides",
    [{"n_head": "7"}, {"n_embd": "wide"}, {"n_embd": "1.5"}, {"use_cache": "3"}],
)
def test_what_the_table_cannot_vouch_for_goes_to_transformers(overrides):
    assert declared_config({"model_type": "gpt2"}, overrides) is None


def test_the_answer_of_a_known_type_needs_no_transformers(monkeypatch):
    monkeypatch.setattr(configuration, "model_types", lambda: pytest.fail("asked transformers"))
    assert document("gpt2", {"n_layer": "3"})["target"]["blocks"] == []


_OFFLINE = """
from rksp.cli.process import quiet_transformers
quiet_transformers()
from huggingface_hub import constants
print(constants.HF_HUB_OFFLINE)
"""


def test_silencing_transformers_keeps_the_hub_offline():
    clean = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _OFFLINE],
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"


@pytest.mark.slow
def test_the_table_holds_what_transformers_declares():
    kinds = [kind for kind in type_names() if kind in model_types()]
    assert len(kinds) > 600
    differing = {}
    for kind in kinds:
        stored = dict(type_row(kind).settings)
        found = json.loads(
            json.dumps(make_config(kind, {"model_type": kind}).to_dict(), default=str)
        )
        names = {n for n in {*stored, *found} if stored.get(n) != found.get(n)}
        if names - {"transformers_version"}:
            differing[kind] = sorted(names)
    if common().transformers != transformers.__version__:
        pytest.skip(
            f"the table is of transformers {common().transformers}; {transformers.__version__} "
            f"declares {len(differing)} types otherwise: {differing}"
        )
    assert differing == {}, f"run python {ROOT.name}/lab/bench/type_table.py"


def test_the_answer_takes_little_memory():
    used = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = ("-m", "rksp", "score", "gpt2", "--lr", "1e-4", "--evidence", "config")
    done = subprocess.run(
        [sys.executable, "-P", "-c", used, sys.executable, "-P", *command, "--exit-zero"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.splitlines()[-1]) < 120_000  # kB
