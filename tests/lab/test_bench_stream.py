"""`lab/bench/stream.py`: what is counted is what a pass needs."""

from __future__ import annotations

import pytest
from support.benchmark_scripts import script

from rksp.ground.errors import InputError
from rksp.models.resolve import resolve

bench = script("stream")
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 300,
}


@pytest.fixture
def fast(monkeypatch):
    """Rates without measuring them: one of each a second."""
    monkeypatch.setattr(bench, "_fill_rate", lambda: 1.0)
    monkeypatch.setattr(bench, "_product_rate", lambda tokens, shape: 1.0)


def test_random_numbers_and_products_of_a_pass(fast):
    found = bench._measure("llama", TINY, 32, 1, False, None)
    block = 4 * 64 * 64 + 3 * 64 * 128
    drawn = 2 * block + 2 * 300 * 64  # norms are ones
    assert found["random numbers drawn"] == drawn
    assert found["parameters"] == drawn + 5 * 64
    linear = 2 * 32 * (2 * block + 300 * 64)
    floors = found["floors of drawing and multiplying, processor s"].split(" + ")
    assert float(floors[0]) == pytest.approx(drawn, rel=1e-3)
    assert linear <= float(floors[1]) <= 1.2 * linear  # attention besides
    assert found["how"] == "streamed module by module"
    assert found["peak memory, GB"] >= found["of it after imports, GB"] > 0


def test_a_cut_model_is_extrapolated_by_what_the_whole_draws(fast):
    cut = TINY | {"num_hidden_layers": 1}
    found = bench._measure("llama", cut, 32, 1, False, None) | {"pass, s": 10.0}
    whole = bench._whole(found, "llama", TINY, 32, 1, None)
    block = 4 * 64 * 64 + 3 * 64 * 128
    ratio = (2 * block + 2 * 300 * 64) / (block + 2 * 300 * 64)
    (seconds,) = [v for k, v in whole.items() if k.startswith("extrapolated seconds")]
    assert seconds == round(10.0 * ratio)
    (peak,) = [v for k, v in whole.items() if k.startswith("predicted peak")]
    assert 0.05 < peak < 10


def test_the_shapes_have_the_sizes_their_makers_state():
    stated = {
        "llama-2-7b": 6.74e9,
        "llama-3.1-70b": 70.6e9,
        "llama-3.1-405b": 405.9e9,
        "deepseek-v3": 671e9,
    }
    for name, size in stated.items():
        target, shape = bench.MODELS[name]
        source = resolve(target, overrides=shape)
        assert source.num_parameters == pytest.approx(size, rel=2e-3), name


def test_too_few_tokens_are_refused():
    with pytest.raises(InputError, match="give at least 4"):
        bench.run("llama", tokens=3)
