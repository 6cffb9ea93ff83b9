"""The paper's Table 1 (arXiv 2602.22988) by the library: spectra at initialization by norm class.

Setting: GPT-2-style blocks, N(0, 0.02²) weights, width 256, 6 blocks, 4 heads, 2,048 states of
random tokens from a vocabulary of 256; mean over the paper's own seeds, which differ by 0.002 to
0.006 in the masses.
"""

from __future__ import annotations

import functools
import statistics

import pytest
import torch

from lab.zoo import ZooConfig, ZooTransformer
from rksp.documents.spectrum import VARIANTS, SpectralProfile
from rksp.measure.snapshots import LayerTransition
from rksp.spectra.dmd import SpectralAccumulator

_SEEDS = (42, 123, 456)
_WIDTH, _SEQUENCES, _LENGTH = 256, 32, 64


@functools.cache
def _profile(norm: str, seed: int) -> SpectralProfile:
    torch.manual_seed(seed)
    config = ZooConfig(hidden_size=_WIDTH, num_hidden_layers=6, norm=norm)
    model = ZooTransformer(config).eval()
    tokens = torch.randint(config.vocab_size, (_SEQUENCES, _LENGTH))
    spectra = SpectralAccumulator(variant=VARIANTS["paper-full-1"])
    for layer, block in enumerate(model.blocks):

        def hand_over(_module, inputs, output, layer=layer) -> None:
            x, y = inputs[0].reshape(-1, _WIDTH), output.reshape(-1, _WIDTH)
            spectra.consume(LayerTransition(layer=layer, name="", x=x, y=y))

        block.register_forward_hook(hand_over)
    with torch.no_grad():
        model(tokens)
    return spectra.finish()


@pytest.mark.parametrize(
    ("norm", "near_unit", "expansive", "radius"),
    [
        ("pre_ln", 0.16, 0.54, 2.29),
        ("rmsnorm", 0.16, 0.54, 2.28),
        ("post_ln", 0.66, 0.31, 7.48),
        ("none", 0.80, 0.19, 1.11),
    ],
)
def test_published_rows_are_reproduced(
    norm: str, near_unit: float, expansive: float, radius: float
) -> None:
    profiles = [_profile(norm, seed) for seed in _SEEDS]

    def mean(quantity: str) -> float:
        return statistics.fmean(p.aggregates[quantity]["mean"] for p in profiles)

    assert statistics.fmean(p.published_score for p in profiles) == pytest.approx(
        near_unit, abs=0.02
    )
    assert mean("expansive_mass") == pytest.approx(expansive, abs=0.02)
    assert mean("spectral_radius") == pytest.approx(radius, rel=0.07)
    assert {p.coverage for p in profiles} == {1.0}


def test_first_block_of_a_post_norm_model_stands_apart() -> None:
    profile = _profile("post_ln", _SEEDS[0])
    assert profile.layers[0].near_unit_mass < 0.05
    assert min(layer.near_unit_mass for layer in profile.layers[1:]) > 0.7
