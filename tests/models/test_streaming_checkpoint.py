"""Checkpoints that are never whole in memory: read weight by weight, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rksp.datasets.batch import Batch
from rksp.datasets.probe import make_probe
from rksp.ground.errors import InputError
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming import units
from rksp.models.streaming.stream import open_stream

pytestmark = pytest.mark.usefixtures("one_thread")


def saved(family: str, folder: Path) -> Path:
    resolve_tiny(family).build(0).save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def states_of(model, batch: Batch) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    collect(model, batch, consume=lambda t: seen.append(t.y.clone()))
    return seen


@pytest.mark.parametrize("family", ["gpt2", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_a_streamed_checkpoint_is_the_loaded_one_bit_for_bit(family, tmp_path):
    source = resolve(str(saved(family, tmp_path)))
    probe = make_probe(source, num_sequences=2)
    batch = Batch(inputs={k: v[:, :16] for k, v in probe.inputs.items()}, labels=None)
    whole = source.build()
    expected = states_of(whole, batch)
    with open_stream(source, workers=2) as stream:
        found = states_of(stream.model, batch)
        assert all(map(torch.equal, expected, found)) and len(expected) == len(found)
        stacks = [n for n, p in whole.named_parameters() if p.dim() == 3 and "experts" in n]
        for name in stacks[:2]:  # an expert alone, on disk a matrix or a part of a stack
            assert stream.weights.can_slice(name)
            weight = whole.get_parameter(name)
            out = torch.empty((1, *weight.shape[1:]))
            for job in stream.weights.jobs(name, out, 1):
                job()
            assert torch.equal(out[0], weight[1])


def test_a_matrix_of_a_checkpoint_comes_by_rows(tmp_path, monkeypatch):
    source = resolve(str(saved("llama", tmp_path)))
    probe = make_probe(source, num_sequences=2)
    expected = states_of(source.build(), Batch(inputs=probe.inputs, labels=None))
    monkeypatch.setattr(units, "SLICED_OVER", 0)
    with open_stream(source) as stream:
        assert len(stream.tall) > 10
        found = states_of(stream.model, Batch(inputs=probe.inputs, labels=None))
    assert all(map(torch.equal, expected, found)) and len(expected) == len(found)


@pytest.mark.parametrize("start", [0, 8])
def test_a_shard_whose_header_is_damaged_is_named(start, tmp_path):
    source = resolve(str(saved("llama", tmp_path)))
    shard = shards(tmp_path)[1]
    content = bytearray(shard.read_bytes())
    content[start : start + 8] = b"\xff" * 8
    shard.write_bytes(content)
    with pytest.raises(InputError, match=shard.name):
        open_stream(source)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_a_missing_shard_is_named(tmp_path):
    source = resolve(str(saved("llama", tmp_path)))
    shards(tmp_path)[1].unlink()
    with pytest.raises(InputError, match=shards(tmp_path)[0].name[:5]) as error:
        open_stream(source)
    assert "model-00002" in str(error.value)


def test_a_shard_that_was_cut_short_is_named(tmp_path):
    source = resolve(str(saved("llama", tmp_path)))
    shard = shards(tmp_path)[2]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(InputError, match=f"{shard.name} is truncated"):
        open_stream(source)


def test_a_missing_weight_is_named(tmp_path):
    source = resolve(str(saved("llama", tmp_path)))
    shard = next(s for s in shards(tmp_path) if "model.norm.weight" in load_file(s))
    save_file({k: v for k, v in load_file(shard).items() if k != "model.norm.weight"}, shard)
    with pytest.raises(InputError, match=r"lack model\.norm\.weight"):
        open_stream(source)


def test_a_weight_that_holds_nan_is_named_when_it_is_met(tmp_path):
    source = resolve(str(saved("llama", tmp_path)))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(tmp_path / index[name])
    tensors[name][0, 0] = float("nan")
    save_file(tensors, tmp_path / index[name], metadata={"format": "pt"})
    probe = make_probe(source, num_sequences=2)
    with (
        pytest.raises(InputError, match=rf"NaN or infinity in {name}"),
        open_stream(source) as stream,
    ):
        states_of(stream.model, Batch(inputs=probe.inputs, labels=None))
