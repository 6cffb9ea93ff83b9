"""Clipping: each form against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.intervention_steps import TwoParameters

from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.clipping import AdaGC, Clip, ZClip
from rksp.watch.moment import Moment


def _clipped(clip: Intervention, norms: list[tuple[float, float]]) -> np.ndarray:
    """Norms of the two gradients after clipping, step by step; directions must stay."""
    model = TwoParameters()
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
    model = TwoParameters()
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
