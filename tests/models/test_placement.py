"""Where blocks normalize is read off a pass, whatever their code looks like."""

import math

import pytest
import torch
from support.block_kinds import KINDS, build_kind
from torch import nn
from torch.nn import functional as F

from lab.zoo import build_member
from lab.zoo.config import ZooConfig
from rksp.datasets.probe import make_probe
from rksp.measure.snapshots import collect
from rksp.models.declared import Declared
from rksp.models.resolve import resolve_tiny
from rksp.models.streaming.stream import open_stream

WIDTH = 16


class Net(nn.Module):
    """Blocks behind an embedding; no configuration, no known class."""

    def __init__(self, *blocks):
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, WIDTH))
        self.steps = nn.ModuleList(blocks)

    def forward(self, ids):
        h = self.table[ids]
        for step in self.steps:
            h = step(h)
        return h @ self.table.T


class Mix(nn.Module):
    """Causal attention with matrices of its own, through einsum."""

    def __init__(self, unit=None):
        super().__init__()
        self.w = nn.ParameterList(0.1 * torch.randn(WIDTH, WIDTH) for _ in range(4))
        self.unit = unit or (lambda t: t)

    def forward(self, h):
        q, k, v = (torch.einsum("btd,de->bte", h, w) for w in self.w[:3])
        q, k = self.unit(q), self.unit(k)
        scores = torch.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5
        ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        shares = scores.masked_fill(ahead, -1e9).unsqueeze(1).softmax(-1).squeeze(1)
        return shares @ v @ self.w[3]


class Up(nn.Module):
    """A gated feed-forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 40), nn.Linear(WIDTH, 40)
        self.c = nn.Linear(40, WIDTH, bias=False)

    def forward(self, h):
        return self.c(F.silu(self.a(h)) * self.b(h))


class Ball(nn.Module):
    """RMSNorm written out, in float64 and back, with a gain of 1 + g."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, h):
        d = h.double()
        d = d * torch.rsqrt((d**2).mean(-1, keepdim=True) + 1e-6)
        return d.type_as(h) * (1 + self.g)


def unit(h):
    """Divide by the length."""
    return h / h.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def layer(h):
    """Center and divide by the deviation, without torch's own norm."""
    centered = h - h.mean(-1, keepdim=True)
    return centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


class Block(nn.Module):
    """A block whose `forward` is a function of it, its mixer and its feed-forward."""

    def __init__(self, act, **parts):
        super().__init__()
        self.mix, self.up, self.act = parts.pop("mix", None) or Mix(), Up(), act
        self.gain = nn.Parameter(torch.tensor([0.3, 0.3]))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, h):
        return self.act(self, h)


def before(s, h):
    h = h + s.mix(F.layer_norm(h, (WIDTH,)))
    return h + s.up(F.layer_norm(h, (WIDTH,)))


def after_branch(s, h):
    h = h + s.n(s.mix(h))
    return h + s.m(s.up(h))


def around_branch(s, h):
    h += s.gain[0] * F.normalize(s.mix(unit(h)), dim=-1)
    h += s.gain[1] * F.normalize(s.up(unit(h)), dim=-1)
    return h


def after_sum(s, h):
    h = layer(1.7 * h + s.mix(h))
    return layer(torch.add(h, s.up(h), alpha=0.5))


def beside(s, h):
    n = s.n(h)
    return s.mix(n) + s.up(n) + h


def beside_late(s, h):
    n, m = s.n(h), s.m(h)
    out = h + s.mix(n)
    return out + s.up(m)


def bare(s, h):
    h = torch.lerp(h, h + s.mix(s.n(h)), 0.5)
    return h + s.gain[0].tanh() * s.up(s.n(h))


def gated(s, h):
    # One number a token from a matrix: no norm, though it has the shape of one.
    h = h + s.mix(h) * torch.sigmoid(h @ s.mix.w[0][:, :1])
    return h + s.up(h)


def channels_first(s, h):
    # A norm over the features where they are no longer last.
    t = h.transpose(1, 2)
    t = (t - t.mean(1, keepdim=True)) / (t.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    h = sum([h, s.mix(t.transpose(1, 2))])
    return torch.stack([h, s.up(t.transpose(1, 2))]).sum(0)


def shares(s, h):
    # A softmax by hand divides by a sum, which is no norm.
    weights = h.exp() / h.exp().sum(-1, keepdim=True)
    return h + s.mix(h) * weights + s.up(h)


def joined(s, h):
    # One matrix reads what attends and what does not.
    n = F.rms_norm(h, (WIDTH,))
    both = torch.cat([s.mix(n), F.silu(s.up.a(n))], -1)
    return h + both @ torch.cat([s.mix.w[0], s.up.c.weight.T])


def highway(s, h):
    gate = torch.sigmoid(s.up(h))
    return h * (1 - gate) + s.mix(F.rms_norm(h, (WIDTH,))) * gate


OWN = {
    "channels first, sums of lists": (lambda: Block(channels_first), ("pre", 0, 1, 0)),
    "a softmax by hand": (lambda: Block(shares), ("none", 0, 1, 0)),
    "branches joined by one matrix": (lambda: Block(joined), ("pre", 0, 1, 0)),
    "a highway, which has no stream": (lambda: Block(highway), None),
    "functional norm before": (lambda: Block(before), ("pre", 0, 0, 0)),
    "own RMS after each branch": (
        lambda: Block(after_branch, n=Ball(), m=Ball(), mix=Mix(unit)),
        ("pre", 1, 0, 1),
    ),
    "lengths around, scaled, in place": (lambda: Block(around_branch), ("pre", 1, 0, 0)),
    "own layer norm after the sum": (lambda: Block(after_sum), ("post", 0, 0, 0)),
    "two branches of one norm": (lambda: Block(beside, n=Ball()), ("pre", 0, 1, 0)),
    "two branches, added apart": (
        lambda: Block(beside_late, n=nn.LayerNorm(WIDTH), m=Ball()),
        ("pre", 0, 1, 0),
    ),
    "identities": (lambda: Block(bare, n=nn.Identity()), ("none", 0, 0, 0)),
    "a gate of one number": (lambda: Block(gated), ("none", 0, 0, 0)),
    "identities beside each other": (lambda: Block(beside, n=nn.Identity()), ("none", 0, 1, 0)),
    "only queries and keys": (
        lambda: Block(bare, n=nn.Identity(), mix=Mix(unit)),
        ("none", 0, 0, 1),
    ),
    "torch's own layer, norm first": (
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, norm_first=True),
        ("pre", 0, 0, 0),
    ),
    "torch's own layer": (
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True),
        ("post", 0, 0, 0),
    ),
}


def read(model, inputs=None):
    """Return what the blocks of a model show."""
    inputs = torch.randint(0, 32, (2, 12)) if inputs is None else inputs
    found = collect(model, inputs, consume=lambda transition: None).placement
    assert found is None or found.read == found.blocks
    return found and (found.norm, found.branch_norm, found.parallel, found.qk_norm)


@pytest.mark.parametrize("name", OWN)
def test_code_of_any_style_is_read(name):
    make, expected = OWN[name]
    assert read(Net(*(make() for _ in range(3)))) == expected


def test_each_block_counts():
    make = lambda name: OWN[name][0]()
    mixed = [make("own RMS after each branch"), *(make("functional norm before") for _ in "abc")]
    assert read(Net(*mixed)) == ("pre", 0.25, 0, 0.25)
    odd = [make("identities"), make("functional norm before")]
    assert read(Net(*odd))[0] is None  # half of them have none: neither


def test_a_block_without_a_stream_is_not_read():
    class Through(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = Up()

        def forward(self, h):
            return self.up(h)

    assert read(Net(Through(), Through())) is None


class Scaled(Net):
    """What the blocks leave goes through another way to the logits."""

    def __init__(self, *blocks, end):
        super().__init__(*blocks)
        self.end = end

    def forward(self, ids):
        return self.end(super().forward(ids))


@pytest.mark.parametrize(
    ("end", "is_scaled"),
    [
        (lambda z: z / 8, True),
        (lambda z: 0.25 * z, True),
        (lambda z: z, False),
        (lambda z: 30 * (z / 30).tanh(), False),  # a cap
        (lambda z: z * torch.ones(32), False),  # a gain
        (lambda z: z.softmax(-1).sum() / 2, False),  # a loss
    ],
)
def test_a_number_that_scales_the_logits_is_seen(end, is_scaled):
    model = Scaled(OWN["functional norm before"][0](), OWN["identities"][0](), end=end)
    found = collect(model, torch.randint(0, 32, (2, 12)), consume=lambda transition: None)
    assert found.placement.scales_output is is_scaled


@pytest.mark.parametrize(("family", "share"), [("mixtral", 1), ("qwen3_moe", 1), ("llama", 0)])
def test_a_choice_among_experts_is_seen(family, share):
    model = build_member(family, {"hidden_size": 32, "num_hidden_layers": 2}, seed=0)
    found = collect(model, torch.randint(0, 32, (2, 12)), consume=lambda transition: None)
    assert found.placement.routed == share


KNOWN = {
    "pre_ln": ("pre", 0, 0, 0),
    "post_ln": ("post", 0, 0, 0),
    "deepnorm": ("post", 0, 0, 0),
    "sandwich": ("pre", 1, 0, 0),
    "branch": ("pre", 1, 0, 0),
    "subln": ("pre", 0, 0, 0),
    "none": ("none", 0, 0, 0),
    "parallel": ("pre", 0, 1, 0),
    "rezero": ("none", 0, 0, 0),
    "zero_init": ("pre", 0, 0, 0),
    "mup": ("pre", 0, 0, 0),
    "hyper": ("pre", 0, 0, 0),
    "mamba": ("pre", 0, 0, None),
    "mixer": ("pre", 0, 0, None),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_lab_s_kinds_are_read(kind):
    config = ZooConfig(
        hidden_size=WIDTH, num_hidden_layers=2, max_position_embeddings=12, vocab_size=32
    )
    assert set(KINDS) - set(KNOWN) <= {"rms", "depth_scaled"}
    assert read(build_kind(kind, config, seed=0)) == KNOWN[kind]
    if kind == "pre_ln":  # the switch of the same model
        normed = ZooConfig(**config.model_dump() | {"qk_norm": True})
        assert read(build_kind(kind, normed, seed=0)) == ("pre", 0, 0, 1)


FAMILIES = {
    "gpt2": ("pre", 0, 0, 0),
    "llama": ("pre", 0, 0, 0),
    "qwen3": ("pre", 0, 0, 1),
    "gemma2": ("pre", 1, 0, 0),
    "olmo2": ("pre", 1, 0, 1),
    "gpt_neox": ("pre", 0, 1, 0),
    "phi": ("pre", 0, 1, 0),
    "gptj": ("pre", 0, 1, 0),
    "falcon": ("pre", 0, 1, 0),
    "cohere": ("pre", 0, 1, 0),
    "opt_post": ("post", 0, 0, 0),
    "bloom": ("pre", 0, 0, 0),
    "mixtral": ("pre", 0, 0, 0),
    "bert": ("post", 0, 0, 0),
    "mamba": ("pre", 0, 0, None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_s_code_is_read(family):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    assert read(build_member(family, shape, seed=0)) == FAMILIES[family]


@pytest.mark.parametrize(
    "model_type",
    [
        *("dots1", "exaone4", "glm4_moe", "qwen3_vl", "xlnet", "cohere2", "qwen3_5"),
        *("qwen2_moe", "deepseek_v2", "qwen3_next", "gemma3", "falcon", "t5"),
    ],
)
def test_a_type_does_what_its_row_says(model_type):
    source = resolve_tiny(model_type)
    said = Declared(source.config, source.task).placement
    probe = make_probe(source, num_sequences=2, sequence_length=24)
    found = collect(source.build(0), probe.batch, consume=lambda transition: None).placement
    assert (found.norm, found.kind.items() <= said.kind.items()) == (said.norm, True)


@pytest.mark.parametrize("family", ["olmo2", "gpt_neox"])
def test_a_streamed_model_is_read_in_its_rehearsal(family):
    source = resolve_tiny(family)
    with open_stream(source, 0) as stream:
        streamed = read(stream.model, {"input_ids": torch.randint(0, 32, (2, 12))})
    whole = read(source.build(0), {"input_ids": torch.randint(0, 32, (2, 12))})
    assert streamed == whole and math.isfinite(whole[1])
