"""The same weights get the same edge with their configuration, without it, and inside a module."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rksp
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.measure import snapshots
from rksp.models import given

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
FAMILIES = (
    *("gpt2", "llama", "qwen3", "gemma", "olmo2", "gpt_neox", "gemma2", "mixtral", "opt_post"),
    *("phi", "granite", "mamba"),
)
# Phi's own offset is 0.6 decades above that of the lab's toy whose blocks do the same.
OTHERWISE = ("phi",)
CLOSE = 0.15  # decades


class Wrapped(nn.Module):
    """A model inside another module."""

    def __init__(self, model):
        super().__init__()
        self.inside = model

    def forward(self, tokens):
        return self.inside(tokens).logits


def loss(output, target):
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def assessed(model, steps=200):
    """Return the answer for a model on bytes, from one forward pass."""
    batch = make_task("bytes", length=32).batches(1, 8, seed=3)[0]
    recipe = {"max_steps": steps, "warmup_steps": 20, "batch_size": 8, "sequence_length": 32}
    options = {"evidence": "forward", "cache": False}
    found = rksp.score(model, (batch.inputs, batch.labels), recipe, loss, lr=3e-3, **options)
    return found.report.seeds[0].risk


def apart(one, other):
    """Return by how many decades two edges differ."""
    return abs(math.log10(one.likely_edge / other.likely_edge))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_edge_is_that_of_the_weights(family, monkeypatch):
    model = build_member(family, SHAPE, seed=0)
    own = assessed(model)
    assert apart(assessed(Wrapped(model)), own) == 0
    monkeypatch.setattr(given, "_hugging_face", lambda model, *, is_wrapped: None)
    bare = assessed(Wrapped(model))
    assert (apart(bare, own) <= CLOSE) == (family not in OTHERWISE)


def test_without_the_reading_it_is_another():
    model = build_member("olmo2", SHAPE, seed=0)
    own = assessed(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(given, "_hugging_face", lambda model, *, is_wrapped: None)
        patch.setattr(snapshots, "read_placement", lambda graph, chains: None)
        blind = assessed(Wrapped(model))
        assert apart(blind, own) > 1
        assert blind.widened_by["placement"] == 0.5
    assert "placement" not in own.widened_by


def test_next_tokens_are_seen_in_the_batch(monkeypatch):
    model = build_member("llama", SHAPE, seed=0)
    monkeypatch.setattr(given, "_hugging_face", lambda model, *, is_wrapped: None)
    bare = assessed(Wrapped(model), steps=2500)
    monkeypatch.setattr(given, "predicts_next", lambda batch: False)
    assert "objective" not in bare.widened_by
    assert "objective" in assessed(Wrapped(model), steps=2500).widened_by


def test_where_the_module_is_another_than_its_configuration_says_the_page_says_so():
    model = build_member("olmo2", SHAPE, seed=0)

    def named(model):
        batch = make_task("bytes", length=32).batches(1, 8, seed=3)[0]
        found = rksp.score(
            model, (batch.inputs, batch.labels), {}, loss, lr=1e-3, evidence="forward", cache=False
        )
        return [f.message for f in found.report.findings if f.code == "RKSP706"]

    assert not named(model)
    for layer in model.model.layers:
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = nn.Identity()
    (said,) = named(model)
    assert said == (
        "The configuration (olmo2) says a norm after each branch, normalized queries and keys; the "
        "module has no norm on the stream or its branches, normalized queries and keys."
    )
