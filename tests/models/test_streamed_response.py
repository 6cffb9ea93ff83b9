"""The streamed response: the numbers of the one in memory, from weights that come and go."""

from __future__ import annotations

import math
import re
import threading
from itertools import pairwise

import pytest
import torch
from support.places import CONFIGS
from support.streams import FAMILIES, batch_for, halves
from torch import nn

from rksp.assessment.pipeline import evaluate
from rksp.batch import task_loss
from rksp.checks.facts import read_facts
from rksp.ground.errors import InputError, NotCovered
from rksp.measure.first_update import FirstUpdate, kinds_of
from rksp.measure.response import first_direction, measure_response, search
from rksp.measure.response_profile import ResponseProfile
from rksp.measure.snapshots import collect
from rksp.measure.streamed_response import measure_streamed_response, respond
from rksp.models.resolve import resolve, resolve_tiny
from rksp.models.streaming import gradients as of_weights
from rksp.models.streaming import slices
from rksp.models.streaming.gradients import Gradients, chunks
from rksp.models.streaming.lanes import Lanes
from rksp.models.streaming.opening import open_stream
from rksp.models.streaming.tape import taping
from rksp.optimizers import OPTIMIZERS, make_optimizer
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.spectra.features import extract

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = [
    path
    for path in sorted(CONFIGS.glob("*.json"))
    if path.stem != "baichuan"  # refused, see below
]
MADE = [spec.name for spec in OPTIMIZERS if spec.make is not None]


def streamed(source, recipe: Recipe, progress=None) -> ResponseProfile:
    both, same, fresh = halves(source)
    with open_stream(source, 0, workers=2) as stream:
        collect(stream.model, both, consume=lambda transition: None)
        return measure_streamed_response(stream, same, fresh, recipe, progress)


def in_memory(source, recipe: Recipe) -> ResponseProfile:
    _, same, fresh = halves(source)
    return measure_response(source.build(0), same, fresh, recipe)


def assert_equal(found: ResponseProfile, expected: ResponseProfile, rel: float = 1e-3) -> None:
    """Within a twentieth of what the issue allows; the size of a leap is known less well."""
    for name in ("loss", "grad_norm", "grad_rms", "grad_max", "update_rms", "output_slope"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rel), name
    assert found.descent == pytest.approx(expected.descent, rel=rel)
    if expected.critical_rate is None:
        assert found.critical_rate is found.overshoot is None
    else:
        assert found.critical_rate == pytest.approx(expected.critical_rate, rel=rel)
        assert found.overshoot == pytest.approx(expected.overshoot, rel=0.02, abs=1e-3)
    assert [p.rate for p in found.points] == pytest.approx([p.rate for p in expected.points], rel)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "vit"])
def test_streamed_is_in_memory(family):
    source = resolve_tiny(family)
    assert_equal(streamed(source, Recipe()), in_memory(source, Recipe()))


@pytest.fixture(scope="module", params=["gpt2", "qwen3_moe"])
def both_ways(request):
    """A source, and its stream, which remembers what a pass loads."""
    source = resolve_tiny(request.param)
    with open_stream(source, 0, workers=2) as stream:
        collect(stream.model, halves(source)[0], consume=lambda transition: None)
        yield source, stream


@pytest.mark.parametrize("optimizer", MADE)
def test_every_optimizer_and_decay(both_ways, optimizer):
    source, stream = both_ways
    _, same, fresh = halves(source)
    recipe = Recipe(optimizer=optimizer, weight_decay=0.1, max_grad_norm=0.5)
    found = measure_streamed_response(stream, same, fresh, recipe)
    assert_equal(found, in_memory(source, recipe), rel=5e-3)


def test_where_epsilon_matters_it_counts():
    source = resolve_tiny("llama")
    small, large = (streamed(source, Recipe(adam_epsilon=e)) for e in (1e-8, 1e-2))
    assert_equal(large, in_memory(source, Recipe(adam_epsilon=1e-2)))
    assert large.update_rms < 0.5 * small.update_rms


def test_features_are_those_of_the_model_in_memory():
    source, recipe = resolve_tiny("llama"), Recipe(learning_rate=1e-3)
    vectors = [
        list(extract(response=response).values.values())
        for response in (streamed(source, recipe), in_memory(source, recipe))
    ]
    torch.testing.assert_close(
        *(torch.tensor(v) for v in vectors), rtol=1e-3, atol=1e-3, equal_nan=True
    )


@pytest.mark.parametrize("family", ["gemma2", "llama4_text", "qwen3_moe"])
def test_weights_that_are_never_whole_give_the_same(family, monkeypatch):
    source = resolve_tiny(family)
    expected = in_memory(source, Recipe(weight_decay=0.1))
    for name, value in {"SLICED_OVER": 0, "_ROWS": 64, "_PART": 1}.items():
        monkeypatch.setattr(slices, name, value)
    monkeypatch.setattr(slices, "PIECE", 512)
    with open_stream(source, 0) as stream:
        assert stream.tall and bool(stream.stacks) == (family != "gemma2")
    assert_equal(streamed(source, Recipe(weight_decay=0.1)), expected, rel=5e-3)
    with pytest.raises(NotCovered, match=r"needs all of"):
        streamed(source, Recipe(optimizer="adafactor"))


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
    assert tape.gradients.names == set(grads)
    for name, expected in grads.items():
        shape = tuple(expected.shape)
        found = tape.gradients.fill((name, None), 0, shape[0], torch.empty(shape))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)
        square = float(expected.double().square().sum())
        assert tape.gradients.squared_norm((name, None), shape) == pytest.approx(square, rel=1e-4)


def test_gradients_of_a_weight_used_in_several_ways_add_up():
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(5, 7, generator=generator), torch.randn(5, 3, generator=generator)
    ids, values = torch.tensor([2, 6, 2]), torch.randn(3, 3, generator=generator)
    dense = torch.randn(7, 3, generator=generator)
    gradients, key = Gradients(), ("w", None)
    gradients.add_product(key, left, right)
    gradients.add_product(key, left, 2 * right)
    assert gradients.size == 4 * (35 + 15 + 15)
    gradients.add_rows(key, ids, values)
    gradients.add_dense(key, dense)
    expected = 3 * left.T @ right + dense
    expected.index_add_(0, ids, values)
    part = gradients.fill(key, 2, 7, torch.empty(5, 3))
    torch.testing.assert_close(part, expected[2:7], rtol=1e-5, atol=1e-5)
    square = float(expected.double().square().sum())
    assert gradients.squared_norm(key, (7, 3)) == pytest.approx(square, rel=1e-5)


def test_chunks_cover_every_row_once():
    for shape in ((), (5,), (3, 10**6), (4099, 700), (2, 3, 4)):
        edges = chunks(shape)
        assert edges[0][0] == 0 and edges[-1][1] == (shape[0] if shape else 1)
        assert all(a[1] == b[0] for a, b in pairwise(edges))


@pytest.mark.parametrize("optimizer", MADE)
def test_the_first_update_is_the_optimizers_own(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9))
    recipe = Recipe(optimizer=optimizer, weight_decay=0.1, max_grad_norm=0.3)
    gradients = Gradients()
    for name, p in model.named_parameters():
        p.grad = torch.randn_like(p)
        gradients.add_dense((name, None), p.grad)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    update = FirstUpdate(model, gradients, recipe, norm)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    make_optimizer(model, recipe.model_copy(update={"learning_rate": 1e-3})).step()
    for name, p in model.named_parameters():
        expected = (p.detach() - before[name]) / 1e-3
        found = update.rows((name, None), 0, len(p), before[name])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, msg=name)
    assert set(kinds_of(model, recipe)) == set(before)


def test_the_direction_in_memory_leaves_the_weights_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 5))
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    direction, descent = first_direction(model, Recipe(), 1.0, list(model.parameters()))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert all(u.abs().median() == pytest.approx(1.0, rel=1e-2) for u in direction)
    assert descent > 0 and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "sgd", "muon"])
def test_the_direction_in_memory_is_the_same_in_parts_of_rows(optimizer, monkeypatch):
    found = []
    for entries in (1 << 20, 40):
        monkeypatch.setattr(of_weights, "_CHUNK", entries)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 5))
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        recipe = Recipe(optimizer=optimizer, weight_decay=0.1)
        found.append(first_direction(model, recipe, 2.0, list(model.parameters())))
    (whole, descent), (parts, in_parts) = found
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert in_parts == pytest.approx(descent, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_scales_of_weights_are_those_in_memory(family, monkeypatch):
    source = resolve_tiny(family)
    batch = batch_for(source)
    model = source.build(0)
    chains = collect(model, batch, consume=lambda transition: None).chains
    expected = read_facts(model, chains, source.config.hidden_size)
    monkeypatch.setattr(slices, "SLICED_OVER", 0 if family == "gemma2" else 2**28)
    with open_stream(source, 0) as stream:
        collect(stream.model, batch, consume=lambda transition: None)
    found = read_facts(stream.model, chains, source.config.hidden_size, stream.supply.scales)
    for name in ("input_std", "output_std"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5), name
    # Of an embedding that comes by rows only the neighborhood of what was looked up is seen.
    assert found.embedding_std == pytest.approx(expected.embedding_std, rel=0.02)
    assert found.not_measured == {}
    bare = read_facts(stream.model, chains, source.config.hidden_size)
    assert bare.input_std is None
    assert "the pass did not load" in bare.not_measured["the scale of the embedding"]


def test_several_halvings_at_once_find_the_same():
    from rksp.measure.response_profile import ResponsePoint

    asked = []

    def look(rates):
        asked.append(len(rates))
        return [ResponsePoint(rate=r, fresh=r - 0.0317) for r in rates]

    one, two = search(look, 1.0), search(look, 1.0, ahead=2)
    assert one == two
    assert asked == [2, 1, 1, 1, 1, 1, 2, 4, 3, 3, 2]
    assert one.critical_rate == pytest.approx(0.0317, rel=0.15)
    assert len(one.points) == 9


def test_progress_begins_with_what_it_will_take_and_ends_at_the_end():
    events = []
    streamed(resolve_tiny("llama"), Recipe(), lambda *event: events.append(event))
    done = [event[0] for event in events]
    assert done == sorted(done) and done[0] == 0 and done[-1] == events[0][1]
    assert re.match(r"response: [\d.]+ [MG]B, about ", events[0][2])
    assert len(set(done)) > 50


def test_a_response_that_does_not_fit_is_a_reason():
    source = resolve_tiny("llama")
    both, same, fresh = halves(source)
    with open_stream(source, 0) as stream:
        collect(stream.model, both, consume=lambda transition: None)
    stream.max_memory = 30_000_000
    response = respond(stream.model, stream, same, fresh, Recipe())
    assert "even when streamed, more than 30 MB" in response.reason
    assert response.critical_rate is None


def test_a_failure_in_one_lane_ends_them_all_and_leaves_nothing():
    source = resolve_tiny("llama")
    both, same, _ = halves(source)
    with open_stream(source, 0) as stream:
        collect(stream.model, both, consume=lambda transition: None)
        with taping(stream) as tape:
            task_loss(stream.model, same).backward()
        update = FirstUpdate(stream.model, tape.gradients, Recipe(), 1.0)
        seen = []

        def run(rate):
            stream.model(**same.inputs)
            seen.append(1)
            if len(seen) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Lanes(stream, update, [0.0, 1e-3, 1e-2]).run(run)
        assert all(p.is_meta for p in stream.model.parameters())
    assert not [t for t in threading.enumerate() if t.name == "rksp-lane"]


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


# gemma4 reads a weight just after its module; led changes a product in place.
@pytest.mark.parametrize("family", ["gemma4", "led"])
def test_unusual_uses_of_weights_and_products(family):
    source = resolve_tiny(family)
    assert_equal(streamed(source, Recipe()), in_memory(source, Recipe()))
