"""Batched replicas are the runs they stand for, and no replica touches another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rksp.batch import Batch
from rksp.datasets.tasks import make_task
from rksp.ground.errors import InputError
from rksp.lab import batched
from rksp.lab.batched import _AdamW, train_replicas
from rksp.models.zoo import ZooConfig, build_member
from rksp.models.zoo.members import ZOO_FAMILIES
from rksp.outcome import Curves
from rksp.recipe import Recipe
from rksp.watch.training import train

STEPS = 50
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}
# Every field that may differ between replicas differs.
RECIPES = [
    Recipe(learning_rate=1e-3, warmup_steps=10, max_steps=STEPS, weight_decay=0.1),
    Recipe(learning_rate=3e-3, max_steps=STEPS, max_grad_norm=None, schedule="constant"),
    Recipe(
        learning_rate=1e-2,
        warmup_steps=5,
        max_steps=STEPS,
        max_grad_norm=0.5,
        schedule="linear",
        adam_beta1=0.8,
        adam_beta2=0.95,
        adam_epsilon=1e-6,
    ),
]


def _batches(seed: int, count: int = STEPS, name: str = "recall") -> list[Batch]:
    options = {"vocab": 64, "pairs": 3} if name == "recall" else {}
    return make_task(name, length=16, **options).batches(count, 4, seed=seed)


def _alone(family: str, seed: int, batches: list[Batch], recipe: Recipe, **shape) -> Curves:
    return train(build_member(family, {**SHAPE, **shape}, seed=seed), batches, recipe)


def _config(family: str, **shape: object) -> ZooConfig:
    return ZooConfig(**{**SHAPE, **shape, **ZOO_FAMILIES[family]})


def _same(ours: Curves, theirs: Curves, *, rtol: float = 1e-4) -> None:
    assert len(ours.loss) == len(theirs.loss)
    assert ours.planned_steps == theirs.planned_steps
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=rtol)
    np.testing.assert_allclose(ours.grad_norm, theirs.grad_norm, rtol=10 * rtol)


@pytest.mark.parametrize("family", [name for name in ZOO_FAMILIES if name != "zoo_moe"])
def test_replicas_are_the_runs_trained_alone(family: str) -> None:
    batches = [_batches(seed) for seed in range(3)]
    together = train_replicas(_config(family), RECIPES, seeds=[4, 5, 6], batches=batches)
    for index, curves in enumerate(together):
        alone = _alone(family, 4 + index, batches[index], RECIPES[index])
        assert len(alone.loss) == STEPS
        _same(curves, alone)
    assert (together[2].grad_norm > 0.5).any()  # clipping took part
    assert not np.allclose(together[0].loss, together[1].loss, rtol=1e-2)


def test_mixtures_agree_until_a_route_flips() -> None:
    # Top-k is discontinuous: rounding may send a token elsewhere late in a fast run (seen once,
    # 3e-3), so the tight comparison is over the first steps only.
    batches = _batches(0)
    recipe = RECIPES[0]
    together = train_replicas(_config("zoo_moe"), [recipe, recipe], seeds=[0, 1], batches=batches)
    for seed, curves in enumerate(together):
        alone = _alone("zoo_moe", seed, batches, recipe)
        np.testing.assert_allclose(curves.loss[:10], alone.loss[:10], rtol=1e-4)
        np.testing.assert_allclose(curves.loss, alone.loss, rtol=2e-2)


@pytest.mark.parametrize(
    "shape",
    [{"tie_word_embeddings": True}, {"activation": "swiglu", "bias": False}],
    ids=str,
)
def test_switches_of_the_shape(shape: dict[str, object]) -> None:
    batches = _batches(2, name="bytes")
    shape = {**shape, "vocab_size": 256}
    config = _config("zoo_rmsnorm", **shape)
    together = train_replicas(config, RECIPES, seeds=[1, 1, 2], batches=batches)
    for seed, recipe, curves in zip([1, 1, 2], RECIPES, together, strict=True):
        # Processors round differently: 1.3e-3 of a gradient norm was seen on one of them.
        _same(curves, _alone("zoo_rmsnorm", seed, batches, recipe, **shape), rtol=3e-4)


def test_images() -> None:
    batches = make_task("digits").batches(20, 4, seed=0)
    recipes = [recipe.model_copy(update={"max_steps": 20}) for recipe in RECIPES]
    shape = {**SHAPE, "head": "vit"}
    together = train_replicas(ZooConfig(**shape), recipes, seeds=[0, 1, 2], batches=batches)
    for seed, curves in enumerate(together):
        _same(curves, _alone("zoo_pre_ln", seed, batches, recipes[seed], head="vit"))


def _bits(curves: Curves) -> tuple[bytes, bytes]:
    return curves.loss.tobytes(), curves.grad_norm.tobytes()


@pytest.mark.parametrize("poison", ["nan_input", "huge_rate"])
@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_no_norm", "zoo_moe"])
def test_a_bad_replica_leaves_the_others_bitwise_unchanged(family: str, poison: str) -> None:
    sick_recipes, sick_config = list(RECIPES), _config(family)
    batches = [_batches(seed) for seed in range(3)]
    if poison == "huge_rate":
        sick_recipes[1] = RECIPES[1].model_copy(update={"learning_rate": 1e30})
        sick = train_replicas(sick_config, sick_recipes, seeds=[0, 1, 2], batches=batches)
    else:
        sick = _with_nan_weights(sick_config, batches, replica=1)
    healthy = train_replicas(sick_config, RECIPES, seeds=[0, 1, 2], batches=batches)
    assert len(healthy[1].loss) == STEPS
    assert len(sick[1].loss) < STEPS  # it did fail, and was stopped
    assert not np.isfinite([sick[1].loss[-1], sick[1].grad_norm[-1]]).all()
    assert _bits(sick[0]) == _bits(healthy[0])
    assert _bits(sick[2]) == _bits(healthy[2])


def _with_nan_weights(config: ZooConfig, batches, *, replica: int) -> list[Curves]:
    """The replica's embedding of token 0 (the padding of every batch) is NaN from the start."""
    build, calls = batched._build, []

    def planted(config: ZooConfig, seed: int):
        model = build(config, seed)
        if len(calls) == replica:
            with torch.no_grad():
                model.embed.weight[0] = float("nan")
        calls.append(seed)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "_build", planted)
        return train_replicas(config, RECIPES, seeds=[0, 1, 2], batches=batches)


def test_the_stacked_optimizer_is_torch_s_and_freezes_what_is_masked() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, generator=generator)
    gradients = torch.randn(STEPS, 3, 4, generator=generator)
    decays = torch.tensor([1.0, 1.0, 0.0, 0.0])  # a matrix of two entries, a vector of two
    flat = start.clone()
    update = _AdamW(flat, decays, RECIPES)
    frozen = None
    for step, gradient in enumerate(gradients):
        active = torch.tensor([True, step < 20, True])
        frozen = flat[1].clone() if step == 20 else frozen
        poisoned = gradient.clone()
        poisoned[1] = poisoned[1] if step < 20 else float("nan")
        update(step, poisoned, torch.linalg.vector_norm(poisoned, dim=1), active)
    assert torch.equal(flat[1], frozen)
    assert update.first[1].isfinite().all()
    for row in (0, 2):
        recipe = RECIPES[row]
        parts = [torch.nn.Parameter(part.clone()) for part in start[row].split(2)]
        optimizer = torch.optim.AdamW(
            [
                {"params": parts[:1], "weight_decay": recipe.weight_decay},
                {"params": parts[1:], "weight_decay": 0.0},
            ],
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            eps=recipe.adam_epsilon,
        )
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate_at(step)
            for part, gradient in zip(parts, gradients[step, row].split(2), strict=True):
                part.grad = gradient.clone()
            torch.nn.utils.clip_grad_norm_(parts, recipe.max_grad_norm)
            optimizer.step()
        torch.testing.assert_close(flat[row], torch.cat(parts).detach(), rtol=1e-5, atol=1e-6)


def test_a_failing_replica_stops_where_it_would_alone() -> None:
    batches = _batches(3)
    wild = RECIPES[1].model_copy(update={"learning_rate": 0.5})
    alone = _alone("zoo_no_norm", 3, batches, wild)
    assert len(alone.loss) == 4  # one healthy loss, and three in a row above 50
    config = _config("zoo_no_norm")
    together = train_replicas(config, [wild, RECIPES[0]], seeds=[3, 3], batches=batches)
    assert len(together[0].loss) == len(alone.loss)
    # Beyond the third step such a run doubles its rounding errors many times over.
    np.testing.assert_allclose(together[0].loss[:3], alone.loss[:3], rtol=1e-2)
    assert len(together[1].loss) == STEPS


def test_the_program_ends_when_every_replica_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    update = batched._AdamW.__call__

    def count(self, step, *args):
        taken.append(step)
        return update(self, step, *args)

    monkeypatch.setattr(batched._AdamW, "__call__", count)
    wild = RECIPES[1].model_copy(update={"learning_rate": 1e30})
    train_replicas(_config("zoo_no_norm"), [wild, wild], seeds=[0, 1], batches=_batches(0))
    assert len(taken) <= 2 * batched.CHECK_EVERY


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    recipe = Recipe(learning_rate=1e-3, max_steps=2)
    train_replicas(_config("zoo_pre_ln"), [recipe], seeds=[0], batches=_batches(0, 2))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("recipes", "seeds", "count", "words"),
    [
        ([], [], 4, "one seed per recipe"),
        ([{}], [0, 1], 4, "one seed per recipe"),
        ([{"optimizer": "lion"}], [0], 4, "alone with rksp.watch.training.train"),
        ([{"precision": "bf16"}], [0], 4, "alone with rksp.watch.training.train"),
        ([{"learning_rate": None}], [0], 4, "no learning_rate"),
        ([{}, {"max_steps": 5}], [0, 1], 5, "group runs by length"),
        ([{"gradient_accumulation_steps": 2}], [0], 8, "larger batch_size"),
        ([{}], [0], 3, "4 shared batches"),
    ],
)
def test_what_cannot_be_one_program_is_refused(recipes, seeds, count: int, words: str) -> None:
    built = [Recipe(**{"learning_rate": 1e-3, "max_steps": 4, **fields}) for fields in recipes]
    with pytest.raises(InputError, match=words):
        train_replicas(_config("zoo_pre_ln"), built, seeds=seeds, batches=_batches(0, count))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_gives_the_host_s_curves() -> None:
    batches = _batches(0)
    host = train_replicas(_config("zoo_pre_ln"), RECIPES, seeds=[0, 1, 2], batches=batches)
    device = train_replicas(
        _config("zoo_pre_ln"), RECIPES, seeds=[0, 1, 2], batches=batches, device="cuda"
    )
    for ours, theirs in zip(device, host, strict=True):
        _same(ours, theirs, rtol=1e-3)
