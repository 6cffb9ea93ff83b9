"""Clipping, back-off, z-loss, spectral smoothing and the table: each against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.small_zoo import small_member
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from rksp.batch import task_loss
from rksp.datasets.tasks import associative_recall
from rksp.ground.errors import InputError, NotCovered
from rksp.models.anatomy.attention_calls import watching_attention
from rksp.optimizers import make_optimizer
from rksp.recipe import Recipe
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.clipping import AdaGC, Clip, ZClip
from rksp.watch.interventions.qk_clip import QKClip
from rksp.watch.interventions.qk_norm import QKNorm
from rksp.watch.interventions.rate_backoff import RateBackoff
from rksp.watch.interventions.registry import INTERVENTIONS, make_intervention
from rksp.watch.interventions.spectral_smoothing import SpectralSmoothing
from rksp.watch.interventions.z_loss import ZLoss
from rksp.watch.moment import Moment
from rksp.watch.monitors.alarm import Alarm, Severity

RECIPE = Recipe(learning_rate=1e-2, schedule="constant", max_steps=50, max_grad_norm=None)


def _batches(count: int, seed: int = 1):
    return associative_recall(length=32, vocab=64).batches(count, 4, seed=seed)


def _alarm(step: int, severity: Severity = Severity.CRITICAL) -> Alarm:
    return Alarm(
        monitor="test",
        quantity="loss",
        layer="",
        step=step,
        severity=severity,
        rule="by hand",
        value=1.0,
        baseline=None,
    )


def _step(model, optimizer, intervention: Intervention, step: int, batch) -> Moment:
    """One step of the contract's life, without an alarm."""
    moment = Moment(step=step, model=model, optimizer=optimizer)
    hooks = intervention.arm(moment)
    loss = task_loss(model, batch)
    extra = intervention.penalty(moment)
    (loss if extra is None else loss + extra).backward()
    for hook in hooks:
        hook.remove()
    moment.loss = loss.item()
    intervention.before_update(moment)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    intervention.after_update(moment)
    return moment


# Clipping


class _Two(nn.Module):
    """Two parameters whose gradients the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(4, dtype=torch.float64))


def _clipped(clip: Intervention, norms: list[tuple[float, float]]) -> np.ndarray:
    """Norms of the two gradients after clipping, step by step; directions must stay."""
    model = _Two()
    after = []
    for step, pair in enumerate(norms):
        for parameter, norm in zip(model.parameters(), pair, strict=True):
            parameter.grad = torch.ones_like(parameter) * norm / math.sqrt(parameter.numel())
        clip.before_update(Moment(step=step, model=model))
        after.append([float(p.grad.norm()) for p in model.parameters()])
        assert all(float(p.grad.std()) < 1e-9 for p in model.parameters())
    return np.array(after)


def _norm_series(steps: int, seed: int = 0) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    series = rng.lognormal(0.0, 0.3, (steps, 2))
    series[steps // 2] *= 20.0
    return [tuple(row) for row in series]


def test_fixed_clip_scales_all_gradients_to_the_limit_and_small_ones_not_at_all():
    clip = Clip(norm=2.0)
    after = _clipped(clip, [(3.0, 4.0), (0.3, 0.4)])
    assert after[0] == pytest.approx([1.2, 1.6], rel=1e-6)
    assert after[1].tolist() == pytest.approx([0.3, 0.4], rel=1e-12)
    (action,) = clip.actions
    assert action.step == 0 and action.detail == pytest.approx({"norm": 5.0, "limit": 2.0})


def test_zclip_against_its_recursion():
    series, threshold, alpha, warmup = _norm_series(60), 2.5, 0.97, 10
    clip = ZClip(threshold=threshold, alpha=alpha, warmup=warmup, norm=None)
    after = np.hypot(*_clipped(clip, series).T)
    norms = [math.hypot(*pair) for pair in series]
    mean, variance = np.mean(norms[:warmup]), np.var(norms[:warmup])
    expected = norms[:warmup]
    for norm in norms[warmup:]:
        z = (norm - mean) / (math.sqrt(variance) + 1e-6)
        kept = mean + threshold * math.sqrt(variance) / (z / threshold) if z > threshold else norm
        mean = alpha * mean + (1 - alpha) * kept
        variance = alpha * variance + (1 - alpha) * (kept - mean) ** 2
        expected.append(kept)
    assert after == pytest.approx(expected, rel=1e-5)
    assert 30 in [action.step for action in clip.actions]
    assert len(clip.actions) < 10  # a calm series is left alone


def test_zclip_keeps_its_fixed_limit_and_survives_a_norm_that_is_not_finite():
    clip = ZClip(norm=0.5, warmup=2)
    after = _clipped(clip, [(3.0, 4.0), (3.0, 4.0), (0.03, 0.04)])
    assert np.hypot(*after.T) == pytest.approx([0.5, 0.5, 0.05], rel=1e-5)
    model = _Two()
    model.first.grad = torch.full_like(model.first, torch.inf)
    for kind in (clip, Clip(), AdaGC(warmup=0)):
        actions = len(kind.actions)
        kind.before_update(Moment(step=3, model=model))
        assert len(kind.actions) == actions and model.first.grad.isinf().all()
    assert np.hypot(*_clipped(clip, [(0.03, 0.04)]).T) == pytest.approx([0.05], rel=1e-5)


def test_adagc_against_its_recursion():
    series, ratio, beta, warmup = _norm_series(40, seed=1), 1.05, 0.9, 6
    after = _clipped(AdaGC(ratio=ratio, beta=beta, warmup=warmup, norm=1.0), series)
    usual = [math.inf, math.inf]
    for step, pair in enumerate(series):
        for index, norm in enumerate(pair):
            if step < warmup:
                kept = norm * min(1.0, 1.0 / math.hypot(*pair))
                usual[index] = min(usual[index], kept)
            else:
                kept = norm * min(1.0, ratio * usual[index] / norm)
                usual[index] = beta * usual[index] + (1 - beta) * kept
            assert after[step, index] == pytest.approx(kept, rel=1e-5)


def test_adagc_does_not_freeze_a_tensor_that_had_no_gradient():
    clip = AdaGC(warmup=2)
    after = _clipped(clip, [(0.0, 0.5), (0.0, 0.5), (0.2, 0.5), (0.2, 0.5)])
    assert after[2:, 0] == pytest.approx([0.2, 0.2])


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
    for step, batch in enumerate(_batches(8)):
        states.append(_state(model, optimizer))
        moment = _step(model, optimizer, backoff, step, batch)
    before = _state(model, optimizer)
    backoff.on_alarm(_alarm(7, Severity.WARN), moment)
    assert _equal(_state(model, optimizer), before)  # a warning is not enough
    backoff.on_alarm(_alarm(7), moment)
    assert not _equal(_state(model, optimizer), before)
    assert _equal(_state(model, optimizer), states[3])  # 6 is less than two steps before 7
    assert backoff.rate_scale == 0.5
    action = backoff.actions[-1]
    assert action.detail == {"rate_scale": 0.5, "undone": 5.0}
    _step(model, optimizer, backoff, 8, _batches(9)[8])  # training does not touch the copy
    backoff.on_alarm(_alarm(10), Moment(step=10, model=model, optimizer=optimizer))
    assert _equal(_state(model, optimizer), states[3])
    assert backoff.rate_scale == 0.25 and backoff.rollbacks == 2


def test_rollback_to_the_start_forgets_the_optimizer():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE)
    backoff = RateBackoff(every=10, lead=5)
    backoff.bind(model, optimizer)
    start = _state(model, optimizer)
    moment = _step(model, optimizer, backoff, 0, _batches(1)[0])
    backoff.on_alarm(_alarm(0), moment)
    assert _equal(_state(model, optimizer), start) and not optimizer.state


def test_rate_recovers_and_alarms_about_what_was_undone_are_ignored():
    model = _Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    backoff = RateBackoff(hold=4, lead=3, every=100, limit=1)
    backoff.bind(model, optimizer)
    moments = [Moment(step=step, model=model, optimizer=optimizer) for step in range(40)]
    backoff.on_alarm(_alarm(0), moments[0])
    backoff.on_alarm(_alarm(2), moments[2])
    assert backoff.rollbacks == 1 and backoff.rate_scale == 0.5
    scales = []
    for moment in moments[1:10]:
        backoff.after_update(moment)
        scales.append(backoff.rate_scale)
    assert scales == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0])
    backoff.on_alarm(_alarm(20), moments[20])
    assert backoff.rollbacks == 1 and backoff.rate_scale == 0.5  # the limit: only the rate


def test_no_copy_of_a_step_whose_loss_was_not_finite():
    model = _Two()
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
        smoothing.on_alarm(_alarm(step), Moment(step=step, model=model))
    assert [action.step for action in smoothing.actions] == [5]
    with pytest.raises(NotCovered):
        SpectralSmoothing().bind(_Two(), None)


# z-loss


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_moe", "mixtral"])
def test_z_loss_is_the_mean_square_of_log_z(family):
    model = small_member(family)
    batch = _batches(1)[0]
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
        for step, batch in enumerate(_batches(15)):
            _step(model, optimizer, loss, step, batch)
        logits = model(_batches(1, seed=9)[0].inputs).logits.detach()
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
        for batch in _batches(2):
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
        ("nothing_like_it", "The interventions are kss, msign"),
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


# QK-clip and QK-norm


def _logits(model: nn.Module, batch) -> list[torch.Tensor]:
    """Largest visible logit of each head, layer by layer, from what attention was called with."""
    found = []

    def look(call):
        key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
        scores = call.query.double() @ key.double().mT * call.factor
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(hidden, -torch.inf).amax((0, 2, 3)))

    with torch.no_grad(), watching_attention(model, look):
        model(batch.inputs)
    return found


def _watched(clip: QKClip, model: nn.Module, batch) -> None:
    """A step of the contract's life without any change of the weights by others."""
    moment = Moment(step=0, model=model)
    armed = clip.arm(moment)
    model(batch.inputs)
    for handle in armed:
        handle.remove()
    clip.after_update(moment)


FAMILIES_OF_ATTENTION = ["zoo_pre_ln", "gpt2", "llama", "gpt_neox", "opt_post"]


@pytest.mark.parametrize("family", FAMILIES_OF_ATTENTION)
def test_clip_brings_the_largest_logit_to_tau_and_other_heads_stay(family):
    model = small_member(family, init_std=0.5)
    with torch.no_grad():  # OPT and GPT-2 start with biases of zero
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=torch.Generator().manual_seed(0), std=0.3)
    batch = _batches(1)[0]
    before = _logits(model, batch)
    tau = float(torch.cat(before[:1]).median())
    clip = QKClip(tau=tau)
    clip.bind(model, None)
    others = {n: p.detach().clone() for n, p in model.named_parameters()}
    _watched(clip, model, batch)
    after = _logits(model, batch)
    assert (before[0] > tau).any() and (before[0] <= tau).any()
    assert after[0].tolist() == pytest.approx(before[0].clamp(max=tau).tolist(), rel=1e-4)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, others[n])}
    assert changed and all("attn" in n or "attention" in n for n in changed)
    assert clip.actions[0].detail["largest"] == pytest.approx(
        float(torch.cat(before).max()), rel=1e-4
    )


def test_clip_scales_values_and_outputs_not_and_leaves_small_logits_alone():
    model, batch = small_member(init_std=0.5), _batches(1)[0]
    attention = model.blocks[0].attention
    kept = attention.qkv.weight[32:].detach().clone()
    for tau, count in ((1e6, 0), (1e-3, 1)):
        clip = QKClip(tau=tau)
        clip.bind(model, None)
        _watched(clip, model, batch)
        assert len(clip.actions) == count
    assert torch.equal(attention.qkv.weight[32:], kept)
    assert clip.actions[0].detail["heads"] == 8


def test_clip_of_latent_attention_spares_the_shared_rotary_key():
    torch.manual_seed(0)
    config = DeepseekV3Config(
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64},
        **{"num_key_value_heads": 4, "intermediate_size": 16, "first_k_dense_replace": 1},
        **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2},
        **{"v_head_dim": 4, "initializer_range": 0.5, "max_position_embeddings": 32},
        **{"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0},
    )
    model, batch = DeepseekV3ForCausalLM(config), _batches(1)[0]
    before = _logits(model, batch)[0]
    attention = model.model.layers[0].self_attn
    kept = attention.kv_a_proj_with_mqa.weight.detach().clone()
    tau = float(before.median())
    clip = QKClip(tau=tau)
    clip.bind(model, None)
    _watched(clip, model, batch)
    after = _logits(model, batch)[0]
    assert after.tolist() == pytest.approx(before.clamp(max=tau).tolist(), rel=1e-4)
    assert torch.equal(attention.kv_a_proj_with_mqa.weight, kept)
    with pytest.raises(NotCovered, match="latent"):
        QKNorm().bind(model, None)


def test_clip_in_a_run_keeps_logits_near_tau():
    largest = {}
    for tau in (1e6, 2.0):
        model = small_member(init_std=0.3)
        optimizer = make_optimizer(model, RECIPE.model_copy(update={"learning_rate": 0.05}))
        clip = QKClip(tau=tau)
        clip.bind(model, optimizer)
        for step, batch in enumerate(_batches(12)):
            _step(model, optimizer, clip, step, batch)
        largest[tau] = float(torch.cat(_logits(model, _batches(12)[11])).max())
    assert largest[1e6] > 10.0 > 4.0 > largest[2.0]


@pytest.mark.parametrize("family", FAMILIES_OF_ATTENTION)
def test_norm_makes_every_head_unit_and_trains_its_gains(family):
    model = small_member(family, init_std=0.5)
    optimizer = make_optimizer(model, RECIPE)
    norm = QKNorm()
    norm.bind(model, optimizer)
    batch = _batches(1)[0]
    sizes, query_scale = [], 0.5

    def look(call):
        query = call.query / (query_scale if family == "opt_post" else 1.0)  # OPT scales ahead
        sizes.append([float(t.square().mean(-1).sub(1).abs().max()) for t in (query, call.key)])

    with torch.no_grad(), watching_attention(model, look):
        model(batch.inputs)
    assert np.array(sizes).shape == (2, 2) and np.max(sizes) < 1e-3
    gains = {n: p for n, p in model.named_parameters() if n.endswith("norm_gain")}
    assert len(gains) == 4
    _step(model, optimizer, norm, 0, batch)
    assert all(float((p - 1).abs().max().detach()) > 1e-3 for p in gains.values())


def test_inserted_norm_equals_the_architecture_that_has_it():
    with_norm = small_member("zoo_qk_norm")
    without = small_member("zoo_rmsnorm")
    without.load_state_dict(with_norm.state_dict(), strict=False)
    QKNorm(epsilon=torch.finfo(torch.float32).eps).bind(without, None)
    batch = _batches(1)[0]
    expected, found = (m(batch.inputs).logits.detach() for m in (with_norm, without))
    assert torch.allclose(expected, found, atol=1e-5)


def test_norm_joins_the_optimizer_of_a_pair():
    model = small_member()
    optimizer = make_optimizer(model, RECIPE.model_copy(update={"optimizer": "muon"}))
    QKNorm().bind(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert all(group["lr"] == 0.0 for part in optimizer.parts for group in part.param_groups)


def test_models_that_normalize_or_do_not_attend_are_not_covered():
    for kind in (QKClip, QKNorm):
        with pytest.raises(NotCovered, match=r"QK-norm|normalizes"):
            kind().bind(small_member("zoo_qk_norm"), None)
        with pytest.raises(NotCovered, match=r"found no query|no known attention"):
            kind().bind(_Two(), None)
    model = small_member("llama")
    model.config._attn_implementation = "eager"
    with pytest.raises(NotCovered, match="sdpa"):
        QKClip().bind(model, None)


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
        for step, batch in enumerate(_batches(3)):
            moment = _step(model, optimizer, intervention, step, batch)
        intervention.on_alarm(_alarm(1), moment)
        assert intervention.actions
        weights = [p.detach() for p in model.parameters()]
        results.append([w.full_tensor() if is_sharded else w for w in weights])
    for whole, sharded in zip(*results, strict=True):
        assert torch.allclose(whole, sharded, atol=1e-6)
