"""One pass, every block's states, and the model as it was found."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.measure.snapshots import collect
from rksp.models.resolve import resolve, resolve_tiny

WIDTH = 8


class Linear(nn.Module):
    """y = x + W x, noting what it saw; `in_place` writes into its input."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        self.drop = nn.Dropout(0.5)
        self.in_place = in_place

    def forward(self, x):
        change = self.drop(self.inner(x))
        if self.in_place:
            x += change
            return x
        return x + change


class Stack(nn.Module):
    def __init__(self, depth=3, in_place=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(Linear(in_place) for _ in range(depth))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("cached", None, persistent=False)
        self.calls = 0

    def forward(self, x, attention_mask=None):
        self.calls += 1
        self.count += 1
        self.cached = torch.ones(1)
        torch.rand(1)
        x = x * 1.0
        for layer in self.layers:
            x = layer(x)
        return x


def sample(batch=2, tokens=5, seed=1):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def gather(model, inputs, **more):
    seen = []
    result = collect(model, inputs, consume=seen.append, **more)
    return result, seen


@pytest.mark.parametrize("in_place", [False, True])
def test_states_are_those_of_the_forward_pass(in_place):
    model, x = Stack(in_place=in_place), sample()
    result, seen = gather(model, x)
    assert [t.layer for t in seen] == [0, 1, 2] and seen[1].name == "layers.1"
    state = x.reshape(-1, WIDTH)
    for transition, layer in zip(seen, model.layers, strict=True):
        torch.testing.assert_close(transition.x, state)
        state = state + state @ layer.inner.weight.detach().T
        torch.testing.assert_close(transition.y, state)
    assert result.width == WIDTH and result.states == 10
    assert result.forward_passes == 1.5  # the probe, and one of its two sequences to detect with


def test_any_form_of_inputs():
    x = sample()
    forms = (x, (x,), {"x": x}, Batch(inputs=x, labels=None))
    results = [gather(Stack(), form)[1] for form in forms]
    for seen in results[1:]:
        assert torch.equal(seen[-1].y, results[0][-1].y)


def test_two_passes_and_no_more():
    model = Stack()
    gather(model, sample())
    assert model.calls == 2


def test_padding_is_left_out():
    x, mask = sample(), torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0
    _, whole = gather(Stack(), {"x": x})
    _, seen = gather(Stack(), {"x": x, "attention_mask": mask})
    keep = mask.flatten().bool()
    assert torch.equal(seen[0].x, whole[0].x[keep])
    with pytest.raises(InputError, match="does not line up"):
        gather(Stack(), {"x": x, "attention_mask": mask[:, :3] * 0})


def test_a_number_of_states_is_spread_evenly():
    result, seen = gather(Stack(), sample(4, 10), num_states=8)
    assert result.states == 8 and len(seen[0].x) == 8
    assert len(torch.unique(seen[0].x, dim=0)) == 8
    assert gather(Stack(), sample(4, 10), num_states=400)[0].states == 40


def test_one_state_is_refused():
    for inputs, more in ((sample(1, 1), {}), (sample(), {"num_states": 1})):
        with pytest.raises(InputError, match="at least"):
            gather(Stack(), inputs, **more)
    with pytest.raises(InputError, match="empty"):
        gather(Stack(), sample()[:0])


def test_no_blocks():
    with pytest.raises(NotCovered):
        gather(Stack(depth=0), sample())


def test_errors_of_the_model_are_one_sentence_and_of_the_consumer_its_own():
    with pytest.raises(InputError, match="cannot run on the probe"):
        gather(Stack(), torch.randn(2, 5, WIDTH + 1))

    def broken(transition):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        collect(Stack(), sample(), consume=broken)


def everything(model: nn.Module) -> dict[str, object]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "state": copy.deepcopy(model.state_dict()),
        "training": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, name)) for module in model.modules() for name in hooks],
        "buffers": [(n, b is None) for m in model.modules() for n, b in m._buffers.items()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "rng": torch.get_rng_state(),
        "sdpa": nn.functional.scaled_dot_product_attention,
    }


def same(before, after) -> bool:
    return all(
        torch.equal(value, after["state"][name]) for name, value in before["state"].items()
    ) and all(
        torch.equal(before[k], after[k]) if k == "rng" else before[k] == after[k]
        for k in before
        if k != "state"
    )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("family", ["stack", "gpt2", "gemma2", "zoo_moe"])
def test_the_model_is_left_as_found(family, fails):
    if family == "stack":
        model, inputs = Stack().train(), sample()
        model.layers[1].eval()
    elif family == "zoo_moe":
        shape = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 40,
        }
        model = build_member(family, shape, seed=0)
        inputs = torch.arange(20).reshape(2, 10)
    else:
        model = resolve_tiny(family).build().train()
        inputs = {"input_ids": torch.arange(20).reshape(2, 10)}
    torch.manual_seed(7)
    before = everything(model)

    def consume(transition):
        if fails and transition.layer == 1:
            raise KeyError("stop")

    if fails:
        with pytest.raises(KeyError):
            collect(model, inputs, consume=consume)
    else:
        collect(model, inputs, consume=consume)
    assert same(before, everything(model))
    model.train(not model.training)
    assert not same(before, everything(model))  # the comparison can fail


def test_states_match_hidden_states_of_transformers():
    model = resolve_tiny("llama").build()
    inputs = {"input_ids": torch.arange(64).reshape(4, 16)}
    with torch.no_grad():
        stored = model(**inputs, output_hidden_states=True, use_cache=False).hidden_states
    _, seen = gather(model, inputs)
    for transition, entering in zip(seen, stored[:-1], strict=True):
        assert torch.equal(transition.x, entering.flatten(0, 1))
    # The last stored entry has passed the final norm, which the chain has not (ecosystem A4).
    assert not torch.allclose(seen[-1].y, stored[-1].flatten(0, 1))


def test_nothing_holds_all_layers():
    alive, most = weakref.WeakSet(), []

    class Marked(torch.Tensor):
        pass

    def consume(transition):
        marked = transition.y.as_subclass(Marked)
        alive.add(marked)
        gc.collect()
        most.append(len(alive))

    gc.freeze()  # what was alive before needs no look
    collect(Stack(depth=6), sample(), consume=consume)
    gc.collect()
    gc.unfreeze()
    assert max(most) <= 2 and len(alive) == 0


def test_encoder_and_decoder_follow_each_other():
    model = resolve_tiny("t5").build()
    ids = torch.arange(40).reshape(4, 10)
    padded = torch.ones(4, 10, dtype=torch.long)
    padded[:, 8:] = 0
    result, seen = gather(
        model, {"input_ids": ids, "attention_mask": padded, "decoder_input_ids": ids[:, :6]}
    )
    assert result.chains == (("encoder.block", 4), ("decoder.block", 4))
    assert [t.layer for t in seen] == list(range(8))
    assert [len(t.x) for t in seen] == [32] * 4 + [24] * 4


def test_streams_and_shared_blocks_are_noted():
    ids = {"input_ids": torch.arange(32).reshape(2, 16)}
    result, seen = gather(resolve_tiny("albert").build(), ids)
    assert len(seen) == 4 and "share their weights" in result.notes[0]
    assert len({t.name for t in seen}) == 4
    result, seen = gather(resolve_tiny("deepseek_v4").build(), ids)
    assert result.states == 32 * 4 and "streams" in result.notes[0]


def test_cache_is_off(monkeypatch):
    model = resolve("gpt2", overrides={"n_embd": "16", "n_layer": "1", "n_head": "2"}).build()
    seen = {}
    original = model.forward

    def forward(input_ids=None, use_cache=None, **kwargs):
        seen["use_cache"] = use_cache
        return original(input_ids=input_ids, use_cache=use_cache, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    gather(model, {"input_ids": torch.arange(8).reshape(2, 4)})
    assert seen == {"use_cache": False}
