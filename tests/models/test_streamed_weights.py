"""Weights of a streamed model: drawn piece by piece, the bits of those that are drawn whole."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rksp.ground.errors import NotCovered
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming.recording import PIECE, piece_seed, record_model
from rksp.models.streaming.weights import InitialWeights, build_whole, fill

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
def test_weights_are_those_that_transformers_would_draw():
    source = resolve("gpt2", overrides={"n_layer": "3", "n_embd": "96", "n_head": "4"})
    drawn, plain = source.build(0), source.construct()
    assert drawn.lm_head.weight is drawn.transformer.wte.weight
    assert drawn.state_dict().keys() == plain.state_dict().keys()
    for (name, left), right in zip(
        drawn.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        error = 6 / math.sqrt(left.numel())
        assert float(left.std(correction=0)) == pytest.approx(
            float(right.std(correction=0)), rel=error
        ), name
        assert float(left.mean()) == pytest.approx(
            float(right.mean()), abs=error * float(right.std(correction=0)) + 1e-9
        ), name
    # Blocks overwrite what their projections began with: 0.02 / sqrt(2 layers).
    scaled = drawn.transformer.h[1].attn.c_proj.weight
    assert float(scaled.std()) == pytest.approx(0.02 / math.sqrt(6), rel=0.05)


def test_a_padding_row_stays_zero():
    source = resolve_tiny("opt")
    weight = source.build(0).model.decoder.embed_tokens.weight
    assert weight[1].eq(0).all() and not weight[2].eq(0).any()
    tied = source.build(0).lm_head.weight
    assert torch.equal(tied, weight)


def test_a_part_of_a_weight_is_that_part_of_the_whole():
    source = resolve("llama", overrides={"num_hidden_layers": "1", "vocab_size": "40"})
    model, recipes = record_model(source.construct_empty, 0)
    weights = InitialWeights(recipes, 0)
    name = "model.layers.0.mlp.up_proj.weight"
    like = model.get_parameter(name)
    assert like.numel() > 40 * PIECE
    part = torch.empty(3000, like.shape[1])
    for job in reversed(weights.jobs(name, part, 5001)):
        job()
    whole = fill(weights, name, like)
    assert torch.equal(part, whole[5001:8001])
    pieces = whole.view(-1)[: 2 * PIECE].view(2, PIECE)
    assert not torch.equal(pieces[0], pieces[1])


def test_no_two_pieces_of_a_model_share_a_seed():
    source = resolve_tiny("mixtral")
    _, recipes = record_model(source.construct_empty, 0)
    steps = [s for r in recipes.values() for s in r.steps if s.pieces]
    numbers = [s.first + k for s in steps for k in range(s.pieces)]
    assert len(numbers) == len(set(numbers)) > 20
    assert len({piece_seed(0, n) for n in range(10_000)}) == 10_000


class Undecided(nn.Module):
    """A weight that no initializer touches, and one that is computed from another."""

    def __init__(self, computes: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(2000, 1000))
        self.b = nn.Parameter(torch.empty(2000, 1000))
        self.computes = computes

    def _init_weights(self, module: nn.Module) -> None:
        nn.init.normal_(self.a)
        if self.computes:
            self.b.copy_(self.a.relu())


@pytest.mark.parametrize("computes", [False, True])
def test_weights_without_a_recipe_are_refused_in_one_sentence(computes):
    with pytest.raises(NotCovered, match=r"does not initialize b.*--stream never"):
        build_whole(lambda: Undecided(computes), 0)


def test_a_module_without_an_initializer_is_refused():
    with pytest.raises(NotCovered, match="has no _init_weights"):
        build_whole(lambda: nn.Linear(2, 2), 0)
