"""Models by name, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import left_with

from lab.hub_table import TABLE, hub_table
from rksp.ground.errors import InputError
from rksp.models import names
from rksp.models.config_guard import check_sizes
from rksp.models.names import nearest_published, published, published_like
from rksp.models.resolve import resolve, settings_of

RUN = """model_name_or_path: some/thing
learning_rate: 1e-4
lr_scheduler_type: cosine
per_device_train_batch_size: 4
max_steps: 100
"""
LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def lines() -> list[list[str]]:
    return [line.split("\t") for line in TABLE.read_text("utf-8").splitlines()[1:]]


def test_every_row_of_the_table_is_found_by_each_of_its_ids():
    ids = [(name, row) for row in lines() for name in row[3].split()]
    assert len(ids) > 2500 and len({name.lower() for name, _ in ids}) == len(ids)
    for name, (kind, settings, source, _) in ids:
        found = published(name.upper())
        assert found.id == name and found.source == source
        assert found.settings == {"model_type": kind, **json.loads(settings)}
    for _, settings, _, _ in lines():
        check_sizes(json.loads(settings))


def test_the_table_is_small():
    assert TABLE.stat().st_size < 400_000


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("my-org/Llama-3.1-8B-medical", LLAMA),
        ("/path/to/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("/tmp/Meta-Llama-3-8B-Instruct/original", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("medical-Qwen2.5-7B-sft", "Qwen/Qwen2.5-7B"),
        ("qwen2_5/qwen2_5_7b", "Qwen/Qwen2.5-7B"),
        ("t5-small", "google-t5/t5-small"),
        ("me/whisper-small-hi", "openai/whisper-small"),
        ("bert-base-uncased-finetuned-sst2", "google-bert/bert-base-uncased"),
        *(
            (name, None)
            for name in ("my-org/Llama-3.1-9B", "checkpoint", "a/chatbot", "x/8b", "my-base-model")
        ),
    ],
)
def test_a_stem_with_a_size_speaks_of_a_model(name, known):
    found = published_like(name)
    assert (found and found.id) == known


def test_the_nearest_ids_are_named():
    assert LLAMA in nearest_published("meta-lama/Llama-3.1-9B")
    assert " modernbert" in nearest_published("answerdotai/ModernBERT-base")  # a model type
    assert nearest_published("qqq/zzzzzz") == ""


def test_a_published_model_is_a_run_of_trained_weights_and_the_page_says_where_it_is_from():
    source = resolve(LLAMA.lower(), counts=False)
    assert source.kind == "hub" and source.start.kind == "elsewhere"
    assert source.config.num_key_value_heads == 8 and source.config.hidden_size == 4096
    assert "November 2026" in source.shape_from and LLAMA in source.shape_from
    other = resolve("my-org/Llama-3.1-8B-medical", counts=False)
    assert "is read as" in other.notes[0] and other.config_hash == source.config_hash
    assert resolve(LLAMA, counts=False, overrides={"num_hidden_layers": 2}).start.is_scratch
    assert settings_of(LLAMA).value("num_key_value_heads") == 8
    assert settings_of("my-org/nothing-known") is None


def test_keys_that_only_the_modeling_code_reads_survive():
    source = resolve("Qwen/Qwen3-30B-A3B", counts=False)
    assert source.config.head_dim == 128


def test_a_cached_model_goes_before_the_table(tmp_path, monkeypatch):
    (tmp_path / "hub" / f"models--{LLAMA.replace('/', '--')}").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    monkeypatch.setattr(sys.modules["rksp.models.resolve"], "hub_folder", lambda *_: tmp_path)
    assert resolve(LLAMA, counts=False).config.n_layer == 2


def test_a_folder_of_the_name_of_a_published_model_is_asked_about(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(LLAMA)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    with pytest.raises(InputError, match=f"write ./{LLAMA} for the folder"):
        resolve(LLAMA, counts=False)
    assert resolve(f"./{LLAMA}", counts=False).config.n_layer == 2


def test_a_typed_id_is_looked_up_and_one_in_a_file_is_not(tmp_path, monkeypatch, capsys):
    asked = []

    def fetch(target: str) -> Path:
        asked.append(target)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
        return tmp_path

    source = resolve("some/thing", counts=False, fetch=fetch)
    assert source.config.n_layer == 3 and not source.start.is_scratch and asked == ["some/thing"]
    assert resolve(LLAMA, counts=False, fetch=fetch).shape_from and len(asked) == 1

    monkeypatch.setattr(names, "fetch_config", fetch)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    typed = ["score", "some/thing", "--lr", "1e-4", "--evidence", "config"]
    assert left_with(typed) == 0 and len(asked) == 2
    assert left_with([*typed, "--offline"]) == 2
    run = tmp_path / "run.yaml"
    run.write_text(RUN)
    assert left_with(["score", str(run), "--evidence", "config", "--fail-on", "unknown"]) == 4
    assert len(asked) == 2 and "--allow-hub" in " ".join(capsys.readouterr().out.split())


class _Refusal(Exception):
    """What the Hub's client raises, by its name and the status of the answer."""

    def __init__(self, status: int | None = None) -> None:
        self.response = type("Response", (), {"status_code": status})


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("GatedRepoError", 401, "hf auth login"),
        ("RepositoryNotFoundError", 401, "no such model"),
        ("RemoteEntryNotFoundError", 404, "no config.json"),
        ("ConnectError", None, "cannot be reached"),
        ("OfflineModeIsEnabled", None, "HF_HUB_OFFLINE"),
    ],
)
def test_each_reason_of_the_hub_has_its_sentence(name, status, said, monkeypatch):
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise type(name, (_Refusal,), {})(status)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refuse)
    with pytest.raises(InputError, match=said):
        names.fetch_config("some/thing")


def test_a_large_file_is_not_fetched(monkeypatch):
    import huggingface_hub

    large = type("Metadata", (), {"size": 2**21})
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: large)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(InputError, match="2097152 bytes"):
        names.fetch_config("some/thing")


_COST = """
import sys, time
from rksp.models.names import published
start = time.process_time()
assert published("meta-llama/Llama-3.1-8B")
print(time.process_time() - start, "torch" in sys.modules, "transformers" in sys.modules)
"""


def test_a_lookup_costs_less_than_20_ms_and_no_torch():
    done = subprocess.run([sys.executable, "-c", _COST], capture_output=True, text=True, check=True)
    seconds, *loaded = done.stdout.split()
    assert float(seconds) < 0.02 and loaded == ["False", "False"]


def test_the_table_keeps_what_a_file_states_and_not_what_only_a_list_knows():
    rows = {
        "a/One": {"id": "a/One", "model_type": "gpt2", "config": {"n_layer": 2}, "certain": True,
                  "source": "x/y@0123abc:config.json"},
        "b/One": {"id": "b/One", "same_as": "a/One", "certain": True, "source": "x/y"},
        "A/ONE": {"id": "A/ONE", "same_as": "a/One", "certain": True, "source": "x/y"},
        "c/Two": {"id": "c/Two", "model_type": "gpt2", "config": {"n_layer": 9}, "certain": False,
                  "source": "RahulSChand/gpu_poor@01:all.json"},
    }  # fmt: skip
    month, line = hub_table(rows, "2026-11").splitlines()
    assert month == "2026-11"
    assert line == 'gpt2\t{"n_layer":2}\tx/y:config.json\t a/One b/One '


def test_random_weights_are_not_measured_for_trained_ones_unasked(capsys):
    assert left_with(["score", "t5-small", "--lr", "1e-4", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["provenance"]["weights"] == "not built"
    assert report["target"]["start"]["kind"] == "elsewhere" and report["next_command"] == ""
