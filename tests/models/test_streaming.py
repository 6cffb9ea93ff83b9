"""Streamed models: the bits of the model in memory, in any order, and nothing left behind."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from support.streams import FAMILIES, batch_for
from torch import nn

from rksp.assessment.pipeline import evaluate
from rksp.assessment.report import score_report
from rksp.batch import Batch
from rksp.ground.errors import InputError, NotCovered, RkspError
from rksp.ground.sizes import parse_size
from rksp.kernels import dispatch
from rksp.measure.snapshots import Collected, collect
from rksp.models.given import module_source
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.source import ModelSource
from rksp.models.streaming import memory, opening, planning, rehearsal, slices
from rksp.models.streaming.buffers import Buffers
from rksp.models.streaming.opening import open_stream, response_fits, should_stream
from rksp.models.streaming.products import SplitProducts, bounds
from rksp.models.streaming.recording import record_model
from rksp.models.streaming.seeds import PIECE, piece_seed
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.weights import InitialWeights, build_whole, fill, fill_buffers
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.model_profile import profile

pytestmark = pytest.mark.usefixtures("one_thread")


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


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_is_in_memory_bit_for_bit(family):
    source = resolve_tiny(family)
    batch = batch_for(source)
    expected, in_memory = states_of(source.build(0), batch)
    # Poisoned: every weight is NaN before it is filled, and looked at after.
    with open_stream(source, 0, workers=2, poison=True) as stream:
        found, streamed = states_of(stream.model, batch)
        assert all(p.is_meta for p in stream.model.parameters())
    assert_same(expected, found)
    assert in_memory.forward == streamed.forward
    assert in_memory.chains == streamed.chains


def test_nothing_depends_on_threads_or_on_what_is_prepared_ahead():
    source = resolve_tiny("qwen3_moe")
    batch = batch_for(source)
    expected, _ = states_of(source.build(3), batch)
    for workers, ahead in ((1, 0), (2, 20_000), (4, 10**9)):
        with open_stream(source, 3, workers=workers) as opened:
            opened.close()
            with Stream(opened.model, opened.weights, workers=workers, ahead=ahead) as stream:
                found, _ = states_of(stream.model, batch)
        assert_same(expected, found)
    other, _ = states_of(source.build(4), batch)
    assert not torch.equal(expected[0][2], other[0][2])


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
    weights = InitialWeights(recipes, 0, poison=True)
    name = "model.layers.0.mlp.up_proj.weight"
    like = model.get_parameter(name)
    assert like.numel() > 40 * PIECE
    part = torch.empty(3000, like.shape[1])
    for job in reversed(weights.rows(name, 5001, 8001, part)):
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


def test_poison_finds_what_a_recipe_leaves_out():
    source = resolve_tiny("llama")
    model, recipes = record_model(source.construct_empty, 0)
    weights = InitialWeights(recipes, 0, poison=True)
    name = "model.layers.0.mlp.up_proj.weight"
    recipe = weights.recipes[name]
    object.__setattr__(recipe, "steps", ())
    with pytest.raises(RkspError, match=f"{name} was left"):
        fill(weights, name, model.get_parameter(name))


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


def test_blocks_that_share_their_weights_are_the_ones_in_memory():
    source = resolve("zamba2", overrides=ZAMBA2)
    batch = batch_for(source)
    model = source.build(0)
    assert model.num_parameters() < sum(p.numel() for p in model.state_dict().values())
    expected, _ = states_of(model, batch)
    with open_stream(source, 0, workers=2, poison=True) as stream:
        found, _ = states_of(stream.model, batch)
    assert_same(expected, found)


def test_weights_in_use_and_in_preparation_stay_within_what_is_set_aside():
    source = resolve_tiny("llama")
    with open_stream(source) as opened:
        opened.close()
    ahead = 40_000
    with Stream(opened.model, opened.weights, ahead=ahead) as stream:
        held = []
        enter = stream.supply._advance

        def watched(unit):
            enter(unit)
            held.append(sum(loading.size for loading in stream.supply._coming.values()))

        stream.supply._advance = watched
        states_of(stream.model, batch_for(source))
    assert 0 < max(held) <= ahead


def test_large_experts_come_one_by_one(monkeypatch):
    source = resolve_tiny("qwen3_moe")
    batch = batch_for(source)
    model = source.build(0)
    model.set_experts_implementation("eager")
    expected, _ = states_of(model, batch)
    monkeypatch.setattr(slices, "SLICED_OVER", 0)
    with open_stream(source, 0, poison=True) as stream:
        assert stream.stacks
        found, _ = states_of(stream.model, batch)
        assert "experts one by one" in stream.describe()
    assert_same(expected, found)


def test_large_matrices_come_by_rows(monkeypatch):
    source = resolve_tiny("gemma2")  # a tied head, and an embedding that scales what it looks up
    batch = batch_for(source)
    expected, whole = states_of(source.build(0), batch)
    for name, value in {"SLICED_OVER": 0, "_ROWS": 64, "_PART": 1}.items():
        monkeypatch.setattr(slices, name, value)
    monkeypatch.setattr(slices, "PIECE", 512)  # so that a look-up takes several groups
    with open_stream(source, 0, poison=True) as stream:
        found, streamed = states_of(stream.model, batch)
        assert len(stream.tall) > 10
        assert max(len(slices.part_edges(slot.empty.shape)) for slot in stream.tall) > 2
        assert "large matrices by rows" in stream.describe()
        assert stream.split_flops > 0
    assert torch.equal(expected[0][1], found[0][1])  # what was looked up
    for (name, _, y), (_, _, other) in zip(expected, found, strict=True):
        # Parts of 64 outputs round differently from the whole.
        torch.testing.assert_close(other, y, rtol=1e-4, atol=1e-5, msg=name)
    assert streamed.forward.loss == pytest.approx(whole.forward.loss, rel=1e-5)
    assert streamed.forward.aligned_response == pytest.approx(
        whole.forward.aligned_response, rel=1e-4
    )


def test_parts_of_a_matrix_are_even_and_cover_it():
    for shape in ((128_256, 8192), (50_257, 16_384), (16_384, 53_248), (5000, 4), (100, 10**7)):
        edges = slices.part_edges(shape)
        widths = [stop - start for start, stop in pairwise(edges)]
        assert edges[0] == 0 and edges[-1] == shape[0] and min(widths) > 0
        assert max(widths) - min(widths) < 128
        assert (
            max(widths) <= 4096 + 64 or max(widths) * shape[1] * 4 <= slices._PART + 256 * shape[1]
        )


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


def test_what_does_not_fit_is_refused_with_the_number_before_a_weight_is_drawn(monkeypatch):
    source = resolve_tiny("llama")

    def forbidden(self, name, out):
        raise AssertionError("a weight was drawn")

    monkeypatch.setattr(InitialWeights, "jobs", forbidden)
    with (
        pytest.raises(
            InputError,
            match=r"needs [\d.]+ [GM]B of memory even when streamed.*30 MB.*\d+MB if.*config\.$",
        ),
        open_stream(source, max_memory=30_000_000) as stream,
    ):
        profile(stream.model, batch_for(source))


def test_a_limit_that_holds_is_no_obstacle():
    source = resolve_tiny("llama")
    with open_stream(source, max_memory=10**11) as stream:
        profile(stream.model, batch_for(source))
        assert stream.plan.weights >= max(unit.size for unit in stream.units)
        assert stream.plan.peak < 10**11


@pytest.mark.parametrize(
    ("text", "size"), [("8GB", 8 * 10**9), ("500 MB", 5 * 10**8), ("1.5G", 1.5e9), ("7", 7)]
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1GB", "0", "8 GBB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="such as 8GB"):
        parse_size(text)


def test_when_a_model_is_streamed(monkeypatch):
    source = resolve_tiny("llama")
    held = 10**9  # by the process already
    monkeypatch.setattr(opening, "resident_memory", lambda: held)
    assert not should_stream(source, "auto", None)
    assert should_stream(source, "always", None)
    assert should_stream(source, "auto", held + 4 * source.num_parameters - 1)
    assert not should_stream(source, "auto", held + 4 * source.num_parameters)
    assert not should_stream(source, "never", held + 4 * source.num_parameters)
    assert should_stream(resolve("llama"), "auto", 10**12)  # more than --max-params
    assert not response_fits(source, held + 12 * source.num_parameters - 1)
    assert response_fits(source, held + 12 * source.num_parameters)
    between = held + 8 * source.num_parameters
    assert not should_stream(source, "auto", between)
    assert should_stream(source, "auto", between, with_response=True)
    with pytest.raises(InputError, match="not one of auto, always, never"):
        should_stream(source, "sometimes", None)


def test_a_model_that_must_be_in_memory_and_does_not_fit_is_refused_with_the_number(monkeypatch):
    source = resolve("llama")
    monkeypatch.setattr(ModelSource, "build", lambda self, seed=None: pytest.fail("it was built"))
    with pytest.raises(
        InputError, match=r"needs 2\d\.\d GB .*more than 8\.0 GB; use --stream auto"
    ):
        evaluate(source, Recipe(), MeasureOptions(streaming="never", max_memory=8 * 10**9))


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    limit, usage = tmp_path / "memory.max", tmp_path / "memory.stat"
    usage.write_text("anon 1000000000\nfile 500000000\n")
    monkeypatch.setattr(memory, "_CONTAINERS", ((str(limit), str(usage), "anon"),))
    unlimited = memory.free_memory()
    limit.write_text("max\n")
    assert memory.free_memory() == pytest.approx(unlimited, rel=0.2)
    limit.write_text("1100000000\n")
    expected = 0.9 * (100_000_000 + memory.resident_memory())
    assert memory.free_memory() == pytest.approx(expected, rel=0.05)


def test_memory_is_used_again_only_after_its_last_tensor_is_gone():
    buffers = Buffers(limit=3 * 2**22)
    like = torch.empty(2**20, device="meta")
    first = buffers.empty(like).fill_(1.0)
    address, part = first.data_ptr(), first[5:7]
    del first
    second = buffers.empty(like).fill_(2.0)
    assert second.data_ptr() != address and part.tolist() == [1.0, 1.0]
    del part
    assert buffers.empty(like).data_ptr() == address
    assert buffers.held == 2 * 2**22
    # A little less fits too.
    assert buffers.empty(torch.empty(2**20 - 5, device="meta")).data_ptr() == address
    # Idle blocks make room for another size, those in use stay.
    large = buffers.empty(torch.empty(2**21, device="meta"))
    assert buffers.held == 3 * 2**22 and second.eq(2.0).all() and large.numel() == 2**21
    del large
    buffers.trim()
    assert buffers.held == 2**22


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


@pytest.mark.parametrize("family", ["gpt2", "mamba", "qwen3_moe", "vit"])
def test_weights_drawn_by_counter_are_the_same_streamed_and_in_memory(family, monkeypatch):
    source = resolve_tiny(family)
    batch = batch_for(source)
    whole = build_whole(source.construct_empty, 0, by_counter=True, poison=True).eval()
    expected, _ = states_of(whole, batch)
    model, recipes = record_model(source.construct_empty, 0)
    weights = InitialWeights(recipes, 0, by_counter=True, poison=True)
    fill_buffers(model, weights)
    with Stream(model, weights, workers=2) as stream:
        found, _ = states_of(stream.model, batch)
    assert_same(expected, found)
    other, _ = states_of(source.build(0), batch)
    assert not torch.equal(expected[0][2], other[0][2])  # another stream of numbers


def test_a_part_drawn_by_counter_is_that_part_of_the_whole_and_normal():
    source = resolve_tiny("llama")
    model, recipes = record_model(source.construct_empty, 0)
    weights = InitialWeights(recipes, 0, by_counter=True)
    name = "model.layers.0.mlp.up_proj.weight"
    like = model.get_parameter(name)
    whole, part = fill(weights, name, like), torch.empty(3, like.shape[1])
    (job,) = weights.rows(name, 5, 8, part)
    job()
    assert torch.equal(part, whole[5:8])
    assert float(whole.std()) == pytest.approx(0.02, rel=6 / math.sqrt(whole.numel()))
    other = fill(weights, name.replace("up", "gate"), like)
    assert not torch.equal(whole, other)


def test_the_normal_fill_of_weights_drawn_by_counter_is_dispatched():
    dispatch.forget()
    build_whole(resolve_tiny("llama").construct_empty, 0, by_counter=True)
    assert {choice.op for choice in dispatch.explain()} == {"normal_fill"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: streaming to one is not tested")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_on_a_gpu_the_states_are_those_of_the_model_in_memory_there(family):
    source = resolve_tiny(family)
    batch = batch_for(source)
    whole = build_whole(source.construct_empty, 0, by_counter=True).eval().cuda()
    there = {key: value.cuda() for key, value in batch.inputs.items()}
    expected, _ = states_of(whole, Batch(inputs=there, labels=None))
    with open_stream(source, 0) as stream:
        assert stream.device.type == "cuda"
        found, _ = states_of(stream.model, batch)
    for (name, _, y), (_, _, other) in zip(expected, found, strict=True):
        assert other.is_cuda
        torch.testing.assert_close(other, y, rtol=1e-3, atol=1e-4, msg=name)


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
    assert part.response.critical_rate == pytest.approx(whole.response.critical_rate, rel=1e-3)
    left, right = whole.risk.probability_failed, part.risk.probability_failed
    assert right == pytest.approx(left, abs=1e-3)


def test_in_memory_a_response_without_room_is_refused_before_the_model_is_built(monkeypatch):
    source = resolve_tiny("llama")
    monkeypatch.setattr(opening, "resident_memory", lambda: 0)
    monkeypatch.setattr(memory, "resident_memory", lambda: 0)
    limits = {"states": 256, "streaming": "never", "max_memory": 8 * source.num_parameters}
    found = evaluate(source, Recipe(), MeasureOptions(evidence="forward", **limits))
    assert found.response is None
    monkeypatch.setattr(ModelSource, "build", lambda self, seed=None: pytest.fail("it was built"))
    with pytest.raises(InputError, match=r"three copies.*--evidence forward needs .* and fits"):
        evaluate(source, Recipe(), MeasureOptions(**limits))


def test_a_module_is_counted_once_for_its_response(monkeypatch):
    model = nn.Linear(8, 8)
    source = module_source(model, torch.ones(4, 8), lambda out, batch: out.sum())
    monkeypatch.setattr(opening, "resident_memory", lambda: 10**6)  # the module among it
    needed = 10**6 + 2 * 4 * source.num_parameters
    assert response_fits(source, needed) and not response_fits(source, needed - 1)


def test_streamed_a_response_without_room_is_refused_before_a_weight_is_drawn(monkeypatch):
    source = resolve_tiny("llama")
    peaks = []

    def noted(stream, same):
        peaks.append((stream.plan.peak, planning.plan_response(stream, 4, 2048, 10**5).peak))
        raise InputError("enough")

    for module in (memory, planning):
        monkeypatch.setattr(module, "resident_memory", lambda: 0)
    monkeypatch.setattr(planning, "response_sizes", lambda stream, same: (4, 2048, 10**5))
    with monkeypatch.context() as patch:
        patch.setattr(rehearsal, "check_response", noted)
        with pytest.raises(InputError, match="enough"):
            evaluate(source, Recipe(), MeasureOptions(states=256, streaming="always"))
    [(passes, response)] = peaks
    between = MeasureOptions(states=256, streaming="always", max_memory=(passes + response) // 2)
    with monkeypatch.context() as patch:
        patch.setattr(InitialWeights, "jobs", lambda *_: pytest.fail("a weight was drawn"))
        with pytest.raises(InputError, match=r"response of .* even when streamed.*forward needs"):
            evaluate(source, Recipe(), between)
    forward = between.model_copy(update={"evidence": "forward"})
    assert evaluate(source, Recipe(), forward).response is None


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
    assert "streamed" in reports[0] and "response" in reports[0]


def test_a_model_wider_than_its_states_says_that_its_rank_is_reduced():
    source = resolve_tiny("llama")
    with open_stream(source) as stream:
        found = profile(stream.model, batch_for(source, length=24))
    layer = found.spectra.layers[1]
    assert layer.rank_reduced_from == layer.width > layer.states
    assert layer.modes <= layer.states // 8
    assert "rank reduced from" in layer.status_detail
