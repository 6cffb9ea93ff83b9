"""Families and batches for the tests of streaming."""

from __future__ import annotations

import torch
from torch import nn

from rksp.datasets.batch import Batch
from rksp.datasets.probe import make_probe
from rksp.documents.shown import Collected
from rksp.measure.snapshots import collect
from rksp.models.source import ModelSource

FAMILIES = [
    "albert",
    "bamba",
    "bart",
    "bert",
    "bloom",
    "cohere",
    "deepseek_v3",
    "falcon_h1",
    "fsmt",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "jamba",
    "lfm2",
    "llama",
    "llama4_text",
    "mamba",
    "mamba2",
    "mistral",
    "mixtral",
    "nemotron_h",
    "olmo2",
    "olmoe",
    "opt",
    "phi",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "t5",
    "vit",
]


def batch_for(source: ModelSource, length: int = 16) -> Batch:
    probe = make_probe(source, num_sequences=2)
    inputs = {
        key: value[:, :length] if value.dim() == 2 else value for key, value in probe.inputs.items()
    }
    labels = probe.labels
    cut = labels is not None and labels.dim() == 2
    return Batch(inputs=inputs, labels=labels[:, :length] if cut else labels)


def halves(source) -> tuple[Batch, Batch, Batch]:
    both = batch_for(source)
    parts = [
        Batch(
            inputs={key: value[i : i + 1] for key, value in both.inputs.items()},
            labels=both.labels[i : i + 1],
        )
        for i in (0, 1)
    ]
    return both, parts[0], parts[1]


def states_of(model: nn.Module, batch: Batch) -> tuple[list, Collected]:
    seen: list = []
    result = collect(
        model, batch, consume=lambda t: seen.append((t.name, t.x.clone(), t.y.clone()))
    )
    return seen, result


def assert_same(left: list, right: list) -> None:
    assert [name for name, *_ in left] == [name for name, *_ in right]
    assert len(left) > 1
    for (name, x, y), (_, other_x, other_y) in zip(left, right, strict=True):
        assert torch.equal(x, other_x) and torch.equal(y, other_y), name
