"""Back-off, z-loss, spectral smoothing and the table: each against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from support.intervention_steps import RECIPE, TwoParameters, alarm_at, few_batches, take_step
from support.small_zoo import small_member
from torch.distributed.fsdp import fully_shard

from rksp.datasets.batch import task_loss
from rksp.ground.errors import InputError, NotCovered
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.interventions.penalties import ZLoss
from rksp.watch.interventions.recovery import RateBackoff
from rksp.watch.interventions.weights import SpectralSmoothing
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Severity
from rksp.watch.registry import INTERVENTIONS, make_intervention

# Back-off


def _state(model, optimizer):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    parts = getattr(optimizer, "parts", (optimizer,))
    memory = [
        value.clone() if isinstance(value, torch.Tensor) else value
        for part in parts
        for p in part.state
        for _, value in sorted(part.state[p].items())
    ]
    return weights, memory


def _equal(first, second) -> bool:
    return all(torch.equal(first[0][name], second[0][name]) for name in first[0]) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(first[1], second[1], strict=True)
    )


@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd", "lion", "muon"])
def test_rollback_restores_weights_and_optimizer_bit_for_bit(optimizer_name):
    model = small_member()
    optimizer = make_optimizer(model, RECIPE.model_copy(update={"optimizer": optimizer_name}))
    backoff = RateBackoff(every=3, lead=2, hold=4)
    backoff.bind(model, optimizer)
    states = []
    for step, batch in enumerate(few_batches(8)):
        states.append(_state(model, optimizer))
        moment = take_step(model, optimizer, backoff, step, batch)
    before = _state(model, optimizer)
    backoff.on_alarm(alarm_at(7, Severity.WARN), moment)
    assert _equal(_state(model, optimizer), before)  # a warning is not enough
    backoff.on_alarm(alarm_at(7), moment)
    assert not _equal(_state(model, optimizer), before)
    assert _equal(_state(model, optimizer), states[3])  # 6 is less than two steps before 7
    assert backoff.rate_scale == 0.5
    action = backoff.actions[-1]
    assert action.detail == {"rate_scale": 0.5, "undone": 5.0}
    take_step(model, optimizer, backoff, 8, few_batches(9)[8])  # training does not touch the copy
    backoff.on_alarm(alarm_at(10), Moment(step=10, model=model, optimizer=optimizer))
    assert _equal(_state(model, optimizer), states[3])
    assert backoff.rate_scale == 0.25 and backoff.rollbacks == 2


def test_rollback_to_the_start_forgets_the_optimizer():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE)
    backoff = RateBackoff(every=10, lead=5)
    backoff.bind(model, optimizer)
    start = _state(model, optimizer)
    moment = take_step(model, optimizer, backoff, 0, few_batches(1)[0])
    backoff.on_alarm(alarm_at(0), moment)
    assert _equal(_state(model, optimizer), start) and not optimizer.state


def test_rate_recovers_and_alarms_about_what_was_undone_are_ignored():
    model = TwoParameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    backoff = RateBackoff(hold=4, lead=3, every=100, limit=1)
    backoff.bind(model, optimizer)
    moments = [Moment(step=step, model=model, optimizer=optimizer) for step in range(40)]
    backoff.on_alarm(alarm_at(0), moments[0])
    backoff.on_alarm(alarm_at(2), moments[2])
    assert backoff.rollbacks == 1 and backoff.rate_scale == 0.5
    scales = []
    for moment in moments[1:10]:
        backoff.after_update(moment)
        scales.append(backoff.rate_scale)
    assert scales == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    backoff.on_alarm(alarm_at(20), moments[20])
    assert backoff.rollbacks == 1 and backoff.rate_scale == 0.5  # the limit: only the rate


def test_no_copy_of_a_step_whose_loss_was_not_finite():
    model = TwoParameters()
    backoff = RateBackoff(every=1)
    backoff.bind(model, torch.optim.SGD(model.parameters(), lr=1.0))
    backoff.after_update(Moment(step=0, model=model, loss=math.nan))
    assert backoff.actions == []
    backoff.after_update(Moment(step=0, model=model, loss=1.0))
    assert len(backoff.actions) == 1


# Spectral smoothing


def test_smoothing_lowers_the_leading_value_and_nothing_else():
    model = small_member()
    matrix = model.blocks[0].feed_forward.up.weight
    with torch.no_grad():
        matrix.add_(30.0 * torch.outer(torch.ones(64) / 8.0, torch.ones(16) / 4.0))
    others = {name: p.detach().clone() for name, p in model.named_parameters()}
    before = torch.linalg.svdvals(matrix.detach().double())
    smoothing = SpectralSmoothing(ratio=2.5, every=2, rounds=1)
    smoothing.bind(model, None)
    smoothing.after_update(Moment(step=0, model=model))
    assert smoothing.actions == []
    smoothing.after_update(Moment(step=1, model=model))
    after = torch.linalg.svdvals(matrix.detach().double())
    limit = 2.5 * float(before.norm()) / 4.0
    assert float(before[0]) > limit
    assert float(after[0]) == pytest.approx(limit, rel=1e-4)
    assert after[1:].tolist() == pytest.approx(before[1:].tolist(), rel=1e-3)
    changed = [n for n, p in model.named_parameters() if not torch.equal(p, others[n])]
    assert changed == ["blocks.0.feed_forward.up.weight"]
    assert smoothing.actions[0].detail["lowered"] == 1.0


@pytest.mark.parametrize(("rounds", "lowered"), [(1, 1), (4, 2)])
def test_smoothing_lowers_each_leading_value_once_to_the_threshold_it_took(rounds, lowered):
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(64, 16, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64))
    sigma = torch.ones(16, dtype=torch.float64)
    sigma[0], sigma[1] = 10.0, 8.0
    threshold = 1.5 * float(sigma.norm()) / 4.0
    weight = u * sigma @ v.mT
    count, ratio = SpectralSmoothing(ratio=1.5, rounds=rounds)._lower(weight, 0)
    expected = [8.0, threshold] if rounds == 1 else [threshold, threshold]
    found = torch.linalg.svdvals(weight).tolist()
    assert count == lowered and ratio == pytest.approx(10.0 / threshold * 1.5, rel=1e-5)
    assert found == pytest.approx([*expected, *[1.0] * 14], rel=1e-4)


def test_smoothing_on_alarm_acts_on_alarms_alone():
    model = small_member()
    smoothing = SpectralSmoothing(on="alarm", every=5)
    smoothing.bind(model, None)
    smoothing.after_update(Moment(step=4, model=model))
    assert smoothing.actions == []
    for step in (5, 6):
        smoothing.on_alarm(alarm_at(step), Moment(step=step, model=model))
    assert [action.step for action in smoothing.actions] == [5]
    with pytest.raises(NotCovered):
        SpectralSmoothing().bind(TwoParameters(), None)


# z-loss


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_moe", "mixtral"])
def test_z_loss_is_the_mean_square_of_log_z(family):
    model = small_member(family)
    batch = few_batches(1)[0]
    routers = []
    hooks = [
        module.register_forward_hook(lambda m, args, _: routers.append(args[0] @ m.weight.mT))
        for name, module in model.named_modules()
        if name.endswith((".router", ".gate"))
    ]
    logits = model(batch.inputs).logits
    for hook in hooks:
        hook.remove()
    expected = 0.5 * float(logits.logsumexp(-1).square().mean().detach())
    expected += sum(0.25 * float(part.logsumexp(-1).square().mean().detach()) for part in routers)
    assert len(routers) == (0 if family == "zoo_pre_ln" else 2)
    loss = ZLoss(output=0.5, router=0.25)
    loss.bind(model, None)
    moment = Moment(step=0, model=model)
    armed = loss.arm(moment)
    model(batch.inputs)
    for hook in armed:
        hook.remove()
    penalty = loss.penalty(moment)
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    penalty.backward()
    loss.before_update(moment)
    assert loss.actions[0].detail["output_log_z_square"] == pytest.approx(
        logits.logsumexp(-1).square().mean().item()
    )
    assert loss.penalty(moment) is None  # nothing is left for a step that is not armed


def test_z_loss_pulls_log_z_towards_zero():
    means = {}
    for output in (0.0, 0.1):
        model = small_member()
        optimizer = make_optimizer(model, RECIPE)
        loss = ZLoss(output=output, router=1.0)
        loss.bind(model, optimizer) if output else None
        for step, batch in enumerate(few_batches(15)):
            take_step(model, optimizer, loss, step, batch)
        logits = model(few_batches(1, seed=9)[0].inputs).logits.detach()
        means[output] = float(logits.logsumexp(-1).square().mean())
    assert means[0.1] < 0.8 * means[0.0]


def test_z_loss_of_routers_needs_a_router():
    with pytest.raises(NotCovered, match="routers"):
        ZLoss(output=0.0, router=1e-3).bind(small_member(), None)


@pytest.mark.parametrize("text", ["z_loss:output=0.1,router=0.1", "kss:rank=8,weight=5"])
def test_activation_checkpointing_changes_no_gradient(text):
    gradients = []
    for checkpointed in (False, True):
        model = small_member("mixtral", init_std=0.5)
        if checkpointed:
            older = model.gradient_checkpointing_enable  # deprecated in newer releases
            getattr(model, "activation_checkpointing_enable", older)()
        intervention = make_intervention(text)
        intervention.bind(model, None)
        moment = Moment(step=0, model=model)
        hooks = intervention.arm(moment)
        penalties = []
        for batch in few_batches(2):
            loss = task_loss(model, batch)
            penalties.append(intervention.penalty(moment))
            (loss + penalties[-1]).backward()
        for hook in hooks:
            hook.remove()
        assert min(penalty.item() for penalty in penalties) > 0
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)


# The table


def test_lines_are_parsed_and_misspellings_answered():
    kss = make_intervention("kss:form=published,weight=0.1,every=4")
    assert (kss.form, kss.weight, kss.every, kss.rank) == ("published", 0.1, 4, 32)
    assert make_intervention("z-loss:output=0.1").output == 0.1
    assert make_intervention("backoff:severity=warn").severity is Severity.WARN
    for text, message in (
        ("ksss", "did you mean kss"),
        ("nothing_like_it", "The interventions are kss, update_bound, step_clip"),
        ("kss:wieght=1", "did you mean weight"),
        ("kss:form=gelfand", "form"),
        ("clip:norm=big", "norm='big'"),
        ("clip:norm", "key=value"),
        ("clip:norm=0", "norm"),
    ):
        with pytest.raises(InputError, match=message):
            make_intervention(text)


@pytest.mark.parametrize("name", sorted(INTERVENTIONS))
def test_every_intervention_is_made_by_its_name_with_defaults_and_starts_idle(name):
    intervention = make_intervention(name)
    assert intervention.name == name
    assert intervention.actions == [] and intervention.rate_scale == 1.0


# Shards


@pytest.fixture
def one_process():
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "text",
    [
        "clip:norm=0.1",
        "adagc:warmup=1",
        "msign:every=1",
        "qk_clip:tau=0.05",
        "kss:rank=8",
        "spectral_smoothing:every=1,ratio=1.5",
        "z_loss:output=0.1",
        "backoff:every=1,lead=0",
    ],
)
def test_sharded_models_get_what_whole_ones_get(one_process, text):
    results = []
    for is_sharded in (False, True):
        model = small_member("zoo_moe")
        if is_sharded:
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
            fully_shard(model, mesh=mesh)
        optimizer = make_optimizer(model, RECIPE)
        intervention = make_intervention(text)
        intervention.bind(model, optimizer)
        for step, batch in enumerate(few_batches(3)):
            moment = take_step(model, optimizer, intervention, step, batch)
        intervention.on_alarm(alarm_at(1), moment)
        assert intervention.actions
        weights = [p.detach() for p in model.parameters()]
        results.append([w.full_tensor() if is_sharded else w for w in weights])
    for whole, sharded in zip(*results, strict=True):
        assert torch.allclose(whole, sharded, atol=1e-6)
