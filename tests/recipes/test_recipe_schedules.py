"""The schedules of a recipe against closed forms, and torch's and transformers' own."""

from __future__ import annotations

import math

import pytest

from rksp.ground.errors import InputError
from rksp.recipe import Recipe


def rates(**fields) -> list[float]:
    recipe = Recipe(learning_rate=1.0, **fields)
    return [recipe.learning_rate_at(step) for step in range(recipe.max_steps + 1)]


def test_wsd_is_flat_and_falls_at_the_end():
    found = rates(schedule="wsd", warmup_steps=10, max_steps=100, decay_steps=20, min_lr_ratio=0.1)
    assert found[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert found[10:81] == [1.0] * 71
    assert found[90] == pytest.approx(0.1 + 0.9 * 0.5)
    assert found[100] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("shape", "half"),
    [
        ("linear", 0.5),
        ("cosine", 0.5),
        ("sqrt", 1 - math.sqrt(0.5)),
        ("exponential", math.exp(-0.5)),
    ],
)
def test_the_fall_of_wsd_has_the_shape_asked_for(shape, half):
    found = rates(schedule="wsd", max_steps=100, decay_steps=50, decay_shape=shape, min_lr_ratio=0)
    assert found[50] == pytest.approx(1.0)
    assert found[75] == pytest.approx(half)


def test_wsd_falls_over_a_tenth_unless_told():
    found = rates(schedule="wsd", max_steps=100, min_lr_ratio=0)
    assert (found[90], found[95]) == (1.0, pytest.approx(0.5))


def test_inverse_square_root_is_that_of_attention_is_all_you_need():
    found = rates(schedule="inverse_sqrt", warmup_steps=16, max_steps=400, min_lr_ratio=0)
    assert found[16] == 1.0
    assert found[64] == pytest.approx(math.sqrt(16 / 64))
    assert found[400] == pytest.approx(math.sqrt(16 / 400))
    assert min(rates(schedule="inverse_sqrt", warmup_steps=1, max_steps=400)) == 0.1  # the floor


def test_polynomial_of_power_two_is_square():
    found = rates(schedule="polynomial", max_steps=10, decay_power=2.0, min_lr_ratio=0)
    assert found == pytest.approx([(1 - i / 10) ** 2 for i in range(11)])
    linear = rates(schedule="linear", max_steps=10, min_lr_ratio=0.2)
    assert rates(schedule="polynomial", max_steps=10, min_lr_ratio=0.2) == pytest.approx(linear)


def test_exponential_reaches_its_floor():
    found = rates(schedule="exponential", max_steps=10, min_lr_ratio=0.01)
    assert found == pytest.approx([0.01 ** (i / 10) for i in range(11)])


def test_steps_multiply_at_each_milestone():
    found = rates(schedule="step", max_steps=10, decay_milestones=(3, 6), decay_factor=0.5,
                  min_lr_ratio=0)  # fmt: skip
    assert found == [1.0] * 3 + [0.5] * 3 + [0.25] * 5


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_fall_can_end_before_the_run(schedule):
    found = rates(schedule=schedule, warmup_steps=10, max_steps=100, decay_steps=40)
    whole = rates(schedule=schedule, warmup_steps=10, max_steps=50)
    assert found[:51] == pytest.approx(whole)
    assert found[50:] == pytest.approx([0.1] * 51)


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("get_linear_schedule_with_warmup", {"schedule": "linear"}, {}),
        ("get_cosine_schedule_with_warmup", {"schedule": "cosine"}, {}),
        ("get_inverse_sqrt_schedule", {"schedule": "inverse_sqrt"}, {"num_training_steps": None}),
        (
            "get_wsd_schedule",
            {"schedule": "wsd", "decay_steps": 30, "decay_shape": "cosine"},
            {"num_decay_steps": 30, "decay_type": "cosine"},
        ),
    ],
)
def test_transformers_agrees_after_the_warm_up(name, ours, theirs):
    """Ours warms up to step w, theirs too, though theirs starts at zero."""
    import torch
    from transformers import optimization

    weight = torch.nn.Parameter(torch.zeros(1))
    settings = {"num_warmup_steps": 10, "num_training_steps": 100} | theirs
    settings = {key: value for key, value in settings.items() if value is not None}
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = getattr(optimization, name)(optimizer, **settings)
    factor = schedule.lr_lambdas[0]
    found = rates(warmup_steps=10, max_steps=100, min_lr_ratio=0, **ours)
    assert found[10:100] == pytest.approx([factor(step) for step in range(10, 100)], abs=1e-12)


def test_the_late_share_is_the_mean_of_the_last_tenth():
    wsd = lambda steps: Recipe(schedule="wsd", decay_steps=steps, min_lr_ratio=0, max_steps=4000)
    assert Recipe(schedule="constant").late_share == pytest.approx(1.0)
    assert wsd(400).late_share == pytest.approx(0.5)
    assert wsd(800).late_share == pytest.approx(0.25)
    assert Recipe(schedule="linear", min_lr_ratio=0).late_share == pytest.approx(0.05, rel=0.02)
    rising = Recipe(schedule="cosine", max_steps=1000, warmup_steps=2000)
    assert rising.late_share == pytest.approx(0.975)


def test_the_late_share_is_continuous_in_the_steps_of_the_decay():
    shares = [
        Recipe(schedule="wsd", decay_steps=steps, min_lr_ratio=0.1, max_steps=4000).late_share
        for steps in (1, 2, 5, 10, 50, 100, 200, 400, 1000)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1.0, abs=0.003)
    assert shares[3] == pytest.approx(1.0, abs=0.02)


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="schedule"):
        Recipe.parse({"schedule": "zigzag"})
    with pytest.raises(InputError, match="peft"):
        Recipe.parse({"peft": "glue"})


def test_a_shortened_run_has_the_whole_schedule():
    recipe = Recipe(
        learning_rate=1.0, schedule="wsd", warmup_steps=100, max_steps=1000, decay_steps=300,
        batch_ramp=((0, 8), (500, 32)),
    )  # fmt: skip
    short = recipe.shortened(100)
    assert (short.warmup_steps, short.decay_steps) == (10, 30)
    assert short.batch_ramp == ((0, 8), (50, 32))
    assert short.learning_rate_at(85) == pytest.approx(recipe.learning_rate_at(850))
