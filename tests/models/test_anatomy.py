"""Slices of attention layers against what the layers compute, and setters that stay in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.tiny_models import HUGGING_FACE, TOKENS, ZOO, Attended, batch, tiny
from torch import nn
from torch.nn import functional as F

from rksp.models.anatomy.attention_calls import (
    AttentionTap,
    attention_entropies,
    fused_attention,
    watching_attention,
)
from rksp.models.anatomy.chains import block_paths, find_chains, first_tensor
from rksp.models.anatomy.norms import is_qk_norm, qk_norm
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.declared import Declared

FUSED = sorted((HUGGING_FACE.keys() - {"gpt_oss"}) | ZOO.keys())
MOE = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next", "zoo_moe")


def _attended(name, model, layers):
    """What enters every layer, and the (query, key, value) of its attention call."""
    inputs, handles = [], []
    for layer in layers:
        handles.append(
            layer.module.register_forward_pre_hook(
                lambda module, args, kwargs: inputs.append(first_tensor((args, kwargs))),
                with_kwargs=True,
            )
        )
    with torch.no_grad(), Attended() as seen:
        model(batch(name, torch.float64))
    for handle in handles:
        handle.remove()
    assert len(inputs) == len(seen.calls) == len(layers)
    return list(zip(inputs, seen.calls, strict=True))


def _made(matrix, x):
    """Outputs `[batch, heads, tokens, dim]` of a matrix with its bias, written out by head."""
    heads = x.unsqueeze(1) @ matrix.read_heads().mT
    if matrix.bias is not None:
        rows = matrix.bias.detach().unflatten(0, (matrix.groups, -1))
        rows = rows[:, matrix.start : matrix.stop].reshape(matrix.heads, 1, -1)
        heads = heads + rows
    return heads


def _normed(norm, heads):
    if norm is None:
        return heads
    if norm.weight.numel() == heads.shape[-1]:
        return norm(heads)
    flat = heads.transpose(1, 2).flatten(2)  # OLMo 2 normalizes all heads together
    return norm(flat).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)


@pytest.mark.parametrize("name", [n for n in FUSED if not n.startswith("deepseek")])
def test_slices_are_what_attention_gets(name):
    model = tiny(name, dtype=torch.float64).eval()
    layers = find_anatomy(model).attention
    assert layers
    for layer, (x, (query, key, value, given)) in zip(
        layers, _attended(name, model, layers), strict=True
    ):
        with torch.no_grad():
            q = _normed(layer.query_norm, _made(layer.query, x))
            k = _normed(layer.key_norm, _made(layer.key, x))
            v = _made(layer.value, x)
        if key.shape[1] == layer.heads:  # repeated before the call
            k, v = (t.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for t in (k, v))
        # The rotation of the first position is the identity.
        torch.testing.assert_close(q[:, :, 0], query[:, :, 0])
        torch.testing.assert_close(k[:, :, 0], key[:, :, 0])
        torch.testing.assert_close(v, value)
        assert layer.head_dim == query.shape[-1]
        assert layer.scale == pytest.approx(given.get("scale") or query.shape[-1] ** -0.5)
        assert layer.has_qk_norm == (
            name in ("qwen3", "qwen3_moe", "qwen3_next", "olmo2", "zoo_qk_norm")
        )


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3_full_query"])
def test_latent_factors_point_where_attention_looks(name):
    model = tiny(name, dtype=torch.float64).eval()
    layers = find_anatomy(model).attention
    for layer, (x, (query, key, value, given)) in zip(
        layers, _attended(name, model, layers), strict=True
    ):
        assert layer.scale == pytest.approx(given["scale"]) == pytest.approx(12**-0.5)
        for factor, seen in ((layer.query_factor(), query), (layer.key_factor(), key)):
            made = x.unsqueeze(1) @ factor.mT  # up to the norm between the halves, one per token
            cosine = torch.cosine_similarity(made, seen[..., : layer.head_dim], dim=-1)
            assert cosine.min() > 1 - 1e-9
        low = model.get_submodule(layer.path).kv_a_layernorm(x @ layer.key_down.read().T)
        torch.testing.assert_close(_made(layer.value, low), value)
        rotary = x[:, 0] @ layer.key_rotary.read().T
        torch.testing.assert_close(rotary.norm(dim=-1), key[:, 0, 0, layer.head_dim :].norm(dim=-1))


@pytest.mark.parametrize("name", sorted(HUGGING_FACE | ZOO))
def test_every_matrix_can_be_read_written_and_scaled_in_place(name):
    model = tiny(name)
    anatomy = find_anatomy(model)
    matrices = anatomy.attention_matrices() + anatomy.feed_forward
    assert matrices
    addresses = {id(p): p.data_ptr() for p in model.parameters()}
    before = {id(p): p.detach().clone() for p in model.parameters()}
    generator = torch.Generator().manual_seed(1)
    written = [torch.randn(m.shape, generator=generator) for m in matrices]
    for matrix, values in zip(matrices, written, strict=True):
        matrix.write(values)
    for matrix, values in zip(matrices, written, strict=True):  # none overlaps another
        assert matrix.read().equal(values), matrix.name
    assert {id(p): p.data_ptr() for p in model.parameters()} == addresses
    touched = {id(m.parameter) for m in matrices}
    assert all(p.equal(before[id(p)]) for p in model.parameters() if id(p) not in touched)
    for matrix in matrices:
        factors = torch.linspace(0.5, 2.0, matrix.heads)
        was, bias = matrix.read().clone(), matrix.bias
        bias_was = None if bias is None else bias.detach().clone()
        matrix.scale_heads(factors)
        per_row = factors.repeat_interleave(matrix.shape[0] // matrix.heads)
        torch.testing.assert_close(matrix.read(), was * per_row[:, None])
        if bias is not None:
            assert not bias.detach().allclose(bias_was)


def test_scaled_heads_scale_their_logits():
    model = tiny("gpt_neox", dtype=torch.float64).eval()
    layers = find_anatomy(model).attention[:1]
    calls = []
    for factors in (None, [1.0, 0.5, 1.0, 2.0]):
        if factors:
            layers[0].query.scale_heads(factors)
        with torch.no_grad(), Attended() as seen:
            model(TOKENS)
        query, key = seen.calls[0][:2]
        calls.append(query @ key.mT)
    expected = calls[0] * torch.tensor([1.0, 0.5, 1.0, 2.0]).view(1, 4, 1, 1)
    torch.testing.assert_close(calls[1], expected)


@pytest.mark.parametrize("name", MOE)
def test_router_logits_are_the_models(name):
    model = tiny(name, dtype=torch.float64).eval()
    routers = find_anatomy(model).routers
    assert routers and all(r.weight.shape == (4, 32) and r.top_k == 2 for r in routers)
    assert {r.is_sigmoid for r in routers} == {name == "deepseek_v3"}
    assert (routers[0].correction is not None) == (name == "deepseek_v3")
    assert (routers[0].bias is not None) == (name == "gpt_oss")
    states, logits = {}, {}
    for router in routers:
        router.block.register_forward_pre_hook(
            lambda m, args, kwargs, path=router.path: states.update(
                {path: first_tensor((args, kwargs))}
            ),
            with_kwargs=True,
        )
        model.get_submodule(router.path).register_forward_hook(
            lambda m, args, output, path=router.path: logits.update({path: first_tensor(output)})
        )
    with torch.no_grad():
        model(TOKENS)
    for router in routers:
        found, expected = router.logits(states[router.path]), logits[router.path].flatten(0, -2)
        assert found.dtype == torch.float64
        if name == "qwen3_next" and not torch.allclose(found, expected):
            found = found.softmax(-1)  # some releases return probabilities under that name
        # Some routers compute in float32 whatever the model's type.
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("name", sorted(HUGGING_FACE | ZOO))
def test_every_matrix_of_the_blocks_is_found_once(name):
    model = tiny(name)
    anatomy = find_anatomy(model)
    assert len(anatomy.blocks) == (4 if name == "qwen3_next" else 2)
    names = [m.name for m in anatomy.attention_matrices() + anatomy.feed_forward]
    assert len(set(names)) == len(names)
    found = {id(m.parameter): 0 for m in anatomy.attention_matrices() + anatomy.feed_forward}
    for matrix in anatomy.attention_matrices() + anatomy.feed_forward:
        found[id(matrix.parameter)] += matrix.shape[0] * matrix.shape[1]
    routers = {id(router.weight) for router in anatomy.routers}
    for path in anatomy.blocks:
        for inner, parameter in model.get_submodule(path).named_parameters():
            is_matrix = parameter.dim() >= 2 and "conv" not in inner and min(parameter.shape) > 1
            is_matrix &= not inner.endswith("bias")  # of experts in one parameter
            if is_matrix and id(parameter) not in routers:
                gate = 2 if name == "qwen3_next" and inner == "self_attn.q_proj.weight" else 1
                assert gate * found[id(parameter)] == parameter.numel(), inner
    assert anatomy.head is not None
    assert anatomy.head.shape[1] == 32


def test_gate_and_up_are_halves():
    anatomy = find_anatomy(model := tiny("phi3"))
    gate, up = anatomy.feed_forward[:2]
    fused = model.model.layers[0].mlp.gate_up_proj.weight
    assert (gate.name[-5:], up.name[-3:]) == (":gate", ":up")
    assert torch.cat([gate.read(), up.read()]).equal(fused)


def test_a_model_with_nothing_gives_nothing():
    for model in (nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Identity()):
        anatomy = find_anatomy(model)
        assert anatomy.attention == anatomy.feed_forward == anatomy.routers == ()
        assert anatomy.head is None and anatomy.blocks == ()


def test_an_unknown_fused_layout_is_left_out():
    class Odd(nn.Module):
        num_heads = 4

        def __init__(self):
            super().__init__()
            self.query_key_value = nn.Linear(32, 96)

    assert find_anatomy(nn.Sequential(Odd())).attention == ()


@pytest.mark.parametrize("name", sorted(HUGGING_FACE | ZOO))
def test_the_blocks_told_by_structure_are_those_the_states_pass_through(name):
    model = tiny(name).eval()
    with torch.no_grad():
        (chain,) = find_chains(model, lambda: model(batch(name)))
    assert chain.names == block_paths(model)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (SimpleNamespace(num_local_experts=8), 8),
        (SimpleNamespace(num_experts=1), None),
        (SimpleNamespace(text_config=SimpleNamespace(n_routed_experts=64)), 64),
        (SimpleNamespace(ffn_config=SimpleNamespace(moe_num_experts=16)), 16),  # DBRX
        (SimpleNamespace(feed_forward="mlp", num_experts=4), None),
        (None, None),
    ],
)
def test_experts_of_a_configuration(config, count):
    assert Declared(config).experts == count


def test_the_router_of_experts_in_one_matrix_is_found():
    from transformers.models.dbrx.modeling_dbrx import DbrxConfig, DbrxFFN

    shape = {"hidden_size": 16, "ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2}
    config = DbrxConfig(d_model=16, n_heads=2, ffn_config=shape)
    (router,) = find_anatomy(nn.Sequential(DbrxFFN(config))).routers
    assert (router.path, router.top_k) == ("0.router.layer", 2)
    assert Declared(config).experts == 4


def test_norms_of_queries_and_keys_are_told_by_name():
    for name in ("q_norm", "k_layernorm", "query_layernorm", "ln_q", "self_attn.q_layer_norm"):
        assert is_qk_norm(name)
    for name in ("input_layernorm", "norm", "q_proj", "kernel_norm", "final_ln"):
        assert not is_qk_norm(name)
    attention = nn.Module()
    attention.q_norm, attention.k_norm = nn.Identity(), nn.LayerNorm(4)
    attention.kv_a_layernorm = nn.LayerNorm(4)
    assert qk_norm(attention, "query") is None
    assert qk_norm(attention, "key") is attention.k_norm


def test_taps_share_a_call_and_one_may_replace_it():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    x, seen = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0)), []
    plain = layer(x)
    with (
        AttentionTap(lambda call: 2 * fused_attention(call)),
        watching_attention(layer, lambda call: seen.append(call.factor)),
    ):
        doubled = layer(x)
    assert seen == [8**-0.5] and not torch.allclose(doubled, plain)
    with watching_attention(layer, lambda call: None):
        assert layer(x).equal(plain)
    assert F.scaled_dot_product_attention is torch.nn.functional.scaled_dot_product_attention


def test_a_tap_is_gone_after_its_removal():
    seen, q = [], torch.randn(1, 2, 3, 4)
    tap = AttentionTap(lambda call: seen.append(call)).open()
    F.scaled_dot_product_attention(q, q, q)
    tap.remove()
    F.scaled_dot_product_attention(q, q, q)
    assert len(seen) == 1


def test_what_one_watcher_computes_is_no_attention_of_the_model():
    layer, seen = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), []
    logits = torch.randn(1, 2, 3, 3)
    with watching_attention(layer, seen.append):
        attention_entropies(logits, torch.ones_like(logits, dtype=torch.bool))
        assert seen == []
        logits.softmax(-1)
    assert len(seen) == 1 and seen[0].logits is logits
