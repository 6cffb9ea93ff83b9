"""Memory of a streamed model: what is in use at once, what does not fit, and what is said of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.streams import assert_same, batch_for, states_of
from torch import nn

from rksp.assessment.pipeline import evaluate
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.models.given import module_source
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.source import ModelSource
from rksp.models.streaming import memory, units
from rksp.models.streaming import stream as stream_module
from rksp.models.streaming.memory import fits, should_stream
from rksp.models.streaming.stream import Stream, open_stream
from rksp.models.streaming.weights import InitialWeights
from rksp.recipe import Recipe
from rksp.spectra.model_profile import profile

pytestmark = pytest.mark.usefixtures("one_thread")


def test_weights_in_use_and_in_preparation_stay_within_what_is_set_aside():
    source = resolve_tiny("llama")
    opened, ahead = open_stream(source), 40_000
    with Stream(opened.model, opened.weights, ahead=ahead) as stream:
        held = []
        enter = stream.supply._advance

        def watched(unit):
            enter(unit)
            coming = stream.supply._coming.values()
            held.append(sum(t.nbytes for loading in coming for t in loading._tensors.values()))

        stream.supply._advance = watched
        states_of(stream.model, batch_for(source))
    assert 0 < max(held) <= ahead


def test_large_experts_come_one_by_one(monkeypatch, poisoned):
    source = resolve_tiny("qwen3_moe")
    batch = batch_for(source)
    model = source.build(0)
    model.set_experts_implementation("eager")
    expected, _ = states_of(model, batch)
    monkeypatch.setattr(units, "SLICED_OVER", 0)
    with open_stream(source, 0) as stream:
        assert stream.stacks
        found, _ = states_of(stream.model, batch)
        assert "experts one by one" in stream.describe()
    assert_same(expected, found)


def test_large_matrices_come_by_rows(monkeypatch, poisoned):
    source = resolve_tiny("gemma2")  # a tied head, and an embedding that scales what it looks up
    batch = batch_for(source)
    expected, whole = states_of(source.build(0), batch)
    for name, value in {"SLICED_OVER": 0, "_ROWS": 64, "_PART": 1}.items():
        monkeypatch.setattr(units, name, value)
    monkeypatch.setattr(units, "PIECE", 512)  # so that a look-up takes several groups
    with open_stream(source, 0) as stream:
        found, streamed = states_of(stream.model, batch)
        assert len(stream.tall) > 10
        assert max(len(units.part_edges(slot.empty.shape)) for slot in stream.tall) > 2
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
        edges = units.part_edges(shape)
        widths = [stop - start for start, stop in pairwise(edges)]
        assert edges[0] == 0 and edges[-1] == shape[0] and min(widths) > 0
        assert max(widths) - min(widths) < 128
        assert (
            max(widths) <= 4096 + 64 or max(widths) * shape[1] * 4 <= units._PART + 256 * shape[1]
        )


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


def test_when_a_model_is_streamed(monkeypatch):
    source = resolve_tiny("llama")
    held = 10**9  # by the process already
    monkeypatch.setattr(memory, "resident_memory", lambda: held)
    assert not should_stream(source, "auto", None)
    assert should_stream(source, "always", None)
    assert should_stream(source, "auto", held + 4 * source.num_parameters - 1)
    assert not should_stream(source, "auto", held + 4 * source.num_parameters)
    assert not should_stream(source, "never", held + 4 * source.num_parameters)
    assert should_stream(resolve("llama"), "auto", 10**12)  # more than --max-params
    for evidence, copies in (("forward", 1), ("gradient", 2)):
        needed = held + 4 * copies * source.num_parameters
        assert fits(source, needed, evidence) and not fits(source, needed - 1, evidence)
    between = held + 6 * source.num_parameters
    assert not should_stream(source, "auto", between)
    assert should_stream(source, "auto", between, "gradient")
    with pytest.raises(InputError, match="not one of auto, always, never"):
        should_stream(source, "sometimes", None)


def test_a_model_that_must_be_in_memory_and_does_not_fit_is_refused_with_the_number(monkeypatch):
    source = resolve("llama")
    monkeypatch.setattr(ModelSource, "build", lambda self, seed=None: pytest.fail("it was built"))
    with pytest.raises(
        InputError, match=r"needs 5\d\.\d GB .*more than 8\.0 GB; use --stream auto"
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


def test_in_memory_what_has_no_room_is_refused_before_the_model_is_built(monkeypatch):
    source = resolve_tiny("llama")
    monkeypatch.setattr(memory, "resident_memory", lambda: 0)
    monkeypatch.setattr(memory, "resident_memory", lambda: 0)
    limits = {"states": 256, "streaming": "never", "max_memory": 7 * source.num_parameters}
    found = evaluate(source, Recipe(), MeasureOptions(evidence="forward", **limits))
    assert found.gradient is None
    monkeypatch.setattr(ModelSource, "build", lambda self, seed=None: pytest.fail("it was built"))
    with pytest.raises(InputError, match=r"gradient of .*--evidence forward needs .* and fits"):
        evaluate(source, Recipe(), MeasureOptions(**limits))


def test_a_module_is_counted_once_for_its_gradient(monkeypatch):
    model = nn.Linear(8, 8)
    source = module_source(model, torch.ones(4, 8), lambda out, batch: out.sum())
    monkeypatch.setattr(memory, "resident_memory", lambda: 10**6)  # the module among it
    needed = 10**6 + 4 * source.num_parameters
    assert fits(source, needed, "gradient") and not fits(source, needed - 1, "gradient")


def test_streamed_a_gradient_without_room_is_refused_before_a_weight_is_drawn(monkeypatch):
    source = resolve_tiny("llama")
    peaks = []

    def noted(stream, same):
        peaks.append((stream.plan.peak, stream_module.gradient_peak(stream, same)))
        raise InputError("enough")

    for module in (memory, stream_module):
        monkeypatch.setattr(module, "resident_memory", lambda: 0)
    monkeypatch.setattr(stream_module, "_GRAPH", 1e4)
    options = MeasureOptions(states=256, streaming="always")
    with monkeypatch.context() as patch:
        patch.setattr(stream_module, "check_gradient", noted)
        with pytest.raises(InputError, match="enough"):
            evaluate(source, Recipe(), options)
    [(passes, gradient)] = peaks
    between = options.model_copy(update={"max_memory": (passes + gradient) // 2})
    with monkeypatch.context() as patch:
        patch.setattr(InitialWeights, "jobs", lambda *_: pytest.fail("a weight was drawn"))
        with pytest.raises(InputError, match=r"gradient of .* even when streamed.*forward needs"):
            evaluate(source, Recipe(), between)
    forward = between.model_copy(update={"evidence": "forward"})
    assert evaluate(source, Recipe(), forward).gradient is None
