"""The zoo's parts against their formulas, written out by hand or by another library."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.interpolate import BSpline
from support.small_zoo import SMALL_ZOO, ZOO_TOKENS, random_zoo
from torch import Tensor, nn

from lab.zoo import NORMS, ZooConfig, ZooTransformer
from lab.zoo.feed_forward import KAN, KANLayer, MixtureOfExperts


def _layer_norm(x: Tensor, module: nn.LayerNorm) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    scale = (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centered / scale * module.weight + module.bias


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _attention(x: Tensor, module: nn.Module, *, causal: bool, scale: float | None) -> Tensor:
    """One head and one query at a time."""
    config = module.config
    projected = x @ module.qkv.weight.T
    if module.qkv.bias is not None:
        projected = projected + module.qkv.bias
    q, k, v = projected.split(config.hidden_size, dim=-1)
    dim, mixed = config.head_dim, torch.zeros_like(x)
    for row in range(x.shape[0]):
        for head in range(config.num_attention_heads):
            part = slice(head * dim, (head + 1) * dim)
            qs, ks, vs = q[row, :, part], k[row, :, part], v[row, :, part]
            if config.qk_norm:
                eps = torch.finfo(x.dtype).eps
                qs = _rms_norm(qs, module.q_norm.weight, eps)
                ks = _rms_norm(ks, module.k_norm.weight, eps)
            for i in range(x.shape[1]):
                last = i + 1 if causal else x.shape[1]
                weights = (ks[:last] @ qs[i] * (scale or dim**-0.5)).exp()
                mixed[row, i, part] = (weights / weights.sum()) @ vs[:last]
    if isinstance(module.inner_norm, nn.LayerNorm):
        mixed = _layer_norm(mixed, module.inner_norm)
    out = mixed @ module.out.weight.T
    return out if module.out.bias is None else out + module.out.bias


def _mlp(x: Tensor, module: nn.Module) -> Tensor:
    def linear(layer: nn.Linear, value: Tensor) -> Tensor:
        out = value @ layer.weight.T
        return out if layer.bias is None else out + layer.bias

    if module.gate is None:
        up = linear(module.up, x)
        inner = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
    else:
        gate = linear(module.gate, x)
        inner = gate / (1 + (-gate).exp()) * linear(module.up, x)
    if isinstance(module.inner_norm, nn.LayerNorm):
        inner = _layer_norm(inner, module.inner_norm)
    return linear(module.down, inner)


def _by_hand(model: ZooTransformer, tokens: Tensor) -> Tensor:
    config = model.config
    depth = config.num_hidden_layers

    def normed(x: Tensor, module: nn.Module) -> Tensor:
        if isinstance(module, nn.RMSNorm):
            return _rms_norm(x, module.weight, 1e-5)
        return _layer_norm(x, module)

    x = model.embed.weight[tokens] + model.positions.weight[: tokens.shape[1]]
    share = config.residual_multiplier
    for block in model.blocks:
        scale = config.attention_scale

        def attend(value: Tensor, module=block.attention, scale=scale) -> Tensor:
            return share * _attention(value, module, causal=True, scale=scale)

        def feed(value: Tensor, module=block.feed_forward) -> Tensor:
            return share * _mlp(value, module)

        match config.norm:
            case "none":
                x = x + attend(x)
                x = x + feed(x)
            case "deepnorm_no_post":
                alpha = (2 * depth) ** 0.25
                x = alpha * x + attend(x)
                x = alpha * x + feed(x)
            case "post_ln":
                x = normed(x + attend(x), block.norm_1)
                x = normed(x + feed(x), block.norm_2)
            case "deepnorm":
                alpha = (2 * depth) ** 0.25
                x = normed(alpha * x + attend(x), block.norm_1)
                x = normed(alpha * x + feed(x), block.norm_2)
            case "branch":
                x = x + normed(attend(x), block.after_1)
                x = x + normed(feed(x), block.after_2)
            case "sandwich":
                x = x + normed(attend(normed(x, block.norm_1)), block.after_1)
                x = x + normed(feed(normed(x, block.norm_2)), block.after_2)
            case _ if config.parallel_blocks:
                y = normed(x, block.norm_1)
                x = x + attend(y) + feed(y)
            case _:
                x = x + attend(normed(x, block.norm_1))
                x = x + feed(normed(x, block.norm_2))
    if config.norm not in ("none", "deepnorm_no_post", "post_ln", "deepnorm"):
        x = normed(x, model.final_norm)
    return x @ model.head.weight.T


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_its_formula(norm: str) -> None:
    model = random_zoo(norm=norm)
    torch.testing.assert_close(
        model(ZOO_TOKENS).logits, _by_hand(model, ZOO_TOKENS), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(
    "switch",
    [
        {"qk_norm": True},
        {"attention_scale": 1.0},
        {"parallel_blocks": True},
        {"parallel_blocks": True, "norm": "rmsnorm"},
        {"activation": "swiglu"},
        {"bias": False},
        {"tie_word_embeddings": True},
        {"intermediate_ratio": 1.5},
        {"residual_multiplier": 0.1},
        {"residual_multiplier": 0.1, "parallel_blocks": True},
    ],
    ids=str,
)
def test_every_switch_is_its_formula(switch: dict[str, object]) -> None:
    model, plain = random_zoo(**switch), random_zoo()
    logits = model(ZOO_TOKENS).logits
    torch.testing.assert_close(logits, _by_hand(model, ZOO_TOKENS), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(
        logits, plain(ZOO_TOKENS).logits, atol=1e-3
    )  # the switch does something


def test_causal_models_do_not_see_the_future_and_classifiers_do() -> None:
    changed = ZOO_TOKENS.clone()
    changed[:, -1] = 3
    causal = random_zoo()
    before, after = causal(ZOO_TOKENS).logits, causal(changed).logits
    torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, -1], after[:, -1])
    classifier = random_zoo(head="classifier")
    first = ZOO_TOKENS.clone()
    first[:, 0] = 3
    assert classifier(ZOO_TOKENS).logits.shape == (2, 10)
    assert not torch.allclose(classifier(ZOO_TOKENS).logits, classifier(first).logits)


def test_vit_embeds_patches_and_means_over_them() -> None:
    model = random_zoo(head="vit", image_size=4, patch_size=2, num_hidden_layers=1, norm="none")
    images = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1)).double()
    patches = images.reshape(3, 2, 2, 2, 2).permute(0, 1, 3, 2, 4).reshape(3, 4, 4)
    x = patches @ model.embed.weight.reshape(8, 4).T + model.embed.bias + model.positions.weight
    block = model.blocks[0]
    x = x + _attention(x, block.attention, causal=False, scale=None)
    x = x + _mlp(x, block.feed_forward)
    torch.testing.assert_close(
        model(images).logits, x.mean(1) @ model.head.weight.T, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(("grid", "order"), [(5, 3), (3, 1), (8, 4)])
def test_kan_basis_is_scipys_and_sums_to_one(grid: int, order: int) -> None:
    layer = KANLayer(1, 1, grid=grid, order=order).double()
    knots = (torch.arange(-order, grid + order + 1, dtype=torch.float64) * 2 / grid) - 1
    layer.knots = knots
    points = torch.linspace(-1, 1, 101, dtype=torch.float64)[:-1]
    basis = layer.basis(points.unsqueeze(-1)).squeeze(-2)
    assert basis.shape == (100, grid + order)
    ones = torch.ones(100, dtype=torch.float64)
    torch.testing.assert_close(basis.sum(-1), ones, rtol=0, atol=1e-12)
    expected = BSpline.design_matrix(points.numpy(), knots.numpy(), order).toarray()
    torch.testing.assert_close(basis, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_kan_forward_is_base_plus_splines() -> None:
    torch.manual_seed(0)
    layer = KAN(ZooConfig(**SMALL_ZOO)).up
    x = torch.randn(5, 8)
    knots = layer.knots.double().numpy()
    basis = BSpline.design_matrix(torch.tanh(x).flatten().double().numpy(), knots, 3).toarray()
    splines = torch.from_numpy(basis).float().reshape(5, 64) @ layer.spline.weight.T
    expected = (x * torch.sigmoid(x)) @ layer.base.weight.T + splines
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def _mixture(**fields: object) -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(ZooConfig(**{**SMALL_ZOO, "num_experts": 4, **fields})).double()


@torch.no_grad()
@pytest.mark.parametrize("k", [1, 2, 4])
def test_mixture_equals_a_loop_over_tokens(k: int) -> None:
    mixture = _mixture(
        num_experts_per_tok=k, router_aux_loss_coef=0.5, router_z_loss_coef=0.25, bias=False
    )
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    expected = torch.zeros_like(x)
    counts, means = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    squares = 0.0
    for row in range(2):
        for position in range(6):
            logits = (mixture.router.weight @ x[row, position]).float().double()
            probability = logits.exp() / logits.exp().sum()
            chosen = sorted(range(4), key=lambda e: -float(probability[e]))[:k]
            total = sum(probability[e] for e in chosen) if k > 1 else 1.0
            for e in chosen:
                counts[e] += 1
                weight = probability[e] / total
                expected[row, position] += weight * mixture.experts[e](x[row, position])
            means += probability / 12
            squares += float(logits.exp().sum().log()) ** 2 / 12
    torch.testing.assert_close(mixture(x), expected, rtol=1e-5, atol=1e-6)
    balance = 4 * float((counts / (12 * k) * means).sum())
    assert float(mixture.aux_loss) == pytest.approx(0.5 * balance + 0.25 * squares, rel=1e-5)


def test_the_loss_reaches_the_router_of_a_single_expert() -> None:
    mixture = _mixture(num_experts_per_tok=1, router_aux_loss_coef=0.0)
    mixture(torch.randn(2, 6, 8, dtype=torch.float64)).square().sum().backward()
    assert float(mixture.router.weight.grad.norm()) > 1e-3


@torch.no_grad()
def test_balance_loss_is_one_when_balanced_and_grows_when_not() -> None:
    mixture = _mixture(num_experts_per_tok=1, router_aux_loss_coef=1.0)
    mixture.router.weight.zero_()
    mixture.router.weight[:, :4] = 30 * torch.eye(4)
    mixture(torch.eye(8, dtype=torch.float64)[:4])  # token e goes to expert e
    assert float(mixture.aux_loss) == pytest.approx(1.0, abs=1e-5)
    mixture(torch.eye(8, dtype=torch.float64)[[0, 0, 0, 0]])
    assert float(mixture.aux_loss) == pytest.approx(4.0, abs=1e-5)


def test_every_block_adds_to_the_model_s_aux_loss() -> None:
    model = random_zoo(feed_forward="moe", num_experts=4)
    total = model(ZOO_TOKENS).aux_loss
    parts = [block.feed_forward.aux_loss for block in model.blocks]
    torch.testing.assert_close(total, parts[0] + parts[1])
    assert random_zoo()(ZOO_TOKENS).aux_loss is None
