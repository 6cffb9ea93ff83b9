"""MSign against the singular value decomposition, on plain, fused and shared projections."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.small_zoo import small_member
from torch import nn

from rksp.ground.errors import InputError, NotCovered
from rksp.watch.interventions.weights import MSign
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity


def _alarm(step: int) -> Alarm:
    return Alarm(
        monitor="stable_rank",
        quantity="stable_rank",
        layer="",
        step=step,
        severity=Severity.CRITICAL,
        rule="by hand",
        value=1.0,
        baseline=None,
    )


def _bound(model: nn.Module, **options) -> MSign:
    msign = MSign(every=1, **options)
    msign.bind(model, None)
    return msign


def _exact(weight: torch.Tensor) -> np.ndarray:
    """‖W‖_F · UVᵀ / √r by the decomposition."""
    w = weight.detach().double().numpy()
    u, s, vh = np.linalg.svd(w, full_matrices=False)
    return np.linalg.norm(w) * (u @ vh) / np.sqrt(len(s))


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
def test_sign_equals_the_decomposition_and_keeps_the_norm(shape):
    w = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w[1, 0] *= 20.0  # one direction stands out
    w[2] *= 1e-3
    # A Gaussian square matrix may have a condition of 1e3: as many steps as that takes.
    found = MSign(steps=14).signed(w)
    for before, after in zip(w, found, strict=True):
        assert after.numpy() == pytest.approx(_exact(before), abs=1e-8)
        assert float(after.norm()) == pytest.approx(float(before.norm()), rel=1e-12)
        rank = float(after.norm() ** 2 / torch.linalg.matrix_norm(after, 2) ** 2)
        assert rank == pytest.approx(min(shape), rel=1e-8)


def test_partial_strength_goes_part_of_the_way_at_the_same_norm():
    w = torch.randn(1, 12, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    half = MSign(strength=0.5, steps=14).signed(w)
    mixed = 0.5 * w[0].numpy() + 0.5 * _exact(w[0])
    assert half[0].numpy() == pytest.approx(
        mixed * float(w.norm()) / np.linalg.norm(mixed), abs=1e-9
    )
    assert torch.equal(MSign().signed(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def _pieces(family: str, model: nn.Module) -> list[torch.Tensor]:
    """Attention projections as the family lays them out, written down by hand."""
    if family == "zoo_pre_ln":
        return [
            piece
            for block in model.blocks
            for piece in (
                *block.attention.qkv.weight.chunk(3),
                block.attention.out.weight,
            )
        ]
    if family == "gpt2":
        return [
            piece
            for block in model.transformer.h
            for piece in (
                *block.attn.c_attn.weight.chunk(3, dim=1),
                block.attn.c_proj.weight,
            )
        ]
    return [
        getattr(block.self_attn, name).weight
        for block in model.model.layers
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    ]


@pytest.mark.parametrize("family", ["zoo_pre_ln", "gpt2", "llama"])
def test_every_projection_by_itself_and_nothing_else(family):
    model = small_member(family)
    expected = [_exact(piece) for piece in _pieces(family, model)]
    untouched = {name: p.detach().clone() for name, p in model.named_parameters()}
    msign = _bound(model, steps=16)
    msign.after_update(Moment(step=0, model=model))
    for piece, exact in zip(_pieces(family, model), expected, strict=True):
        assert piece.detach().numpy() == pytest.approx(exact, abs=2e-4)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, untouched[n])}
    assert changed == {
        name for name in untouched if name.endswith("weight") and _is_attention(name)
    }
    assert msign.actions[0].detail["matrices"] == len(expected)


def _is_attention(name: str) -> bool:
    return ("attn" in name or "attention" in name) and "norm" not in name and "ln_" not in name


def test_scopes_are_disjoint_and_leave_ends_and_routers_alone():
    changed = {}
    for scope in ("attention", "mlp", "all"):
        model = small_member("zoo_moe")
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        _bound(model, scope=scope).after_update(Moment(step=0, model=model))
        changed[scope] = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed["attention"] & changed["mlp"] == set()
    assert changed["attention"] | changed["mlp"] == changed["all"]
    assert not any("router" in n or "embed" in n or "head" in n for n in changed["all"])
    assert all("experts" in name for name in changed["mlp"])


def test_clock_and_alarm():
    model = small_member("zoo_pre_ln")
    msign = MSign(every=3)
    msign.bind(model, None)
    for step in range(7):
        msign.after_update(Moment(step=step, model=model))
        msign.on_alarm(_alarm(step), Moment(step=step, model=model))
    assert [action.step for action in msign.actions] == [2, 5]
    msign = MSign(every=3, on="alarm")
    msign.bind(model, None)
    for step in range(7):
        msign.after_update(Moment(step=step, model=model))
        if step >= 1:
            msign.on_alarm(_alarm(step), Moment(step=step, model=model))
    assert [action.step for action in msign.actions] == [1, 4]


def test_a_second_sign_changes_nothing_more():
    model = small_member("zoo_pre_ln")
    msign = _bound(model, steps=14)
    msign.after_update(Moment(step=0, model=model))
    once = model.blocks[0].attention.qkv.weight.detach().clone()
    msign.after_update(Moment(step=1, model=model))
    assert torch.allclose(model.blocks[0].attention.qkv.weight, once, atol=1e-5)


def test_models_without_projections_and_unusable_options():
    with pytest.raises(NotCovered, match="scope"):
        MSign().bind(nn.Linear(4, 4), None)
    for options in ({"every": 0}, {"scope": "heads"}, {"strength": 0.0}, {"on": "noon"}):
        with pytest.raises(InputError, match="MSign"):
            MSign(**options)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_extreme_weights_keep_their_scale_in_float32(scale, strength):
    w = torch.randn(1, 6, 9, generator=torch.Generator().manual_seed(2))
    plain = MSign(strength=strength).signed(w)
    scaled = MSign(strength=strength).signed(scale * w)
    torch.testing.assert_close(scaled / scale, plain, rtol=1e-4, atol=1e-5)


def test_an_ill_conditioned_matrix_gets_its_full_sign():
    values = torch.logspace(0, -5, 24, dtype=torch.float64)
    u, v = (
        torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(k)))[0]
        for k in (3, 4)
    )
    w = (u.double() * values @ v.double().mT)[None]
    assert MSign().signed(w)[0].numpy() == pytest.approx(_exact(w[0]), abs=1e-6)
