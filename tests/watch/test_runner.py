"""The monitored run: equal to the plain loop, honest about what was done, undone and planted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.small_zoo import same_weights
from torch import nn

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.own_runs.outcome import Curves, Outcome, OutcomePolicy
from rksp.recipe import Recipe
from rksp.watch.faults.base import Fault
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.recovery import RateBackoff
from rksp.watch.moment import Moment
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
from rksp.watch.run_state import Checkpoints
from rksp.watch.training.loop import gradient_norm, hopeless, judge_alone, run, train, without

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 8,
}


def _member(family: str = "zoo_pre_ln", **fields: object) -> nn.Module:
    return build_member(family, {**SHAPE, **fields}, seed=0)


def _batches(count: int) -> list[Batch]:
    return make_task("recall", length=8, vocab=32, pairs=2).batches(count, 4, seed=0)


def _recipe(**fields: object) -> Recipe:
    return Recipe(**{"learning_rate": 1e-2, "max_steps": 12, "schedule": "constant", **fields})


class _Poison(Fault):
    """Makes weights infinite after a step: the loss of the next one is not finite."""

    name = "poison"

    def __init__(self, step: int) -> None:
        self.step = step

    def after_update(self, moment: Moment) -> None:
        if moment.step == self.step:
            with torch.no_grad():
                next(moment.model.parameters()).fill_(math.inf)


class _Diary(Intervention):
    """Writes down the order of calls, and gradient and rate at each."""

    name = "diary"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.rates: list[float] = []
        self.scale = 1.0

    def arm(self, moment: Moment):
        assert moment.loss is None
        self.calls.append("arm")
        return ()

    def penalty(self, moment: Moment):
        self.calls.append("penalty")
        return sum(p.square().sum() for p in moment.model.parameters())

    def before_update(self, moment: Moment) -> None:
        self.calls.append("before_update")
        self.rates.append(moment.learning_rate)
        assert moment.loss is not None

    def after_update(self, moment: Moment) -> None:
        self.calls.append("after_update")
        self.rate_scale *= 0.5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_watched_run_is_bitwise_the_plain_one(precision: str, accumulation: int) -> None:
    recipe = _recipe(precision=precision, gradient_accumulation_steps=accumulation)
    batches, watched, plain = _batches(24), _member(), _member()
    watch = Watch(make_monitors(), Rules())
    record = run(watched, batches, recipe, watch=watch)
    curves = train(plain, batches, recipe)
    assert np.array_equal(record.curves.loss, curves.loss)
    assert np.array_equal(record.curves.grad_norm, curves.grad_norm)
    assert same_weights(watched, plain)
    assert record.readings  # it did look
    assert sum(record.monitor_seconds.values()) > 0
    assert not any(m._forward_hooks or m._backward_hooks for m in watched.modules())


def test_the_order_of_calls_and_the_scale_of_the_rate() -> None:
    diary = _Diary()
    recipe = _recipe(max_steps=3, gradient_accumulation_steps=2)
    model, plain = _member(), _member()
    record = run(model, _batches(6), recipe, interventions=[diary])
    step = ["arm", "penalty", "penalty", "before_update", "after_update"]
    assert diary.calls == step * 3
    assert diary.rates == [1e-2, 5e-3, 2.5e-3]
    curves = train(plain, _batches(6), recipe)
    assert record.curves.loss[0] == curves.loss[0]  # the penalty is not in the loss
    assert record.curves.grad_norm[0] > curves.grad_norm[0]  # and is in the gradient


def test_the_norm_is_recorded_before_an_intervention_clips() -> None:
    plain = train(_member(init_std=0.5), _batches(2), _recipe(max_steps=1, max_grad_norm=None))
    model, twin = _member(init_std=0.5), _member(init_std=0.5)
    sgd = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 1.0, "max_steps": 1}
    clip = make_intervention("clip:norm=0.25")
    record = run(model, _batches(2), _recipe(**sgd), interventions=[clip])
    assert record.curves.grad_norm[0] == plain.grad_norm[0] > 1
    train(twin, _batches(2), _recipe(**sgd, max_grad_norm=0.25))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)  # clipped once, not twice
    assert [action.step for action in record.actions] == [0]


def test_the_norm_is_infinite_only_where_a_gradient_is() -> None:
    params = [nn.Parameter(torch.zeros(3, 4)) for _ in range(2)]
    for param in params:
        param.grad = torch.full_like(param, 1e25)  # its square is no float32
    assert gradient_norm(params) == pytest.approx(1e25 * math.sqrt(24))
    params[0].grad[0, 0] = math.inf
    assert gradient_norm(params) == math.inf
    params[0].grad[0, 0] = math.nan
    assert math.isnan(gradient_norm(params))


def test_a_loss_that_is_not_finite_is_seen_at_its_step_and_ends_the_run() -> None:
    watch = Watch(make_monitors(["non-finite"]), Rules())
    record = run(_member(), _batches(12), _recipe(), watch=watch, faults=[_Poison(4)])
    assert len(record.curves.loss) == 6
    assert math.isnan(record.curves.loss[5])
    assert record.outcome is Outcome.DIVERGED
    assert {alarm.step for alarm in record.alarms} == {5}
    healthy = run(_member(), _batches(12), _recipe())
    assert len(healthy.curves.loss) == 12
    assert healthy.outcome is not Outcome.DIVERGED


def test_a_rollback_saves_the_run_and_is_not_hidden() -> None:
    watch = Watch(make_monitors(["non-finite"]), Rules())
    backoff = RateBackoff(every=2, lead=2, keep=3)
    model = _member()
    record = run(
        model, _batches(12), _recipe(), watch=watch, faults=[_Poison(4)], interventions=[backoff]
    )
    assert len(record.curves.loss) == 12
    assert math.isnan(record.curves.loss[5])  # still in the raw curve
    assert record.undone == ((2, 6),)
    assert record.outcome is not Outcome.DIVERGED
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("msign:every=4,scope=all", [3, 7, 11]),
        ("spectral_smoothing:every=6,ratio=1.01", [5, 11]),
        ("qk_clip:tau=1e-9,every=5", [0, 5, 10]),
        ("clip:norm=0.01", []),  # gradients alone
        ("kss", []),
    ],
)
def test_monitors_start_anew_where_an_intervention_moved_weights(line, expected) -> None:
    watch = Watch(make_monitors(["stable-rank"]), Rules())
    resets: list[int] = []
    watch.reset = lambda: resets.append(watch._step)
    record = run(
        _member(), _batches(12), _recipe(), watch=watch, interventions=[make_intervention(line)]
    )
    assert record.actions  # it did act
    assert resets == expected


def test_the_loop_clips_what_an_intervention_added() -> None:
    """It collects what it trains after `bind`: gains that came with it are clipped too."""
    model = _member(init_std=0.5)
    limit = 1e-3
    sgd = _recipe(
        optimizer="sgd", momentum=0.0, learning_rate=1.0, max_steps=1, max_grad_norm=limit
    )
    run(model, _batches(1), sgd, interventions=[make_intervention("qk_norm")])
    gains = [p.detach() for name, p in model.named_parameters() if name.endswith("norm_gain")]
    assert len(gains) == 4
    moved = math.sqrt(sum(float((gain - 1).double().square().sum()) for gain in gains))
    assert 0 < moved <= limit


def test_undone_steps_do_not_count() -> None:
    loss = np.array([3.0, 2.0, np.nan, 1.9, 1.8], dtype=np.float32)
    curves = Curves(loss=loss, grad_norm=np.ones(5, dtype=np.float32), planned_steps=5)
    kept = without(curves, [(1, 3)])
    assert kept.loss.tolist() == pytest.approx([3.0, 1.9, 1.8])
    assert kept.planned_steps == 3
    assert OutcomePolicy().has_diverged(curves) and not OutcomePolicy().has_diverged(kept)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0] * 5 + [1.0] * 15, Outcome.HEALTHY),
        ([3.0] * 20, Outcome.HEALTHY),
        ([3.0] * 10 + [3.4] * 10, Outcome.FAILED_PLATEAU),
        ([3.0] * 5 + [1.0] * 5 + [2.5] * 10, Outcome.FAILED_PLATEAU),
        ([3.0] * 5 + [1.0] * 5 + [2.5] * 5 + [1.0] * 5, Outcome.SPIKED),
        ([3.0] * 5 + [60.0] + [1.0] * 14, Outcome.DIVERGED),
        ([3.0] * 5, Outcome.FAILED_PLATEAU),  # stopped long before the end
    ],
)
def test_the_label_of_a_run_without_a_ladder(losses: list[float], expected: Outcome) -> None:
    curves = Curves(
        loss=np.float32(losses), grad_norm=np.ones(len(losses), np.float32), planned_steps=20
    )
    assert judge_alone(curves) is expected


def test_dropout_is_paired_by_the_seed_and_the_global_generator_stays() -> None:
    def losses(seed: int) -> list[float]:
        model = nn.Sequential(_Dropped(_member()))
        return run(model, _batches(4), _recipe(max_steps=4), seed=seed).curves.loss.tolist()

    state = torch.get_rng_state()
    assert losses(1) == losses(1) != losses(2)
    assert torch.equal(torch.get_rng_state(), state)


class _Dropped(nn.Module):
    """A model with dropout on its logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor):
        output = self.inner(inputs)
        return output._replace(logits=nn.functional.dropout(output.logits, 0.5))


def test_a_state_from_before_the_alarm_is_on_disk(tmp_path: Path) -> None:
    watch = Watch(make_monitors(["non-finite"]), Rules())
    checkpoints = Checkpoints(tmp_path / "saved", every=2, keep=2)
    record = run(
        _member(), _batches(12), _recipe(), watch=watch, faults=[_Poison(6)],
        checkpoints=checkpoints,
    )  # fmt: skip
    assert record.checkpoint == str(tmp_path / "saved" / "before-step-7.safetensors")
    with safe_open(record.checkpoint, "pt") as stored:
        assert stored.metadata() == {"step": "4"}
    reference = _member()
    train(reference, _batches(4), _recipe(max_steps=4))
    tensors = load_file(record.checkpoint)
    for name, parameter in reference.named_parameters():
        assert torch.equal(tensors[f"model.{name}"], parameter)
    assert any(name.endswith("exp_avg_sq") for name in tensors)
    unwatched = Checkpoints(tmp_path / "unwatched", every=2, keep=2)
    stopped = run(_member(), _batches(12), _recipe(), faults=[_Poison(6)], checkpoints=unwatched)
    assert stopped.checkpoint == str(tmp_path / "unwatched" / "before-step-7.safetensors")
    quiet = Checkpoints(tmp_path / "quiet")
    assert run(_member(), _batches(12), _recipe(), checkpoints=quiet).checkpoint is None
    assert not (tmp_path / "quiet").exists()


def test_fp16_searches_its_scale_without_a_false_alarm() -> None:
    watch = Watch(make_monitors(["non-finite", "gradient-norm"]), Rules())
    recipe = _recipe(max_steps=8, learning_rate=1e-3, precision="fp16")
    record = run(_member(), _batches(8), recipe, watch=watch)
    assert len(record.curves.loss) == 8
    assert np.isfinite(record.curves.grad_norm).all()
    assert not record.alarms


def test_a_true_divergence_in_fp16_still_ends() -> None:
    recipe = _recipe(precision="fp16")
    record = run(_member(), _batches(12), recipe, faults=[_Poison(2)])
    assert len(record.curves.loss) == 4
    assert record.outcome is Outcome.DIVERGED
    assert hopeless(record.curves.loss.tolist(), record.curves.grad_norm.tolist())


def test_the_rules_know_which_interventions_act():
    watch = Watch(make_monitors(["loss"]), Rules())
    acting = [make_intervention(line) for line in ("qk-clip", "clip=1.0")]
    run(_member(), _batches(12), _recipe(), watch=watch, interventions=acting)
    assert watch.rules.active == {"qk_clip", "clip"}
