"""The chain of blocks is found by what flows, not by names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rksp.ground.errors import InputError, NotCovered
from rksp.models.anatomy.chains import find_chains, first_tensor

WIDTH = 8


class Block(nn.Module):
    """A residual block; `how` is the shape of what it returns."""

    def __init__(self, how: str = "tensor") -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.how = how

    def forward(self, hidden, extra=None):
        out = hidden + self.inner(hidden)
        if self.how == "tuple":
            return (out, extra)
        if self.how == "dict":
            return {"mask": torch.ones(3, dtype=torch.bool), "hidden": out}
        return out


class Stack(nn.Module):
    def __init__(self, depth: int = 3, how: str = "tensor", by_name: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(how) for _ in range(depth))
        self.head = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(9)))
        self.by_name = by_name

    def forward(self, x):
        for layer in self.layers:
            out = layer(extra=None, hidden=x) if self.by_name else layer(x)
            x = first_tensor(out)
        return self.head(x)


def chains(model: nn.Module, x: torch.Tensor | None = None, **more):
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0)) if x is None else x
    with torch.no_grad():
        return find_chains(model, lambda: model(x), **more)


@pytest.mark.parametrize("how", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("by_name", [False, True])
def test_chain_through_any_return_value(how, by_name):
    (chain,) = chains(Stack(how=how, by_name=by_name))
    assert chain.path == "layers" and chain.width == WIDTH and chain.kind == "tokens"
    assert chain.names == ("layers.0", "layers.1", "layers.2")


def test_hooks_are_gone_even_after_an_error():
    model = Stack()
    chains(model)
    with pytest.raises(RuntimeError):
        chains(model, torch.randn(2, 5, WIDTH + 1))
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_broken_link_is_no_chain():
    class Broken(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * 1.5
            return x

    with pytest.raises(NotCovered, match="No chain"):
        chains(Broken())


def test_encoder_and_decoder_are_two():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Stack(2), Stack(4)

        def forward(self, x):
            return self.decoder(x + self.encoder(x).mean())

    assert [(c.path, len(c.blocks)) for c in chains(Pair())] == [
        ("encoder.layers", 2),
        ("decoder.layers", 4),
    ]


def test_shared_blocks_count_once_a_pass():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.groups = nn.ModuleList([Block()])

        def forward(self, x):
            for _ in range(3):
                x = self.groups[0](x)
            return x

    (chain,) = chains(Shared())
    assert chain.names == ("groups.0", "groups.0#2", "groups.0#3")
    twice = nn.Sequential(*[Block()] * 2, Block())
    assert len(chains(twice)[0].blocks) == 3


def test_parallel_streams_are_states_of_their_own():
    (chain,) = chains(Stack(), torch.randn(2, 5, 4, WIDTH))
    assert chain.kind == "streams" and chain.width == WIDTH
    assert chain.states(torch.zeros(2, 5, 4, WIDTH)).shape == (2, 20, WIDTH)


def test_stages_of_a_pyramid():
    class Narrow(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.conv = nn.Conv2d(n, m, 3, stride=1 if n == m else 2, padding=1)

        def forward(self, x):
            return self.conv(x)

    stages = [
        nn.Sequential(Narrow(n, n + 3), Narrow(n + 3, n + 3), Narrow(n + 3, n + 3)) for n in (3, 6)
    ]
    found = chains(nn.Sequential(*stages), torch.randn(2, 3, 16, 16))
    assert [(c.path, c.names, c.kind, c.width) for c in found] == [
        ("0", ("0.1", "0.2"), "maps", 6),
        ("1", ("1.1", "1.2"), "maps", 9),
    ]
    assert found[0].states(torch.zeros(2, 6, 4, 4)).shape == (2, 16, 6)


def test_width_that_always_changes_is_not_covered():
    class Wrapped(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.linear = nn.Linear(n, m)

        def forward(self, x):
            return self.linear(x)

    model = nn.Sequential(Wrapped(8, 7), Wrapped(7, 6), Wrapped(6, 5))
    with pytest.raises(NotCovered, match="constant width"):
        chains(model)


def test_model_without_a_chain():
    with pytest.raises(NotCovered):
        chains(nn.Linear(WIDTH, WIDTH))


def test_the_users_own_path():
    model = Stack()
    (chain,) = chains(model, path="head")
    assert chain.path == "head" and len(chain.blocks) == 9
    with pytest.raises(InputError, match=r"the lists are: head, layers, layers\.0\.inner"):
        chains(model, path="model.layers")


def test_a_block_that_adds_in_place_still_links():
    class InPlace(Block):
        def forward(self, hidden, extra=None):
            hidden += self.inner(hidden)
            return hidden

    model = Stack()
    model.layers = nn.ModuleList(InPlace() for _ in range(3))
    assert chains(model)[0].path == "layers"
