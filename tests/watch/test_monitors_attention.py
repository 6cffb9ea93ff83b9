"""Monitors of attention and of Jacobians against float64 by hand; firing and silent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.tiny_models import TOKENS, Attended, loss_of, tiny
from support.watching import alarms_of, noise, observe, values_of
from torch import Tensor, nn

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.attention_calls import AttentionCall, visible_logits
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.faults.computation import LowPrecisionAttention
from rksp.watch.moment import Moment
from rksp.watch.monitors.attention import (
    AttentionEntropy,
    AttentionLogits,
    KeyNullSum,
    MultiMaximum,
)
from rksp.watch.monitors.watch import Watch

FAMILIES = ("gpt2", "llama", "phi3", "zoo_qk_norm", "deepseek_v3")


def _logits(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Every layer's logits `[batch, heads, queries, keys]`, written out, and who sees whom."""
    with torch.no_grad(), Attended() as seen:
        model(TOKENS)
    found = []
    for query, key, _, given in seen.calls:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scale = given.get("scale") or query.shape[-1] ** -0.5
        visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        found.append(((query @ key.mT * scale), visible.expand(*query.shape[:2], -1, -1)))
    return found


def _rows(logits: Tensor, visible: Tensor, head: int) -> list[Tensor]:
    """The visible logits of every query of a head that sees two keys."""
    pairs = zip(logits[:, head].flatten(0, 1), visible[:, head].flatten(0, 1), strict=True)
    return [row[seen] for row, seen in pairs if seen.sum() > 1]


# logits, entropy, ties


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_entropy_and_ties_are_those_of_every_row(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    monitors = [AttentionLogits(), AttentionEntropy(), MultiMaximum()]
    watch = Watch(monitors)
    assert watch.bind(model) == {}
    readings = observe(model, monitors[0], TOKENS, watch=watch)
    layers = [layer.path for layer in find_anatomy(model).attention]
    expected = {name: {} for name in ("max", "std", "entropy", "share")}
    for path, (logits, visible) in zip(layers, _logits(model), strict=True):
        heads = [_rows(logits, visible, head) for head in range(logits.shape[1])]
        expected["max"][path] = float(logits.masked_fill(~visible, -math.inf).max())
        expected["std"][path] = max(
            float(torch.stack([row.std(correction=0) for row in rows]).mean()) for rows in heads
        )
        entropies = [
            [-(p * p.log()).sum() / math.log(len(p)) for p in (row.softmax(0) for row in rows)]
            for rows in heads
        ]
        expected["entropy"][path] = min(float(sum(head) / len(head)) for head in entropies)
        ties = [sum(int((row > row.max() - 1e-3).sum() > 1) for row in rows) for rows in heads]
        expected["share"][path] = max(ties) / len(heads[0])
    assert values_of(readings, "attention_max_logit") == pytest.approx(expected["max"], rel=1e-9)
    assert values_of(readings, "worst_head_logit_std") == pytest.approx(expected["std"], rel=1e-9)
    assert values_of(readings, "attention_entropy") == pytest.approx(expected["entropy"], rel=1e-9)
    assert values_of(readings, "multi_max_share") == pytest.approx(expected["share"], rel=1e-6)


def test_attention_that_is_written_out_reads_as_fused_attention() -> None:
    readings = []
    for kind in ("sdpa", "eager"):
        model = tiny("llama", dtype=torch.float64)
        model.set_attn_implementation(kind)
        readings.append(observe(model, AttentionEntropy(), TOKENS))
    fused, eager = (values_of(found, "attention_entropy") for found in readings)
    assert eager == pytest.approx(fused, rel=1e-6) and len(fused) == 2  # softmax in float32


def test_padding_is_no_key_and_a_query_of_few_keys_no_row() -> None:
    model = tiny("bert", dtype=torch.float64)
    monitor = AttentionEntropy()
    watch = Watch([monitor])
    assert watch.bind(model) == {}
    found = []
    for length in (12, 7):
        watch.begin_step(0)
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[:, length:] = 0
        loss_of(model(TOKENS, attention_mask=mask)).backward()
        watch.after_backward(Moment(step=0, model=model))
        found.append(values_of(watch.readings[-2:], "attention_entropy"))
    assert watch.silent == {} and found[0].keys() == found[1].keys()
    assert all(found[0][layer] != pytest.approx(found[1][layer], rel=1e-3) for layer in found[0])


_OWN = {
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 32},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 32},
}


def _of_its_own(name: str) -> nn.Module:
    """A model that calls neither fused attention nor transformers' eager function."""
    from transformers import AutoConfig, AutoModelForCausalLM

    common = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **_OWN[name], **common)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return model


@pytest.mark.parametrize("name", ["gptj", "bloom", "mpt"])
def test_attention_of_a_models_own_is_seen_by_its_softmax(name: str) -> None:
    model = _of_its_own(name).eval()
    watch = Watch([AttentionEntropy(), AttentionLogits(), KeyNullSum()])
    assert watch.bind(model) == {}
    watch.begin_step(0)
    weights = model(TOKENS, output_attentions=True).attentions
    weights[-1].sum().backward()
    watch.after_backward(Moment(step=0, model=model))
    assert (
        watch.silent.keys() == {"key-null-sum"} and "not its keys" in watch.silent["key-null-sum"]
    )
    keys = torch.arange(2, 13).log()
    found = list(values_of(watch.readings, "attention_entropy").values())
    for layer, value in zip(weights, found, strict=True):
        entropy = torch.special.entr(layer.detach()).sum(-1)[..., 1:] / keys
        assert value == pytest.approx(float(entropy.mean((0, 2)).min()), rel=1e-4)
    assert len(values_of(watch.readings, "attention_max_logit")) == 2


def test_a_cap_of_the_logits_leaves_no_law_to_read_and_is_said() -> None:
    monitor, q = KeyNullSum(), torch.randn(1, 2, 3, 4, requires_grad=True)
    monitor.bind(tiny("llama"))
    monitor._look(AttentionCall(query=q, key=q, softcap=50.0))
    with pytest.raises(NotCovered, match="caps its logits"):
        monitor.read(Moment(step=0, model=nn.Identity()))
    monitor._look(AttentionCall(query=q, key=q))
    assert monitor.read(Moment(step=0, model=nn.Identity())) == []


class _Strangers(nn.Module):
    """Attention of one head, `[batch, tokens, tokens]`, as a stranger's class has it."""

    def __init__(self, *, is_softmax: bool) -> None:
        super().__init__()
        self.words, self.keys, self.is_softmax = nn.Embedding(64, 16), nn.Linear(16, 16), is_softmax

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        logits = torch.einsum("bih,bjh->bij", x, self.keys(x)) / 4
        weights = logits.softmax(-1) if self.is_softmax else logits.relu()
        return (self.keys(x).softmax(-1) + weights @ x).square().mean()


@pytest.mark.parametrize("is_softmax", [True, False])
def test_attention_of_a_strangers_class_is_seen_by_its_softmax(is_softmax: bool) -> None:
    model = _Strangers(is_softmax=is_softmax)
    watch = Watch([AttentionEntropy(), MultiMaximum()])
    assert watch.bind(model) == {}
    watch.begin_step(0)
    model(TOKENS).backward()
    watch.after_backward(Moment(step=0, model=model))
    if not is_softmax:  # said after the first step
        assert watch.readings == [] and len(watch.silent) == 2
        assert all("no attention call was seen" in reason for reason in watch.silent.values())
    else:  # and a softmax over anything but tokens, as of a router, is none
        assert watch.silent == {} and len(values_of(watch.readings, "attention_entropy")) == 1


def test_heads_that_all_take_one_token_are_told_of_from_the_start() -> None:
    monitor = AttentionEntropy()
    monitor.bind(tiny("gpt2"))
    for step, entropies in enumerate(([0.5, 0.0], [0.0, 0.001])):
        found = monitor.readings_of("a", {"attention_entropy": torch.tensor(entropies)}, step)
        assert values_of(found, "collapsed_share") == {"a": 0.5 * (step + 1)}
    assert len(alarms_of("collapsed_share", {"a": [1.0, 1.0]})) == 1
    assert alarms_of("collapsed_share", {"a": [0.75, 0.75]}) == []


def test_masks_caps_and_groups_of_a_call() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 8, generator=generator, dtype=torch.float64)
    k = torch.randn(2, 2, 6, 8, generator=generator, dtype=torch.float64)
    wide = q @ k.repeat_interleave(2, dim=1).mT * 0.5
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    call = {"query": q, "key": k, "scale": 0.5}
    additive = torch.where(future, torch.finfo(torch.float32).min, 0.25)[None, None]
    bias = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    moderate = (bias - 100.0 * future)[None, None]  # Swin's, in its shifted windows
    cases = [
        ({"mask": None, "is_causal": True}, wide),
        ({"mask": ~future, "is_causal": False}, wide),
        ({"mask": additive, "is_causal": False}, wide + 0.25),
        ({"mask": moderate, "is_causal": False}, wide + bias),
        ({"mask": None, "is_causal": True, "softcap": 2.0}, 2 * torch.tanh(wide / 2)),
    ]
    for given, expected in cases:
        logits, visible = visible_logits(AttentionCall(**call, **given))
        assert visible.equal((~future).expand_as(visible))
        torch.testing.assert_close(logits, expected.masked_fill(future, -math.inf))


def test_a_bias_by_distance_hides_no_key() -> None:
    q = torch.zeros(1, 1, 200, 2)
    distance = (torch.arange(200.0)[None, :] - torch.arange(200.0)[:, None]).clamp(max=0)
    future = torch.ones(200, 200, dtype=torch.bool).triu(1)
    mask = distance.masked_fill(future, -math.inf)[None, None]
    logits, visible = visible_logits(AttentionCall(query=q, key=q, mask=mask))
    assert visible.equal(~future[None, None]) and logits[0, 0, -1, 0] == -199


def test_long_sequences_are_sampled_at_late_queries() -> None:
    seen = {}

    class Kept(AttentionLogits):
        def measure(self, logits, visible):
            seen.update(logits=logits, visible=visible)
            return {}

    q, monitor = torch.arange(300.0).view(1, 1, 300, 1), Kept()
    monitor.bind(tiny("llama"))
    monitor.look("a", AttentionCall(query=q, key=q, is_causal=True, scale=1.0))
    monitor.leave()
    assert seen["logits"].shape == (1, 1, 64, 300) and seen["visible"][0, 0, -1].all()
    assert seen["logits"][0, 0, -1, 1] == 299.0


@pytest.mark.parametrize(
    ("quantity", "healthy", "sick", "advice"),
    [
        ("attention_max_logit", 8.0, 60.0, "qk_clip"),
        ("worst_head_logit_std", 1.0, 9.0, "qk_clip"),
        ("attention_entropy", 0.7, 0.02, "qk_clip"),
        ("multi_max_share", 0.02, 0.6, "backoff"),
        ("key_null_sum", 1e-7, 1e-2, "backoff"),
    ],
)
def test_alarms_at_what_is_sick_and_not_at_what_is_healthy(
    quantity: str, healthy: float, sick: float, advice: str
) -> None:
    rows = {f"layer.{i}": list(healthy * np.exp(0.1 * noise(120, seed=i))) for i in range(3)}
    assert alarms_of(quantity, rows) == []
    rows["layer.1"][90:] = [sick] * 30
    first = alarms_of(quantity, rows)[0]
    assert (first.layer, first.advice) == ("layer.1", advice) and 90 <= first.step < 93


def test_attention_monitors_see_one_sharp_head_of_a_real_model() -> None:
    found = []
    for factor in (1.0, 60.0):
        model = tiny("llama")
        layer = find_anatomy(model).attention[1]
        layer.query.scale_heads([1.0, 1.0, factor, 1.0])
        watch = Watch([AttentionLogits(), AttentionEntropy()])
        watch.bind(model)
        found.append(observe(model, watch.monitors[0], TOKENS, watch=watch))
    logits = [{r.layer: r for r in part if r.quantity == "attention_max_logit"} for part in found]
    entropy = [{r.layer: r for r in part if r.quantity == "attention_entropy"} for part in found]
    path = layer.path
    assert (
        logits[1][path].value > 10 * logits[0][path].value and logits[1][path].detail["head"] == 2
    )
    assert entropy[1][path].value < 0.5 * entropy[0][path].value
    other = next(other for other in logits[0] if other != path)
    assert logits[1][other] == logits[0][other]


def test_exact_ties_are_counted_and_near_misses_are_not() -> None:
    logits = torch.zeros(1, 2, 5, 8, dtype=torch.float64)
    logits[0, 0, :, 0] = 1.0  # a single maximum in every row of the first head
    logits[0, 1, 1, 3:5] = 2.0  # a tie, and below one within and one beyond the tolerance
    logits[0, 1, 2, 0], logits[0, 1, 2, 1] = 3.0, 3.0 - 9e-4
    logits[0, 1, 3, 0], logits[0, 1, 3, 1] = 3.0, 3.0 - 1.1e-3
    logits[0, 1, [0, 4], 7] = 1.0
    share = MultiMaximum().measure(logits, torch.ones_like(logits, dtype=torch.bool))[
        "multi_max_share"
    ]
    assert share.tolist() == pytest.approx([0.0, 2 / 5])


def test_heads_that_collapsed_since_the_first_reading_are_counted() -> None:
    monitor = AttentionEntropy()
    monitor.bind(tiny("llama"))
    first, second = (
        monitor.readings_of("a", {"attention_entropy": torch.tensor(values)}, step)[0]
        for step, values in enumerate(([0.5, 0.001], [0.001, 0.001]))
    )
    assert (first.detail["collapsed"], first.detail["new_collapsed"]) == (1, 0)
    assert (second.detail["collapsed"], second.detail["new_collapsed"]) == (2, 1)


# key gradients


@pytest.mark.parametrize("name", ["gpt2", "llama", "zoo", "gpt_neox"])
def test_key_gradients_sum_to_zero_in_exact_attention(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    ratios = values_of(observe(model, KeyNullSum(), TOKENS), "key_null_sum")
    assert len(ratios) == 2 and max(ratios.values()) < 1e-12


@pytest.mark.parametrize(("bits", "least", "most"), [(2, 1e-3, 0.3), (7, 0.1, 10.0)])
def test_key_gradients_of_a_truncated_backward_pass_do_not(bits, least, most) -> None:
    model = tiny("llama", dtype=torch.float64)
    monitor, fault = KeyNullSum(), LowPrecisionAttention(bits=bits)
    watch = Watch([monitor])
    watch.bind(model)
    fault.bind(model, seed=0)
    watch.begin_step(0)
    handles = fault.arm(Moment(step=0, model=model))
    with Attended() as seen:
        loss = loss_of(model(TOKENS))
    for handle in handles:
        handle.remove()
    keys = [key for _, key, _, _ in seen.calls]
    gradients = torch.autograd.grad(loss, keys, retain_graph=True)
    loss.backward()
    watch.after_backward(Moment(step=0, model=model))
    found = values_of(watch.readings, "key_null_sum")
    ratios = [g.sum(-2).norm(dim=-1) / g.norm(dim=(-2, -1)) for g in gradients]
    paths = [layer.path for layer in find_anatomy(model).attention]
    by_hand = {p: float(r.mean(0).max()) for p, r in zip(paths, ratios, strict=True)}
    assert found == pytest.approx(by_hand, rel=1e-9)
    assert least < max(found.values()) < most


def test_a_bias_of_the_key_sums_adds_up_and_rounding_does_not() -> None:
    monitor, count = KeyNullSum(), 64
    monitor.bind(tiny("llama"))
    generator = torch.Generator().manual_seed(0)
    for biased in (True, False):
        monitor.reset()
        for _ in range(count):
            signed = torch.ones(2, 8) if biased else torch.randn(2, 8, generator=generator)
            drift = monitor._drifted("a", signed)
        expected = math.sqrt(count) if biased else 1.0
        assert drift.tolist() == pytest.approx([expected] * 2, rel=1e-5 if biased else 0.6)
    steady = [1 + 0.2 * abs(e) for e in noise(50)]
    assert alarms_of("key_null_drift", {"a": steady}) == []
    growing = [math.sqrt(n + 1) for n in range(50)]
    assert alarms_of("key_null_drift", {"a": growing})[0].value >= 4.0


# Jacobians


class _Blocks(nn.Module):
    """Residual blocks of one nonlinear branch each."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"inner": nn.Linear(4, 4, dtype=torch.float64)}) for _ in range(count)
        )
        for layer in self.layers:
            layer.forward = lambda x, inner=layer["inner"]: x + torch.tanh(inner(x))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_without_attention_says_so() -> None:
    for monitor in (AttentionLogits(), AttentionEntropy(), MultiMaximum(), KeyNullSum()):
        model = _Blocks()
        assert monitor.bind(model) is None  # a class of any name may attend: its pass tells
        with pytest.raises(NotCovered, match="no attention call was seen"):
            monitor.read(Moment(step=0, model=model))
    assert first_tensor(_Blocks()(torch.ones(1, 1, 4, dtype=torch.float64))) is not None
