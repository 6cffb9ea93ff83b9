"""The features: frozen names, values at rate 1, missing is missing."""

from __future__ import annotations

import math

import pytest
import torch

from lab.zoo import build_member
from rksp.datasets.probe import make_probe
from rksp.documents.shown import GradientProfile
from rksp.models.resolve import resolve
from rksp.spectra.features import FEATURES, SCHEMA, Tier, extract
from rksp.spectra.model_profile import profile

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}

# A change here breaks stored models and measurements: give SCHEMA a new name, refit, and say
# so in classifiers/README.md.
FROZEN = (
    "near_unit_mass expansive_mass spectral_radius eigenvector_condition nonnormality energy_gain "
    "nonlinearity update_ratio residual_growth excess_initial_loss logit_std attention_logit_std "
    "attention_entropy aligned_rate grad_norm grad_rms"
)


def test_names_and_order_are_frozen():
    assert " ".join(FEATURES) == FROZEN
    assert SCHEMA == "features-1"


def test_what_was_not_measured_is_missing_and_never_zero():
    nothing, some = extract(), extract(gradient=GradientProfile(grad_norm=2.0, grad_rms=0.01))
    assert (nothing.tier, some.tier) == (Tier.CONFIG, Tier.GRADIENT)
    assert all(math.isnan(value) for value in nothing.values.values())
    assert math.isnan(some.values["nonlinearity"])
    assert some.values["grad_rms"] == pytest.approx(-2)


@pytest.mark.parametrize(("sequences", "is_known"), [(1, False), (8, True)])
def test_nonlinearity_needs_more_states_than_the_width(sequences, is_known):
    model = build_member("zoo_pre_ln", SHAPE, seed=0).eval()
    tokens = torch.randint(0, 64, (sequences, 32), generator=torch.Generator().manual_seed(0))
    seen = profile(model, tokens)
    values = extract(seen.forward, seen.spectra).values
    assert math.isfinite(values["nonlinearity"]) == is_known
    assert math.isfinite(values["update_ratio"])


def test_nonlinearity_leaves_out_a_first_block_that_sees_too_few_tokens():
    # Rotary positions turn queries and keys alone: block 0 gets one state a token of the text.
    shape = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128}
    source = resolve("llama", overrides=shape)
    seen = profile(source.build(0).eval(), make_probe(source).batch)
    layers = seen.spectra.layers
    assert [bool(layer.rank_reduced_from) for layer in layers] == [True, False, False]
    found = extract(seen.forward, seen.spectra).values["nonlinearity"]
    assert found == pytest.approx((layers[1].nonlinearity + layers[2].nonlinearity) / 2)
    assert layers[0].nonlinearity > 1.5 * found  # what it would have added
