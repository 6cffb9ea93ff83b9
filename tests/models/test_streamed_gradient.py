"""The streamed gradient: the numbers of the one in memory, from weights that come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from support.places import CONFIGS
from support.streams import FAMILIES, batch_for, halves

from rksp.assessment.pipeline import evaluate
from rksp.checks.facts import read_facts
from rksp.datasets.batch import task_loss
from rksp.documents.options import MeasureOptions
from rksp.documents.shown import GradientProfile
from rksp.ground.errors import InputError
from rksp.measure.gradient import measure_gradient, measure_streamed_gradient
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming import units
from rksp.models.streaming.gradients import Gradients, chunks, size_of, taping
from rksp.models.streaming.stream import open_stream
from rksp.recipe import Recipe
from rksp.spectra.features import extract

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = [
    path
    for path in sorted(CONFIGS.glob("*.json"))
    if path.stem != "baichuan"  # refused, see below
]


def streamed(source, **told) -> GradientProfile:
    both, same, _ = halves(source)
    with open_stream(source, 0, workers=2) as stream:
        collect(stream.model, both, consume=lambda transition: None)
    return measure_streamed_gradient(stream, same, **told)


def in_memory(source) -> GradientProfile:
    return measure_gradient(source.build(0), halves(source)[1])


def assert_equal(found: GradientProfile, expected: GradientProfile, rel: float = 1e-4) -> None:
    for name in ("grad_norm", "grad_rms", "grad_max"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rel), name
    assert found.reason is expected.reason is None


# gemma4 reads a weight just after its module; led changes a product in place.
@pytest.mark.parametrize("family", [n for n in (*FAMILIES, "gemma4", "led") if n != "vit"])
def test_streamed_is_in_memory(family):
    source = resolve_tiny(family)
    assert_equal(streamed(source), in_memory(source))


def test_features_are_those_of_the_model_in_memory():
    source = resolve_tiny("llama")
    vectors = [
        list(extract(gradient=gradient).values.values())
        for gradient in (streamed(source), in_memory(source))
    ]
    torch.testing.assert_close(
        *(torch.tensor(v) for v in vectors), rtol=1e-4, atol=1e-4, equal_nan=True
    )
    assert sum(value == value for value in vectors[0]) == 2


@pytest.mark.parametrize("family", ["gemma2", "llama4_text", "qwen3_moe"])
def test_weights_that_are_never_whole_give_the_same(family, monkeypatch):
    source = resolve_tiny(family)
    expected = in_memory(source)
    for name, value in {"SLICED_OVER": 0, "_ROWS": 64, "_PART": 1, "PIECE": 512}.items():
        monkeypatch.setattr(units, name, value)
    with open_stream(source, 0) as stream:
        assert stream.tall and bool(stream.stacks) == (family != "gemma2")
    assert_equal(streamed(source), expected)


def test_gradients_are_those_of_the_model_in_memory():
    source = resolve_tiny("gpt2")  # transposed matrices and a tied head
    both, same, _ = halves(source)
    model = source.build(0)
    task_loss(model, same).backward()
    with open_stream(source, 0) as stream:
        collect(stream.model, both, consume=lambda transition: None)
        with taping(stream) as tape:
            task_loss(stream.model, same).backward()
        assert all(p.is_meta for p in stream.model.parameters())
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert {name for name, _ in tape.gradients} == set(grads)
    for name, expected in grads.items():
        shape = tuple(expected.shape)
        found = tape.gradients.fill((name, None), 0, shape[0], torch.empty(shape))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)
        with ThreadPoolExecutor(1) as pool:
            size = tape.gradients.size((name, None), shape, pool)
        assert size == pytest.approx(size_of(expected), rel=1e-4), name


def test_gradients_of_a_weight_used_in_several_ways_add_up():
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(5, 7, generator=generator), torch.randn(5, 3, generator=generator)
    ids, values = torch.tensor([2, 6, 2]), torch.randn(3, 3, generator=generator)
    dense = torch.randn(7, 3, generator=generator)
    gradients, key = Gradients(), ("w", None)
    gradients.add_product(key, left, right)
    gradients.add_product(key, left, 2 * right)
    gradients.add_rows(key, ids, values)
    gradients.add_dense(key, dense)
    expected = 3 * left.T @ right + dense
    expected.index_add_(0, ids, values)
    part = gradients.fill(key, 2, 7, torch.empty(5, 3))
    torch.testing.assert_close(part, expected[2:7], rtol=1e-5, atol=1e-5)
    with ThreadPoolExecutor(1) as pool:
        assert gradients.size(key, (7, 3), pool) == pytest.approx(size_of(expected), rel=1e-5)


def test_chunks_cover_every_row_once():
    for shape in ((), (5,), (3, 10**6), (4099, 700), (2, 3, 4)):
        edges = chunks(shape)
        assert edges[0][0] == 0 and edges[-1][1] == (shape[0] if shape else 1)
        assert all(a[1] == b[0] for a, b in pairwise(edges))


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_scales_of_weights_are_those_in_memory(family, monkeypatch):
    source = resolve_tiny(family)
    batch = batch_for(source)
    model = source.build(0)
    chains = collect(model, batch, consume=lambda transition: None).chains
    expected = read_facts(model, chains, source.config.hidden_size)
    monkeypatch.setattr(units, "SLICED_OVER", 0 if family == "gemma2" else 2**28)
    with open_stream(source, 0) as stream:
        collect(stream.model, batch, consume=lambda transition: None)
    found = read_facts(stream.model, chains, source.config.hidden_size, stream.supply.scales)
    for name in ("input_std", "output_std"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5), name
    # Of an embedding that comes by rows only the neighborhood of what was looked up is seen.
    assert found.embedding_std == pytest.approx(expected.embedding_std, rel=0.02)
    bare = read_facts(stream.model, chains, source.config.hidden_size)
    assert bare.input_std is None and bare.embedding_std is None


def test_progress_begins_at_nothing_and_ends_at_the_end():
    events = []
    streamed(resolve_tiny("llama"), progress=lambda *event: events.append(event))
    done = [event[0] for event in events]
    assert done == sorted(done) and done[0] == 0 and done[-1] == events[0][1]
    assert len(set(done)) > 20


def test_a_failure_leaves_no_weight():
    source = resolve_tiny("llama")
    both, same, _ = halves(source)
    with open_stream(source, 0) as stream:
        collect(stream.model, both, consume=lambda transition: None)
        with pytest.raises(KeyboardInterrupt), taping(stream):
            task_loss(stream.model, same)
            raise KeyboardInterrupt
        assert all(p.is_meta for p in stream.model.parameters())


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem[:24])
def test_findings_are_the_same_streamed(path):
    source, recipe = resolve_tiny(str(path)), Recipe(learning_rate=3e-3, precision="bf16")
    whole, part = (
        evaluate(source, recipe, MeasureOptions(states=256, streaming=streaming))
        for streaming in ("never", "always")
    )
    assert [(f.code, f.level, f.layer) for f in whole.findings] == [
        (f.code, f.level, f.layer) for f in part.findings
    ]
    assert len(whole.findings) > 0
    for left, right in zip(whole.findings, part.findings, strict=True):
        assert right.value == pytest.approx(left.value, rel=2e-2), left.code
    assert whole.profile.forward.not_measured == part.profile.forward.not_measured


def test_a_type_that_transformers_does_not_know_is_refused_before_it_could_be_streamed():
    with pytest.raises(InputError, match="does not know"):
        resolve(str(CONFIGS / "baichuan.json"))
