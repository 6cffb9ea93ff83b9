"""Koopman Spectral Shaping: operators, penalties, gradients, and a run that carries it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.oracles import centered, noisy_pair, similar
from torch import nn

from lab.tasks.tasks import associative_recall
from lab.zoo import ZooConfig, ZooTransformer
from rksp.datasets.batch import task_loss
from rksp.ground.errors import InputError, NotCovered
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.interventions.penalties import (
    KSS,
    eigenvalue_moduli,
    energy_gain,
    excess_energy,
    reduced_operator,
    refine_basis,
    shaping_loss,
)
from rksp.watch.moment import Moment


def _symmetric(x, y, epsilon=1e-5):
    """The published whitening word by word: the symmetric root on both sides."""
    xc, yc = centered(x).T, centered(y).T
    n = xc.shape[1] - 1
    covariance = xc @ xc.T / n
    floor = epsilon * np.trace(covariance) / len(covariance)
    w, u = np.linalg.eigh(covariance + floor * np.eye(len(covariance)))
    white = u / np.sqrt(w) @ u.T
    return white @ (yc @ xc.T / n) @ white


def test_operator_equals_the_symmetric_whitening_up_to_rotation():
    pairs = [noisy_pair(200, 12, seed) for seed in range(3)]
    found, usable = reduced_operator(
        torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    )
    assert usable.all()
    for operator, (x, y) in zip(found.numpy(), pairs, strict=True):
        expected = _symmetric(x, y)
        assert np.linalg.norm(operator) == pytest.approx(np.linalg.norm(expected), rel=1e-10)
        own = np.sort_complex(np.linalg.eigvals(operator))
        assert np.allclose(own, np.sort_complex(np.linalg.eigvals(expected)), atol=1e-9)


def test_exact_whitening_has_the_spectrum_of_the_pseudo_inverse_at_any_scale():
    x, y = noisy_pair(200, 12, 0)
    x, y = 5e-3 * x, 5e-3 * y  # the variance of an embedding: 2.5e-5
    expected = np.linalg.eigvals(centered(y).T @ np.linalg.pinv(centered(x).T))
    exact, usable = reduced_operator(x[None], y[None], is_exact=True)
    own = np.linalg.eigvals(exact[0].numpy())
    assert usable.all()
    assert np.allclose(np.sort_complex(own), np.sort_complex(expected), atol=1e-9)
    ridge = np.linalg.eigvals(reduced_operator(x[None], y[None])[0][0].numpy())
    assert np.abs(ridge).max() == pytest.approx(np.abs(expected).max(), rel=1e-3)
    wide = np.linalg.eigvals(reduced_operator(x[None], y[None], epsilon=0.1)[0][0].numpy())
    assert np.abs(wide).max() < 0.95 * np.abs(expected).max()


def test_exact_whitening_leaves_out_what_is_not_there():
    x, y = (part.unsqueeze(0) for part in noisy_pair(100, 8, 1))
    x[..., 5:] = x[..., :3]  # of rank five
    operator, _ = reduced_operator(x, y, is_exact=True)
    own = np.sort(np.abs(np.linalg.eigvals(operator[0].numpy())))
    pinv = np.linalg.pinv(centered(x[0]).T, rcond=1e-10)
    expected = np.sort(np.abs(np.linalg.eigvals(centered(y[0]).T @ pinv)))
    assert np.allclose(own, expected, atol=1e-6) and own[2] < 1e-6 < own[3]
    both, usable = reduced_operator(torch.cat([x, x * torch.nan]), torch.cat([y, y]), is_exact=True)
    assert usable.tolist() == [True, False] and torch.equal(both[0], operator[0])


def test_operator_of_a_known_map_and_its_energy():
    x = torch.randn(1, 4000, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.linalg.qr(x[0, :6, :6]).Q
    operator, _ = reduced_operator(x, 1.5 * x @ rotation + 3.0)
    assert float(energy_gain(operator)) == pytest.approx(2.25, rel=0.05)
    assert float(excess_energy(operator)) == pytest.approx(float(energy_gain(operator)) - 1.1025)
    calm, _ = reduced_operator(x, x @ rotation)
    assert float(excess_energy(calm)) == 0.0


def test_a_layer_that_cannot_be_factored_is_marked_and_leaves_the_others_alone():
    x, y = (part.unsqueeze(0) for part in noisy_pair(100, 8, 1))
    bad = torch.full_like(x, torch.nan)
    both, usable = reduced_operator(torch.cat([x, bad]), torch.cat([y, y]))
    alone, _ = reduced_operator(x, y)
    assert usable.tolist() == [True, False]
    assert torch.equal(both[0], alone[0])


@pytest.mark.parametrize("basis", [False, True])
def test_energy_gradient_against_finite_differences(basis):
    x, y = (part.unsqueeze(0) for part in noisy_pair(60, 7, 2))
    columns = torch.linalg.qr(x[:, :7, :3]).Q if basis else None

    def penalty(states):
        return excess_energy(reduced_operator(x, states, basis=columns)[0], upper=0.1).sum()

    assert torch.autograd.gradcheck(penalty, (3.0 * y.requires_grad_(),))


def test_published_gradient_against_finite_differences_and_dense_eigenvalues():
    core = np.diag([1.3, 1.1, 0.97, 0.9, 0.4]) + np.diag([0.2] * 4, 1)
    core[0, 1], core[1, 0] = 0.5, -0.5
    operator = torch.from_numpy(similar(core, condition=3.0, seed=0))[None].requires_grad_()

    def penalty(a):
        return shaping_loss(eigenvalue_moduli(a)[0], target=0.4).sum()

    a = np.abs(np.linalg.eigvals(operator.detach().numpy()[0]))
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    unstable = np.sum(sigmoid(20 * (a - 1.05)) * np.log1p(np.exp(a - 1.05)) ** 2)
    mass = np.mean(sigmoid(20 * (a - 0.9)) * sigmoid(20 * (1.05 - a)))
    assert float(penalty(operator.detach())) == pytest.approx(
        unstable + (mass - 0.4) ** 2, rel=1e-9
    )
    assert torch.autograd.gradcheck(penalty, (operator,))


def test_softplus_has_no_temperature_as_published():
    at_threshold = shaping_loss(torch.tensor([[1.05]], dtype=torch.float64), target=0.0, beta=0.0)
    assert float(at_threshold) == pytest.approx(0.5 * math.log(2) ** 2)


def test_defective_operators_give_no_gradient_and_near_ones_a_bounded_one():
    jordan = torch.tensor([[1.1, 1.0], [0.0, 1.1]], dtype=torch.float64)
    plain = torch.diag(torch.tensor([1.2, 0.5], dtype=torch.float64))
    batch = torch.stack([jordan, plain]).requires_grad_()
    moduli, usable = eigenvalue_moduli(batch)
    moduli.sum().backward()
    assert usable.tolist() == [False, True]
    assert torch.equal(batch.grad[0], torch.zeros(2, 2, dtype=torch.float64))
    assert torch.allclose(batch.grad[1], torch.eye(2, dtype=torch.float64))
    near = jordan.clone()
    near[1, 0] = 1e-9
    near = near[None].requires_grad_()
    moduli, usable = eigenvalue_moduli(near)
    assert usable.all()
    moduli[0, 0].backward()
    assert float(near.grad.norm()) == pytest.approx(100.0, rel=1e-6)  # 1.6e4 without the bound


def test_basis_converges_to_the_leading_directions():
    x = noisy_pair(300, 10, 4)[0][None]
    basis = torch.linalg.qr(x[:, :10, :3]).Q
    for _ in range(60):
        basis = refine_basis(x, basis)
    exact = torch.linalg.svd(x[0] - x[0].mean(0), full_matrices=False).Vh[:3]
    cosines = torch.linalg.svdvals(exact @ basis[0])
    assert float(cosines.min()) > 1 - 1e-6


def _no_norm(seed: int = 0, **more) -> ZooTransformer:
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 64}
    return ZooTransformer(ZooConfig(norm="none", init_std=0.2, **shape, **more))


def _penalty(kss: KSS, model: nn.Module, step: int = 0, *, bind: bool = True):
    batch = associative_recall(length=32, vocab=64).batches(1, 8, seed=1)[0]
    moment = Moment(step=step, model=model)
    if bind:
        kss.bind(model, None)
    hooks = kss.arm(moment)
    loss = task_loss(model, batch)
    for hook in hooks:
        hook.remove()
    return loss, kss.penalty(moment)


def test_penalty_of_a_model_is_the_mean_over_its_blocks_and_reaches_their_weights():
    model = _no_norm().double()
    batch = associative_recall(length=32, vocab=64).batches(1, 8, seed=1)[0]
    states = []
    hooks = [
        block.register_forward_hook(lambda _, args, out: states.append((args[0], out)))
        for block in model.blocks
    ]
    model(batch.inputs)
    for hook in hooks:
        hook.remove()
    gains = [
        np.linalg.norm(_symmetric(x.detach().flatten(0, 1), y.detach().flatten(0, 1))) ** 2 / 16
        for x, y in states
    ]
    expected = np.mean([max(0.0, gain - 1.05**2) for gain in gains])
    assert expected > 0
    kss = KSS(weight=0.5, every=2, tokens=10_000, rank=16)
    _, penalty = _penalty(kss, model)
    assert penalty.item() == pytest.approx(0.5 * 2 * expected, rel=1e-9)
    penalty.backward()
    assert float(model.blocks[0].attention.qkv.weight.grad.norm()) > 0
    assert model.head.weight.grad is None


@pytest.mark.parametrize("form", ["energy", "published"])
def test_every_form_reduces_rank_and_samples_tokens(form):
    kss = KSS(form, tokens=100, rank=6, every=3, share=0.5)
    model = _no_norm()
    _, penalty = _penalty(kss, model)
    assert penalty.isfinite() and penalty.requires_grad
    penalty.backward()
    kss.before_update(Moment(step=0, model=model))
    (action,) = kss.actions
    assert action.detail["layers"] == 2
    assert _penalty(kss, model, 1, bind=False)[1] is None  # between two steps of its clock


def test_same_seed_same_penalty_and_no_draw_from_the_global_generator():
    values = []
    for seed in (3, 3, 4):
        model = _no_norm()
        before = torch.get_rng_state()
        values.append(_penalty(KSS("energy", rank=6, share=0.5, seed=seed), model)[1].item())
        assert torch.equal(before, torch.get_rng_state())
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    "options", [{"form": "gelfand"}, {"every": 0}, {"share": 0.0}, {"tokens": 4}]
)
def test_unusable_options_are_named(options):
    with pytest.raises(InputError, match="KSS"):
        KSS(**options)


def test_a_model_without_blocks_is_not_covered():
    with pytest.raises(NotCovered, match="list of blocks"):
        KSS().bind(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), None)


def _train(kss: KSS | None, steps: int = 25) -> list[float]:
    """The shortest loop that carries an intervention."""
    model = _no_norm()
    recipe = Recipe(learning_rate=0.02, schedule="constant", max_steps=steps, max_grad_norm=None)
    optimizer = make_optimizer(model, recipe)
    if kss:
        kss.bind(model, optimizer)
    losses = []
    batches = associative_recall(length=32, vocab=64).batches(steps, 8, seed=5)
    for step, batch in enumerate(batches):
        moment = Moment(step=step, model=model, optimizer=optimizer)
        hooks = kss.arm(moment) if kss else ()
        loss = task_loss(model, batch)
        losses.append(float(loss.detach()))
        extra = kss.penalty(moment) if kss else None
        (loss if extra is None else loss + extra).backward()
        for hook in hooks:
            hook.remove()
        if kss:
            kss.before_update(moment)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def test_a_high_rate_run_without_norms_carries_the_penalty():
    gains = {}
    for weight in (0.0, 2.0):
        kss = KSS(weight=weight, rank=16)
        losses = _train(kss)
        assert len(kss.actions) == len(losses) == 25
        gains[weight] = [action.detail["energy_gain"] for action in kss.actions]
    assert np.mean(gains[2.0][5:]) < 0.5 * np.mean(gains[0.0][5:])


def test_weight_zero_leaves_the_run_as_it_is():
    assert _train(KSS(weight=0.0, rank=16), 8) == _train(None, 8)


@pytest.mark.parametrize("norm", ["none", "pre_ln", "post_ln"])
@pytest.mark.parametrize("form", ["energy", "published"])
def test_gradient_is_that_of_the_penalty_in_every_weight_of_the_model(norm, form):
    """Central differences through the whole model, in float64, one random direction a weight."""
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 64}
    model = ZooTransformer(ZooConfig(norm=norm, init_std=0.3, **shape)).double()
    kss = KSS(form=form, weight=1.0, every=1, tokens=10_000, rank=8, share=1.0)

    def value() -> torch.Tensor:
        return _penalty(kss, model)[1]

    penalty = value()
    assert penalty.item() > 0
    names = [name for name, p in model.named_parameters() if not name.startswith(("head", "final"))]
    weights = [model.get_parameter(name) for name in names]
    gradients = torch.autograd.grad(penalty, weights)
    for name, weight, gradient in zip(names, weights, gradients, strict=True):
        direction = torch.randn_like(weight)
        direction /= direction.norm()
        step, ends = 1e-5, []
        for sign in (1.0, -1.0):
            weight.data.add_(direction, alpha=sign * step)
            ends.append(value().item())
            weight.data.sub_(direction, alpha=sign * step)
        slope = (ends[0] - ends[1]) / (2 * step)
        size = float(gradient.norm()) * len(direction.flatten()) ** -0.5
        claimed = float((gradient * direction).sum())
        assert claimed == pytest.approx(slope, rel=1e-6, abs=2e-6 * size + 1e-8), name


def test_collapsed_states_far_from_zero_are_seen_in_float32():
    x, y = (part[None] for part in noisy_pair(200, 6, 3))
    exact, _ = reduced_operator(x, y, is_exact=True)
    near = [(1e-4 * part + 5.0).float() for part in (x, y)]
    found, usable = reduced_operator(*near, is_exact=True)
    assert usable.all()
    radius = lambda a: float(torch.linalg.eigvals(a.double()).abs().max())
    assert radius(found) == pytest.approx(radius(exact), rel=0.05)
    gain = float(energy_gain(reduced_operator(*near)[0]))
    assert gain == pytest.approx(float(energy_gain(reduced_operator(x, y)[0])), rel=0.1)
