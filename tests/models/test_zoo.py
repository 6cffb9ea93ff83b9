"""The zoo against forwards written by hand in float64, and the laws of its parts."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.interpolate import BSpline
from torch import Tensor, nn

from rksp.ground.errors import InputError
from rksp.models.zoo import FAMILIES, NORMS, ZooConfig, ZooTransformer, build_member
from rksp.models.zoo.feed_forward import KAN, KANLayer, MixtureOfExperts
from rksp.models.zoo.members import HF_FAMILIES, ZOO_FAMILIES

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 6,
}
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 0, 1]])


def _model(seed: int = 0, **fields: object) -> ZooTransformer:
    """A float64 model whose norms and biases are random too, so that forgetting one shows."""
    generator = torch.Generator().manual_seed(seed)
    model = ZooTransformer(ZooConfig(**{**SMALL, "init_std": 0.3, **fields})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.3 * noise + (1.0 if parameter.dim() == 1 else 0.0))
    return model


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
    model = _model(norm=norm)
    torch.testing.assert_close(
        model(TOKENS).logits, _by_hand(model, TOKENS), rtol=1e-10, atol=1e-10
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
    model, plain = _model(**switch), _model()
    logits = model(TOKENS).logits
    torch.testing.assert_close(logits, _by_hand(model, TOKENS), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(logits, plain(TOKENS).logits, atol=1e-3)  # the switch does something


def test_causal_models_do_not_see_the_future_and_classifiers_do() -> None:
    changed = TOKENS.clone()
    changed[:, -1] = 3
    causal = _model()
    before, after = causal(TOKENS).logits, causal(changed).logits
    torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, -1], after[:, -1])
    classifier = _model(head="classifier")
    first = TOKENS.clone()
    first[:, 0] = 3
    assert classifier(TOKENS).logits.shape == (2, 10)
    assert not torch.allclose(classifier(TOKENS).logits, classifier(first).logits)


def test_vit_embeds_patches_and_means_over_them() -> None:
    model = _model(head="vit", image_size=4, patch_size=2, num_hidden_layers=1, norm="none")
    images = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1)).double()
    patches = images.reshape(3, 2, 2, 2, 2).permute(0, 1, 3, 2, 4).reshape(3, 4, 4)
    x = patches @ model.embed.weight.reshape(8, 4).T + model.embed.bias + model.positions.weight
    block = model.blocks[0]
    x = x + _attention(x, block.attention, causal=False, scale=None)
    x = x + _mlp(x, block.feed_forward)
    torch.testing.assert_close(
        model(images).logits, x.mean(1) @ model.head.weight.T, rtol=1e-10, atol=1e-10
    )


def _large(**fields: object) -> ZooTransformer:
    torch.manual_seed(3)
    shape = {**SMALL, "hidden_size": 64, "num_hidden_layers": 3, **fields}
    return ZooTransformer(ZooConfig(**shape))


def test_init_schemes_have_their_standard_deviations() -> None:
    normal, fan_in = _large(init_std=0.05), _large(init_scheme="fan_in", init_std=0.05)
    torch_own = _large(init_scheme="torch")
    matrix = "blocks.0.feed_forward.down.weight"  # [64, 256]: 16,384 draws, ±0.6 % at one sigma
    expected = {normal: 0.05, fan_in: 256**-0.5, torch_own: (3 * 256) ** -0.5}
    for model, std in expected.items():
        assert model.get_parameter(matrix).std().item() == pytest.approx(std, rel=0.03)
    bound = torch_own.get_parameter(matrix).abs().max().item()
    assert bound == pytest.approx(1 / 16, rel=1e-3)  # uniform ends at its bound; a normal does not
    assert fan_in.embed.weight.std().item() == pytest.approx(0.05, rel=0.15)
    assert all((p == 0).all() for n, p in normal.named_parameters() if n.endswith("bias"))


def test_residual_scaling_divides_what_writes_to_the_stream_by_root_2l() -> None:
    plain, scaled = _large(), _large(scale_residual_init=True)
    for name, weight in plain.named_parameters():
        writes = name.endswith(("attention.out.weight", "down.weight"))
        torch.testing.assert_close(
            scaled.get_parameter(name), weight / math.sqrt(6) if writes else weight
        )


def test_deepnorm_alpha_and_beta() -> None:
    plain, deep = _large(norm="post_ln"), _large(norm="deepnorm")
    assert deep.blocks[0].alpha == pytest.approx(6**0.25)
    assert plain.blocks[0].alpha == 1.0
    beta = 24**-0.25
    for ours, theirs in zip(deep.blocks, plain.blocks, strict=True):
        mine, other = ours.attention.qkv.weight, theirs.attention.qkv.weight
        torch.testing.assert_close(mine[:128], other[:128])  # queries and keys stay
        torch.testing.assert_close(mine[128:], beta * other[128:])
        torch.testing.assert_close(ours.attention.out.weight, beta * theirs.attention.out.weight)
        torch.testing.assert_close(
            ours.feed_forward.up.weight, beta * theirs.feed_forward.up.weight
        )


@pytest.mark.parametrize("ffn", ["mlp", "moe", "kan"])
def test_zero_init_branches_make_identity_blocks(ffn: str) -> None:
    x = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
    zero = _large(zero_init_branches=True, feed_forward=ffn).blocks[0]
    assert torch.equal(zero(x), x)
    assert not torch.allclose(_large(feed_forward=ffn).blocks[0](x), x)


def test_tied_embeddings_are_one_parameter() -> None:
    tied, free = _large(tie_word_embeddings=True), _large()
    assert tied.head.weight is tied.embed.weight
    assert free.head.weight is not free.embed.weight
    difference = sum(p.numel() for p in free.parameters()) - sum(
        p.numel() for p in tied.parameters()
    )
    assert difference == 11 * 64


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
    layer = KAN(ZooConfig(**SMALL)).up
    x = torch.randn(5, 8)
    knots = layer.knots.double().numpy()
    basis = BSpline.design_matrix(torch.tanh(x).flatten().double().numpy(), knots, 3).toarray()
    splines = torch.from_numpy(basis).float().reshape(5, 64) @ layer.spline.weight.T
    expected = (x * torch.sigmoid(x)) @ layer.base.weight.T + splines
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def _mixture(**fields: object) -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(ZooConfig(**{**SMALL, "num_experts": 4, **fields})).double()


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
    model = _model(feed_forward="moe", num_experts=4)
    total = model(TOKENS).aux_loss
    parts = [block.feed_forward.aux_loss for block in model.blocks]
    torch.testing.assert_close(total, parts[0] + parts[1])
    assert _model()(TOKENS).aux_loss is None


def _gradients(family: str) -> list[torch.Tensor]:
    """Return the gradients of a pass forward and back, whose logits have the family's shape."""
    model = build_member(family, {**SMALL, "hidden_size": 16, "init_std": 0.05}, seed=1)
    size = {"vit": (2, 1, 8, 8), "vit_cifar10": (2, 3, 32, 32)}.get(family)
    images = size and torch.randn(size, generator=torch.Generator().manual_seed(0))
    given = {"decoder_input_ids": TOKENS} if _is_paired(model) else {}
    output = model(TOKENS if images is None else images, **given)
    classes = {"vit": 10, "vit_cifar10": 10, "bert_classifier": 4, "roberta_classifier": 4}
    assert output.logits.shape == ((2, classes[family]) if family in classes else (2, 6, 11))
    output.logits.float().square().mean().backward()
    assert model.training
    return [p.grad for p in model.parameters() if p.grad is not None]


def _is_paired(model: nn.Module) -> bool:
    return getattr(getattr(model, "config", None), "is_encoder_decoder", False)


@pytest.mark.parametrize("family", ZOO_FAMILIES)
def test_zoo_families_go_forward_and_back(family: str) -> None:
    gradients = _gradients(family)
    assert all(g.isfinite().all() for g in gradients)
    assert any((g != 0).any() for g in gradients)


@pytest.mark.parametrize("family", HF_FAMILIES)
# Mamba without its CUDA kernels says so, once, in a warning or a log line.
@pytest.mark.filterwarnings("ignore:.*fast path.*")
def test_hugging_face_families_go_forward_and_back(family: str) -> None:
    pytest.importorskip("transformers")
    gradients = _gradients(family)
    assert all(g.isfinite().all() for g in gradients)
    assert any((g != 0).any() for g in gradients)


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_kan", "zoo_moe", "llama"])
def test_the_seed_decides_the_weights_and_the_global_generator_is_left(family: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build_member(family, SMALL, seed=1) if family != "llama" else _llama(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again = build_member(family, SMALL, seed=1) if family != "llama" else _llama(1)
    other = build_member(family, SMALL, seed=2) if family != "llama" else _llama(2)
    assert _same(first, again)
    assert not _same(first, other)


def _llama(seed: int) -> nn.Module:
    return build_member("llama", {**SMALL, "hidden_size": 16}, seed=seed)


def _same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(InputError, match="zoo_pre_ln"):
        build_member("zoo_preln", SMALL, seed=0)
    assert "zoo_pre_ln" in FAMILIES


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"num_attention_heads": 3}, "multiple"),
        ({"num_experts_per_tok": 9}, "exceeds"),
        ({"head": "vit", "patch_size": 3}, "patch_size"),
        ({"parallel_blocks": True, "norm": "post_ln"}, "parallel"),
    ],
)
def test_parts_that_do_not_fit_are_refused(fields: dict[str, object], word: str) -> None:
    ZooConfig(**SMALL)
    with pytest.raises(ValueError, match=word):
        ZooConfig(**{**SMALL, **fields})


def test_subln_with_gains_starts_with_those_of_its_paper():
    shape = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    names = ("zoo_subln", "zoo_subln_gains")
    plain, scaled = (build_member(name, SMALL | shape, seed=0) for name in names)
    gain = math.sqrt(math.log(12))
    for before, after in zip(plain.blocks, scaled.blocks, strict=True):
        left, right = before.attention.qkv.weight, after.attention.qkv.weight
        assert right[:128].equal(left[:128])  # queries and keys
        torch.testing.assert_close(right[128:], gain * left[128:])
        torch.testing.assert_close(after.attention.out.weight, gain * before.attention.out.weight)
        for name in ("up", "down"):
            left, right = (getattr(b.feed_forward, name).weight for b in (before, after))
            torch.testing.assert_close(right, gain * left)
