"""Streamed models: the bits of the model in memory, in any order, and nothing left behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from support.streams import FAMILIES, assert_same, batch_for, states_of
from torch import nn

from rksp.assessment.pipeline import evaluate, score_report
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError, NotCovered
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming import weights
from rksp.models.streaming.memory import should_stream
from rksp.models.streaming.stream import Stream, open_stream
from rksp.models.streaming.units import SplitProducts, bounds
from rksp.recipe import Recipe
from rksp.spectra.model_profile import profile

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_is_in_memory_bit_for_bit(family, poisoned):
    source = resolve_tiny(family)
    batch = batch_for(source)
    expected, in_memory = states_of(source.build(0), batch)
    with open_stream(source, 0, workers=2) as stream:
        found, streamed = states_of(stream.model, batch)
        assert all(p.is_meta for p in stream.model.parameters())
    assert_same(expected, found)
    assert in_memory.forward == streamed.forward
    assert in_memory.chains == streamed.chains


def test_poison_reaches_the_weights(poisoned, monkeypatch):
    monkeypatch.setattr(weights, "_apply", lambda *args: None)
    assert all(p.isnan().all() for p in resolve_tiny("llama").build(0).parameters())


def test_nothing_depends_on_threads_or_on_what_is_prepared_ahead():
    source = resolve_tiny("qwen3_moe")
    batch = batch_for(source)
    expected, _ = states_of(source.build(3), batch)
    for workers, ahead in ((1, 0), (2, 20_000), (4, 10**9)):
        opened = open_stream(source, 3, workers=workers)
        with Stream(opened.model, opened.weights, workers=workers, ahead=ahead) as stream:
            found, _ = states_of(stream.model, batch)
        assert_same(expected, found)
    other, _ = states_of(source.build(4), batch)
    assert not torch.equal(expected[0][2], other[0][2])


def test_a_model_that_changes_its_weights_as_it_runs_is_refused():
    source = resolve_tiny("rwkv")
    with pytest.raises(NotCovered, match="cannot be streamed"), open_stream(source) as stream:
        states_of(stream.model, batch_for(source))


def test_a_block_that_is_used_again_is_loaded_again():
    source = resolve_tiny("albert")
    with open_stream(source) as stream:
        states_of(stream.model, batch_for(source))
        assert len(stream.supply.order) > len(set(stream.supply.order)) > 0


ZAMBA2 = {  # one transformer block, with weights of its own or shared, at three places
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"],
    "hybrid_layer_ids": [1, 3, 4],
    "num_hidden_layers": 6,
    "num_mem_blocks": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
    "adapter_rank": 8,
    "n_mamba_heads": 4,
    "mamba_headdim": 32,
    "mamba_d_state": 8,
    "mamba_ngroups": 1,
    "vocab_size": 300,
}


def test_no_graph_keeps_the_weights_that_have_gone():
    source = resolve_tiny("llama")
    batch = batch_for(source)
    with open_stream(source, 0) as stream:
        assert torch.is_grad_enabled()
        assert not stream.model(**batch.inputs).logits.requires_grad


def test_blocks_that_share_their_weights_are_the_ones_in_memory(poisoned):
    source = resolve("zamba2", overrides=ZAMBA2)
    batch = batch_for(source)
    model = source.build(0)
    assert model.num_parameters() < sum(p.numel() for p in model.state_dict().values())
    expected, _ = states_of(model, batch)
    with open_stream(source, 0, workers=2) as stream:
        found, _ = states_of(stream.model, batch)
    assert_same(expected, found)


def test_an_interrupted_pass_leaves_nothing_behind():
    source = resolve_tiny("llama")
    before = torch.get_rng_state()

    def interrupt(transition):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_stream(source, workers=2) as stream:
        collect(stream.model, batch_for(source), consume=interrupt)
    model = stream.model
    assert all(p.is_meta for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not [t for t in threading.enumerate() if t.name.startswith("rksp-weights")]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("bias", [False, True])
def test_a_split_product_has_the_same_bits_on_any_number_of_threads(bias):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 700, generator=generator)
    weight = torch.randn(6011, 700, generator=generator)
    offset = torch.randn(6011, generator=generator) if bias else None
    found = []
    with torch.no_grad():
        whole = nn.functional.linear(x, weight, offset)
        for threads in (1, 3):
            with ThreadPoolExecutor(threads) as pool, SplitProducts(pool) as split:
                found.append(nn.functional.linear(x, weight, offset))
            assert split.flops == 2 * 18 * weight.numel()
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], whole, rtol=1e-5, atol=1e-4)


def test_small_products_and_those_that_need_gradients_are_not_split():
    with ThreadPoolExecutor(1) as pool, SplitProducts(pool):
        pool.submit = lambda *args: pytest.fail("it was split")
        x = torch.ones(2, 2048, requires_grad=True)
        assert nn.functional.linear(x, torch.ones(2048, 2048)).requires_grad
        with torch.no_grad():
            assert nn.functional.linear(x, torch.ones(64, 2048)).shape == (2, 64)


def test_the_parts_of_a_product_depend_on_its_shape_alone_and_are_never_narrow():
    for outputs in (1024, 2048, 4099, 11008, 128_256):
        edges = bounds(outputs)
        widths = [stop - start for start, stop in pairwise(edges)]
        assert edges[0] == 0 and edges[-1] == outputs and min(widths) >= 448


def test_a_factory_cannot_be_streamed(tmp_path, monkeypatch):
    (tmp_path / "streamed_factory.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    source = resolve("streamed_factory:make")
    assert not should_stream(source, "auto", None)
    with pytest.raises(InputError, match="use a smaller one, or raise --max-memory"):
        should_stream(source, "auto", 1)
    with pytest.raises(InputError, match=r"is a factory.*--stream never"):
        should_stream(source, "always", None)


def test_a_score_is_the_same_streamed():
    source, recipe = resolve_tiny("llama"), Recipe(learning_rate=1e-3)
    whole, part = (
        evaluate(source, recipe, MeasureOptions(states=256, streaming=streaming))
        for streaming in ("never", "always")
    )
    assert part.profile.forward == whole.profile.forward
    assert part.profile.spectra.aggregates == whole.profile.spectra.aggregates
    assert part.gradient.grad_norm == pytest.approx(whole.gradient.grad_norm, rel=1e-5)
    left, right = whole.risk.probability_failed, part.risk.probability_failed
    assert right == pytest.approx(left, abs=1e-3)


@pytest.mark.parametrize("family", ["llama", "jamba"])
def test_a_report_is_the_same_on_any_number_of_threads(family):
    source, recipe = resolve_tiny(family), Recipe(learning_rate=1e-3)
    reports = []
    for workers in (1, 2, 4):
        evaluation = evaluate(
            source, recipe, MeasureOptions(states=256, streaming="always", threads=workers)
        )
        report = score_report(recipe, [evaluation])
        reports.append(report.model_dump_json(exclude={"timings"}))
    assert reports[0] == reports[1] == reports[2]
    assert "streamed" in reports[0] and "grad_norm" in reports[0]


def test_a_model_wider_than_its_states_says_that_its_rank_is_reduced():
    source = resolve_tiny("llama")
    with open_stream(source) as stream:
        found = profile(stream.model, batch_for(source, length=24))
    layer = found.spectra.layers[1]
    assert layer.rank_reduced_from == layer.width > layer.states
    assert layer.modes <= layer.states // 8
    assert "rank reduced from" in layer.status_detail
