"""The update bound: its law, whatever optimizer, precision or trainer moves the weights."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from lab.zoo import build_member
from rksp.ground.errors import InputError, NotCovered
from rksp.recipe import Recipe
from rksp.recipe.optimizers.own import Lion
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.interventions.update_bound import PEAK, STEPS, BoundUpdates, UpdateBound
from rksp.watch.interventions.updates import Updates, furthest
from rksp.watch.registry import make_intervention

DELTA = 0.05
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
MAKERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.3, betas=(0.9, 0.95), weight_decay=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.3, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.3, amsgrad=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.3, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=30.0, momentum=0.9, nesterov=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=10.0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.3),
    "lion": lambda p: Lion(list(p), lr=0.3, weight_decay=0.1),
}


class Net(nn.Module):
    """An embedding, a norm, a matrix that starts at zero, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
        self.up, self.zero, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 40)
        nn.init.zeros_(self.zero.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(tokens))
        return self.head(x + self.zero(torch.relu(self.up(x))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def backward(
    model: nn.Module, step: int, scaler: torch.amp.GradScaler | None = None
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 40, (4, 8), generator=generator)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    (loss if scaler is None else scaler.scale(loss)).backward()
    return loss


def least(p: torch.Tensor) -> float:
    return 0.1 * math.sqrt(p.numel() / max(p.shape[-2:]))


def share(p: torch.Tensor, before: torch.Tensor) -> float:
    return float((p.detach() - before).norm()) / max(float(before.norm()), least(p))


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_every_matrix_moves_by_delta_at_most_and_the_rest_by_the_mean_factor(maker) -> None:
    model, other = net(), net()
    optimizer, plain = maker(model.parameters()), maker(other.parameters())
    bound = UpdateBound(optimizer, model, delta=DELTA)
    matrices = ("up.weight", "zero.weight", "head.weight")
    for step in range(12):
        with torch.no_grad():
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                p.copy_(q)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for one in (model, other):
            one.zero_grad()
            backward(one, step)
        plain.step()
        optimizer.step()
        own, free = dict(model.named_parameters()), dict(other.named_parameters())
        factors = [
            min(1.0, DELTA / max(share(free[name], before[name]), 1e-9)) for name in matrices
        ]
        mean = math.exp(sum(map(math.log, factors)) / len(factors))
        for name, factor in zip(matrices, factors, strict=True):
            assert share(own[name], before[name]) <= DELTA * (1 + 1e-4)
            expected = torch.lerp(before[name], free[name], factor)
            torch.testing.assert_close(own[name], expected, rtol=1e-4, atol=2e-5)
        for name in set(own) - set(matrices):
            expected = torch.lerp(before[name], free[name], mean)
            torch.testing.assert_close(own[name], expected, rtol=1e-4, atol=1e-4)
    assert bound.scaled["up.weight"] and bound.scaled["norm.weight"]


def test_a_matrix_that_starts_at_zero_starts() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    UpdateBound(optimizer, model)
    backward(model, 0)
    optimizer.step()  # behind a zero matrix nothing else has a gradient, but this one has
    assert 0 < float(model.zero.weight.detach().norm()) <= 0.05 * least(model.zero.weight) * 1.0001


@pytest.mark.parametrize("maker", [MAKERS["adamw"], MAKERS["lion"]], ids=["adamw", "lion"])
def test_a_run_in_which_nothing_is_scaled_is_bitwise_the_optimizers_own(maker) -> None:
    model, other = net(), net()
    optimizer, plain = maker(model.parameters()), maker(other.parameters())
    bound = UpdateBound(optimizer, model, delta=1e6)
    for step in range(5):
        for one, steps in ((model, optimizer), (other, plain)):
            one.zero_grad()
            backward(one, step)
            steps.step()
    assert not bound.scaled and bound.steps == 5
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_matrices_that_no_step_can_move_too_far_are_not_measured_and_others_are(
    monkeypatch,
) -> None:
    measured: list[int] = []
    own = Updates.moved
    monkeypatch.setattr(
        Updates, "moved", lambda self, pieces: measured.append(len(pieces)) or own(self, pieces)
    )
    for rate, is_measured in ((1e-4, False), (0.3, True)):
        model = net()
        nn.init.normal_(model.zero.weight, std=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        UpdateBound(optimizer, model)
        for step in range(30):
            if step == 1:
                measured.clear()  # sizes are known from here on
            model.zero_grad()
            backward(model, step)
            optimizer.step()
        assert bool(measured) == is_measured


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.0, 0.9), (0.95, 0.98)])
def test_no_update_of_adam_passes_what_cauchy_and_schwarz_allow(betas) -> None:
    weight = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=1.0, betas=betas, weight_decay=0.0, eps=1e-99)
    limit, steps = furthest(optimizer, optimizer.param_groups[0]), 2000
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        before = weight.detach().clone()
        growth = (betas[1] / max(betas[0], 0.1)) ** (step - steps)  # the worst case
        weight.grad = growth * (1 + 1e-3 * torch.rand(8, generator=generator, dtype=torch.float64))
        optimizer.step()
    largest = float((weight - before).detach().abs().max())
    assert 0.9 * limit < largest <= limit


def test_delta_follows_the_rate_and_the_peak_travels_with_the_optimizers_state() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    UpdateBound(optimizer, model)
    backward(model, 0)
    optimizer.step()
    kept = optimizer.state_dict()
    assert kept["param_groups"][0][PEAK] == 0.3
    resumed = torch.optim.AdamW(model.parameters(), lr=0.1)
    UpdateBound(resumed, model)
    resumed.load_state_dict(kept)
    for group in resumed.param_groups:
        group["lr"] = 0.03
    before = model.up.weight.detach().clone()
    model.zero_grad()
    backward(model, 1)
    resumed.step()
    assert share(model.up.weight, before) == pytest.approx(0.1 * DELTA, rel=1e-3)


@pytest.mark.parametrize(
    ("steps", "part"),
    [(0, 1.0), (159, 1.0), (639, 0.5), (2399, 15**-0.5), (99_999, 15**-0.5)],
)
def test_delta_falls_with_the_root_of_the_steps_as_far_as_it_was_measured(steps, part) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    UpdateBound(optimizer, model)
    kept = optimizer.state_dict()
    for group in kept["param_groups"]:
        group[STEPS] = steps
    optimizer.load_state_dict(kept)
    before = model.head.weight.detach().clone()
    backward(model, 0)
    optimizer.step()
    assert share(model.head.weight, before) == pytest.approx(part * DELTA, rel=1e-3)
    assert optimizer.state_dict()["param_groups"][0][STEPS] == steps + 1


def test_a_group_that_is_added_later_is_bound_too() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.up.parameters(), lr=0.3)
    UpdateBound(optimizer, model)
    backward(model, 0)
    optimizer.step()
    optimizer.add_param_group({"params": [model.head.weight], "lr": 0.5})
    before = model.head.weight.detach().clone()
    optimizer.step()
    assert share(model.head.weight, before) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("name", ["adamw", "adamw fused", "sgd"])
def test_a_closure_gives_the_gradients_of_the_step(name) -> None:
    model, other = net(), net()
    optimizer, second = MAKERS[name](model.parameters()), MAKERS[name](other.parameters())
    UpdateBound(optimizer, model)
    UpdateBound(second, other)
    for step in range(4):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            return backward(model, step)

        optimizer.step(closure)
        other.zero_grad()
        backward(other, step)
        second.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("name", ["adamw", "adamw fused", "sgd"])
def test_a_step_that_grad_scaler_skips_is_none(name) -> None:
    model = net()
    optimizer = MAKERS[name](model.parameters())
    bound = UpdateBound(optimizer, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, spoiled in enumerate((False, True, False)):
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        backward(model, step, scaler)
        if spoiled:
            model.head.weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert same == spoiled
        assert share(model.up.weight, before["up.weight"]) <= DELTA * 1.001
    assert bound.steps == 2


def test_low_precision_weights_and_pieces_of_large_ones_are_bound_alike(monkeypatch) -> None:
    found = []
    for most in (2**20, 100):  # the second cuts every matrix into pieces
        monkeypatch.setattr("rksp.watch.interventions.updates._LEAST", most)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
        UpdateBound(optimizer, model)
        for step in range(3):
            model.zero_grad()
            backward(model, step)
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    for p, q in zip(*found, strict=True):
        torch.testing.assert_close(p, q)
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    UpdateBound(optimizer, model)
    before = model.head.weight.detach().float().clone()
    backward(model, 0)
    optimizer.step()
    assert share(model.head.weight.float(), before) == pytest.approx(DELTA, rel=0.1)


def test_it_acts_around_a_compiled_model_and_under_a_scheduler() -> None:
    found = []
    for compiles in (False, True):
        model = net()
        called = torch.compile(model, backend="eager") if compiles else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
        UpdateBound(optimizer, called)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=4)
        for step in range(4):
            optimizer.zero_grad()
            backward(called, step)
            optimizer.step()
            schedule.step()
        found.append([p.detach().clone() for p in model.parameters()])
    for p, q in zip(*found, strict=True):
        torch.testing.assert_close(p, q)


def test_muon_and_adamw_that_step_as_one_share_the_mean_factor() -> None:
    model = build_member("gpt2", SHAPE | {"max_position_embeddings": 8}, seed=0)
    optimizer = make_optimizer(model, Recipe(optimizer="muon", learning_rate=1.0, max_steps=2))
    bound = BoundUpdates()
    bound.bind(model, optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens = torch.randint(0, 40, (2, 8), generator=torch.Generator().manual_seed(0))
    model(tokens).logits.logsumexp(-1).mean().backward()
    optimizer.step()
    own = dict(model.named_parameters())
    name = "transformer.h.0.attn.c_attn.weight"
    assert share(own[name], before[name]) == pytest.approx(DELTA, rel=1e-3)
    assert 0 < float((own["transformer.ln_f.weight"].detach() - 1).abs().max()) < 0.5
    said = bound.closing()
    assert said.startswith("update_bound scaled") and "in 1 steps" in said


def test_its_end_leaves_the_optimizer_as_it_was() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    bound = UpdateBound(optimizer, model)
    bound.remove()
    before = model.head.weight.detach().clone()
    backward(model, 0)
    optimizer.step()
    assert share(model.head.weight, before) > 2 * DELTA


def test_two_bounds_on_one_optimizer_are_refused_until_the_first_lets_go() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    bound = UpdateBound(optimizer, model)
    clip = make_intervention("step_clip")
    with pytest.raises(InputError, match="bounded already"):
        UpdateBound(optimizer, model)
    with pytest.raises(InputError, match="bounded already"):
        clip.bind(model, optimizer)
    bound.remove()
    clip.bind(model, optimizer)
    with pytest.raises(InputError, match="bounded already"):
        UpdateBound(optimizer, model)


def test_what_it_cannot_use_is_refused() -> None:
    model = net()
    with pytest.raises(InputError, match=r"needs a torch.optim.Optimizer, got object"):
        UpdateBound(object(), model)
    with pytest.raises(InputError, match="above zero, got delta=0"):
        UpdateBound(torch.optim.SGD(model.parameters(), lr=1.0), model, delta=0)
    with pytest.raises(InputError, match="delta=0"):
        BoundUpdates(delta=0.0)
    vectors = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    with pytest.raises(NotCovered, match="needs a matrix"):
        BoundUpdates().bind(model, vectors)
    assert make_intervention("update_bound=0.1").delta == 0.1
