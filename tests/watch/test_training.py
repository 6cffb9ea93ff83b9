"""The loop and its optimizers against arithmetic done by hand."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from support.small_zoo import same_weights
from torch import nn
from torch.nn import functional as F

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError
from rksp.own_runs.outcome import OutcomePolicy
from rksp.recipe import Recipe
from rksp.recipe.optimizers.own import JointOptimizer, Lion
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.training.loop import gradient_norm, hopeless, train

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 8,
}
OPTIMIZERS = {"adamw": 1e-2, "sgd": 0.3, "lion": 3e-3, "adafactor": 3e-2, "muon": 1e-2}


def _member(seed: int = 0, **fields: object) -> nn.Module:
    return build_member("zoo_pre_ln", {**SHAPE, **fields}, seed=seed)


def _batches(count: int, size: int = 4, *, seed: int = 0) -> list[Batch]:
    return make_task("recall", length=8, vocab=32, pairs=2).batches(count, size, seed=seed)


def _recipe(**fields: object) -> Recipe:
    return Recipe(**{"learning_rate": 1e-2, "max_steps": 10, "schedule": "constant", **fields})


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch.inputs).logits
    return F.cross_entropy(logits.reshape(-1, 32), batch.labels.reshape(-1), ignore_index=-100)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_loop_is_the_bare_loop_bit_for_bit(schedule: str) -> None:
    recipe = _recipe(schedule=schedule, warmup_steps=3, max_grad_norm=1e9, weight_decay=0.1)
    batches, ours, theirs = _batches(10), _member(), _member()
    curves = train(ours, batches, recipe)
    matrices = [p for p in theirs.parameters() if p.dim() >= 2]
    vectors = [p for p in theirs.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=1.0,
        weight_decay=0.1,
        fused=True,
    )
    losses = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        loss = _loss(theirs, batch)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.array_equal(curves.loss, np.float32(losses))
    assert same_weights(ours, theirs)
    assert curves.planned_steps == 10
    assert len(curves.grad_norm) == 10
    assert not same_weights(ours, _member())  # it did train


def test_the_schedule_reaches_every_parameter_group(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = torch.optim.SGD.step

    def record(self, *args):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", record)
    recipe = _recipe(
        optimizer="sgd", learning_rate=0.8, schedule="linear", warmup_steps=4, max_steps=9,
        min_lr_ratio=0.0,
    )  # fmt: skip
    train(_member(), _batches(9), recipe)
    expected = [0.2, 0.4, 0.6, 0.8, 0.8, 0.64, 0.48, 0.32, 0.16]
    assert [rates[0] for rates in seen] == pytest.approx(expected)
    assert all(rates[0] == rates[-1] for rates in seen)


def test_warm_up_never_trains_at_zero_and_schedules_end_where_they_say() -> None:
    warm = Recipe(learning_rate=1.0, warmup_steps=5, max_steps=25, schedule="cosine")
    assert warm.learning_rate_at(0) == pytest.approx(0.2)
    assert warm.learning_rate_at(5) == 1.0
    assert warm.learning_rate_at(15) == pytest.approx(0.55)  # halfway between 1 and 0.1
    assert warm.learning_rate_at(25) == pytest.approx(0.1)


def test_clipping_is_torch_s() -> None:
    batch = _batches(1)[0]
    ours, theirs = _member(init_std=0.5), _member(init_std=0.5)
    recipe = _recipe(
        optimizer="sgd", momentum=0.0, learning_rate=1.0, max_steps=1, max_grad_norm=0.25
    )
    curves = train(ours, [batch], recipe)
    _loss(theirs, batch).backward()
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)
    assert float(norm) > 0.25  # or nothing was clipped
    assert curves.grad_norm[0] == pytest.approx(float(norm), rel=1e-6)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter -= parameter.grad
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    before = _member(init_std=0.5)
    with torch.no_grad():
        pairs = zip(ours.parameters(), before.parameters(), strict=True)
        moved = torch.cat([(a - b).flatten() for a, b in pairs])
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-4)


def test_gradient_norm_is_over_all_entries() -> None:
    params = [
        nn.Parameter(torch.zeros(3)),
        nn.Parameter(torch.zeros(2, 2)),
        nn.Parameter(torch.ones(1)),
    ]
    params[0].grad, params[1].grad = torch.full((3,), 2.0), torch.full((2, 2), 1.0)
    assert gradient_norm(params) == pytest.approx(4.0)


class _Fixed(nn.Module):
    """Logits that are one parameter, so that a step can be planned."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor([[value, 0.0]]))

    def forward(self, inputs: torch.Tensor):
        class Output:
            logits = (self.logit * inputs.float()).unsqueeze(0)
            aux_loss = None

        return Output


def _fixed(*scales: float) -> list[Batch]:
    return [Batch(inputs=torch.tensor([[s]]), labels=torch.tensor([[1]])) for s in scales]


def test_a_step_that_is_not_finite_is_recorded_and_not_applied() -> None:
    model, healthy = _Fixed(1.0), _Fixed(1.0)
    recipe = _recipe(max_steps=4, optimizer="sgd", momentum=0.0, learning_rate=0.1)
    curves = train(model, _fixed(1.0, 1.0, math.nan, 1.0), recipe)
    train(healthy, _fixed(1.0, 1.0), recipe.model_copy(update={"max_steps": 2}))
    assert len(curves.loss) == len(curves.grad_norm) == 3
    assert np.isfinite(curves.loss[:2]).all()
    assert np.isnan(curves.loss[2]) and np.isnan(curves.grad_norm[2])
    assert curves.planned_steps == 4
    assert torch.equal(model.logit, healthy.logit)
    assert OutcomePolicy().has_diverged(curves)


def test_a_hopeless_run_is_stopped_and_a_bad_step_is_not() -> None:
    recipe = _recipe(max_steps=12, optimizer="sgd", momentum=0.0, learning_rate=1e-9)
    assert len(train(_Fixed(60.0), _fixed(*[1.0] * 12), recipe).loss) < 12
    once = _fixed(*[0.1] * 5, 1.0, *[0.1] * 6)  # loss 60 at one step only
    assert len(train(_Fixed(60.0), once, recipe).loss) == 12
    never = train(_Fixed(60.0), _fixed(*[1.0] * 12), recipe, stop=lambda losses, norms: False)
    assert len(never.loss) == 12


@pytest.mark.parametrize(
    ("losses", "norms", "expected"),
    [
        ([4.0, 51.0, 52.0, 53.0], [1.0] * 4, True),
        ([4.0, 49.0, 52.0, 53.0], [1.0] * 4, False),
        ([4.0, math.nan], [1.0, math.nan], True),
        ([4.0, 4.0], [1.0, math.inf], True),
        ([4.0, 4.0], [1.0, 600.0], False),
    ],
)
def test_hopeless(losses: list[float], norms: list[float], expected: bool) -> None:
    assert hopeless(losses, norms) is expected


def test_accumulation_equals_one_large_batch() -> None:
    small = _batches(8, 4)
    large = [
        Batch(inputs=torch.cat([a.inputs, b.inputs]), labels=torch.cat([a.labels, b.labels]))
        for a, b in zip(small[::2], small[1::2], strict=True)
    ]
    ours, theirs = _member(), _member()
    recipe = _recipe(max_steps=4, learning_rate=1e-3)
    split = train(ours, small, recipe.model_copy(update={"gradient_accumulation_steps": 2}))
    whole = train(theirs, large, recipe)
    np.testing.assert_allclose(split.loss, whole.loss, rtol=1e-4)
    np.testing.assert_allclose(split.grad_norm, whole.grad_norm, rtol=1e-3)
    first = train(_member(), small[::2], recipe)
    assert not np.allclose(first.loss, whole.loss, rtol=1e-4)  # half of the batch is not enough


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_near_full(precision: str) -> None:
    batches = _batches(8)
    full = train(_member(), batches, _recipe(max_steps=8, learning_rate=1e-3))
    low = train(_member(), batches, _recipe(max_steps=8, learning_rate=1e-3, precision=precision))
    np.testing.assert_allclose(low.loss, full.loss, rtol=0.02)
    assert not np.array_equal(low.loss, full.loss)  # it did compute in another type
    np.testing.assert_allclose(low.grad_norm, full.grad_norm, rtol=0.1)  # unscaled


def test_lion_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    lion = Lion([parameter], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    theta, momentum = [1.0, -2.0], [0.0, 0.0]
    for gradient in ([1.0, -1.0], [-0.05, 0.2], [-3.0, 0.0]):
        parameter.grad = torch.tensor(gradient)
        lion.step()
        for i, g in enumerate(gradient):
            update = math.copysign(1.0, 0.9 * momentum[i] + 0.1 * g)
            theta[i] = theta[i] - 0.1 * (update + 0.5 * theta[i])
            momentum[i] = 0.99 * momentum[i] + 0.01 * g
    assert parameter.tolist() == pytest.approx(theta, rel=1e-6)
    assert lion.state[parameter]["momentum"].tolist() == pytest.approx(momentum, rel=1e-5)


def test_weight_decay_spares_vectors() -> None:
    model = _member()
    for optimizer in ("adamw", "sgd", "lion", "adafactor"):
        groups = make_optimizer(model, _recipe(optimizer=optimizer, weight_decay=0.3)).param_groups
        decays = {p.dim() >= 2: group["weight_decay"] for group in groups for p in group["params"]}
        assert decays == {True: 0.3, False: 0.0}
        assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with 2.9")
@pytest.mark.parametrize("tied", [False, True])
def test_muon_takes_the_blocks_matrices_and_adamw_the_rest(tied: bool) -> None:
    model = _member(tie_word_embeddings=tied)
    pair = make_optimizer(model, _recipe(optimizer="muon", weight_decay=0.1))
    assert isinstance(pair, JointOptimizer)
    names = {id(p): name for name, p in model.named_parameters()}
    muon, adamw = (
        {names[id(p)] for group in part.param_groups for p in group["params"]}
        for part in pair.parts
    )
    assert muon == {
        n for n, p in model.named_parameters() if n.startswith("blocks") and p.dim() == 2
    }
    assert muon | adamw == set(names.values())
    assert not muon & adamw
    assert {"embed.weight", "positions.weight", "final_norm.bias"} <= adamw


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with 2.9")
def test_the_pair_s_rates_and_state_are_its_parts() -> None:
    model = _member()
    pair = make_optimizer(model, _recipe(optimizer="muon"))
    for group in pair.param_groups:
        group["lr"] = 0.125
    assert all(g["lr"] == 0.125 for part in pair.parts for g in part.param_groups)
    _loss(model, _batches(1)[0]).backward()
    pair.step()
    twin_model = copy.deepcopy(model)
    twin = make_optimizer(twin_model, _recipe(optimizer="muon"))
    twin.load_state_dict(copy.deepcopy(pair.state_dict()))
    for m, optimizer in ((model, pair), (twin_model, twin)):
        m.zero_grad()
        _loss(m, _batches(1, seed=5)[0]).backward()
        optimizer.step()
    assert same_weights(model, twin_model)


def test_muon_without_matrices_or_without_torch_s_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(torch.optim, "Muon"):
        with pytest.raises(InputError, match="no matrix"):
            make_optimizer(nn.Embedding(3, 3), _recipe(optimizer="muon"))
        monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(InputError, match=r"torch 2\.9"):
        make_optimizer(_member(), _recipe(optimizer="muon"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_lowers_the_loss(optimizer: str) -> None:
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim.Muon came with 2.9")
    batch = _batches(1, 16)[0]
    recipe = _recipe(optimizer=optimizer, learning_rate=OPTIMIZERS[optimizer], max_steps=40)
    loss = train(_member(), [batch] * 40, recipe).loss
    assert loss[-1] < 0.7 * loss[0]


def test_the_recipe_reaches_adamw() -> None:
    recipe = _recipe(adam_beta1=0.5, adam_beta2=0.75, adam_epsilon=1e-3)
    group = make_optimizer(_member(), recipe).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.5, 0.75), 1e-3)


def test_training_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    train(_member(), _batches(3), _recipe(max_steps=3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_restored_pair_of_optimizers_still_follows_the_rate():
    """Loading a state replaces the parts' groups: a stale list would freeze the rate."""
    recipe = Recipe(optimizer="muon", learning_rate=1e-2)

    def stepped(restore: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        optimizer = make_optimizer(model, recipe)
        for rate in (1e-2, 1e-3):
            if restore:
                optimizer.load_state_dict(optimizer.state_dict())
            for group in optimizer.param_groups:
                group["lr"] = rate
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model[0].weight.detach()

    torch.testing.assert_close(stepped(True), stepped(False), rtol=0, atol=0)
