"""The zoo against forwards written by hand in float64, and the laws of its parts."""

from __future__ import annotations

import math

import pytest
import torch
from support.small_zoo import SMALL_ZOO, ZOO_TOKENS, same_weights
from torch import nn

from lab.zoo import FAMILIES, ZooConfig, ZooTransformer, build_member
from lab.zoo.members import HF_FAMILIES, ZOO_FAMILIES
from rksp.ground.errors import InputError


def _large(**fields: object) -> ZooTransformer:
    torch.manual_seed(3)
    shape = {**SMALL_ZOO, "hidden_size": 64, "num_hidden_layers": 3, **fields}
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


def _gradients(family: str) -> list[torch.Tensor]:
    """Return the gradients of a pass forward and back, whose logits have the family's shape."""
    model = build_member(family, {**SMALL_ZOO, "hidden_size": 16, "init_std": 0.05}, seed=1)
    size = {"vit": (2, 1, 8, 8)}.get(family)
    images = size and torch.randn(size, generator=torch.Generator().manual_seed(0))
    given = {"decoder_input_ids": ZOO_TOKENS} if _is_paired(model) else {}
    output = model(ZOO_TOKENS if images is None else images, **given)
    assert output.logits.shape == ((2, 10) if family == "vit" else (2, 6, 11))
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
    first = build_member(family, SMALL_ZOO, seed=1) if family != "llama" else _llama(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again = build_member(family, SMALL_ZOO, seed=1) if family != "llama" else _llama(1)
    other = build_member(family, SMALL_ZOO, seed=2) if family != "llama" else _llama(2)
    assert same_weights(first, again)
    assert not same_weights(first, other)


def _llama(seed: int) -> nn.Module:
    return build_member("llama", {**SMALL_ZOO, "hidden_size": 16}, seed=seed)


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(InputError, match="zoo_pre_ln"):
        build_member("zoo_preln", SMALL_ZOO, seed=0)
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
    ZooConfig(**SMALL_ZOO)
    with pytest.raises(ValueError, match=word):
        ZooConfig(**{**SMALL_ZOO, **fields})


def test_subln_with_gains_starts_with_those_of_its_paper():
    shape = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    names = ("zoo_subln", "zoo_subln_gains")
    plain, scaled = (build_member(name, SMALL_ZOO | shape, seed=0) for name in names)
    gain = math.sqrt(math.log(12))
    for before, after in zip(plain.blocks, scaled.blocks, strict=True):
        left, right = before.attention.qkv.weight, after.attention.qkv.weight
        assert right[:128].equal(left[:128])  # queries and keys
        torch.testing.assert_close(right[128:], gain * left[128:])
        torch.testing.assert_close(after.attention.out.weight, gain * before.attention.out.weight)
        for name in ("up", "down"):
            left, right = (getattr(b.feed_forward, name).weight for b in (before, after))
            torch.testing.assert_close(right, gain * left)
