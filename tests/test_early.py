"""The bound from the first steps: exact where they tell all, poor where they tell nothing."""

from __future__ import annotations

import numpy as np

from rksp.lab.early import early_edge_errors, twin_edge_errors
from rksp.lab.ladder import LadderRun
from rksp.lab.plan import LadderSpec
from rksp.outcome import Curves

RATES = tuple(float(f"{10 ** (k / 4 - 4):.4g}") for k in range(13))
STEPS = 40


def _ladder(index: int, edge: int, *, shows_at: int, warmup: int = 0) -> LadderRun:
    """Runs that fall to 1 nat; from rate `edge` on, they jump to 3 at step `shows_at`."""
    spec = LadderSpec.model_validate(
        {
            "family": "zoo_pre_ln",
            "shape": {"hidden_size": 16},
            "task": "recall",
            "task_options": {"length": 8, "vocab": 32, "pairs": 2},
            "recipe": {"max_steps": STEPS, "warmup_steps": warmup},
            "seed": index,
            "first_rate": 1e-4,
        }
    )
    curves = []
    for k in range(len(RATES)):
        loss = np.linspace(2.77, 1.0, STEPS) - 0.01 * k
        loss[shows_at:] += 2.0 * (k >= edge)
        curves.append(Curves(loss=loss, grad_norm=np.ones(STEPS), planned_steps=STEPS))
    return LadderRun(spec=spec, rates=RATES, curves=tuple(curves), seconds=(0.0,) * len(RATES))


def test_steps_that_show_the_edge_place_it_and_steps_before_do_not() -> None:
    edges = np.random.default_rng(0).integers(3, 12, 40)
    ladders = [_ladder(i, int(edge), shows_at=10) for i, edge in enumerate(edges)]
    before, after = early_edge_errors(ladders, steps=(8, 20))
    assert before.ladders == after.ladders == 40
    assert after.median < 0.05
    assert before.median > 0.3


def test_ladders_that_learned_nothing_are_left_out() -> None:
    edges = np.random.default_rng(0).integers(3, 12, 30)
    ladders = [_ladder(i, int(edge), shows_at=10) for i, edge in enumerate(edges)]
    flat = [
        LadderRun(
            spec=ladders[0].spec,
            rates=RATES,
            curves=tuple(
                Curves(loss=np.full(STEPS, 2.77), grad_norm=np.ones(STEPS), planned_steps=STEPS)
                for _ in RATES
            ),
            seconds=(0.0,) * len(RATES),
        )
    ]
    (row,) = early_edge_errors(ladders + flat, steps=(20,))
    assert row.ladders == 30


def test_a_twin_is_the_same_ladder_under_another_seed() -> None:
    pair = [_ladder(0, 5, shows_at=10), _ladder(1, 7, shows_at=10)]  # two quarter decades apart
    other = _ladder(2, 9, shows_at=10, warmup=3)
    row = twin_edge_errors([*pair, other])
    assert row.ladders == 2
    assert abs(row.median - 0.5) < 1e-3
    assert row.share_low == 0.5
    assert twin_edge_errors([pair[0], other]) is None
