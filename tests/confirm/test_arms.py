"""Arms: how they are read, which are tried, and what each changes."""

from __future__ import annotations

import pytest

from rksp.confirm.arms import Arm, default_arms, parse_arm, parse_arms
from rksp.ground.errors import InputError
from rksp.recipe import Recipe

SMALL = {"n_embd": "64", "n_layer": "2", "n_head": "2", "vocab_size": "256", "n_positions": "32"}


def test_arms_are_read_and_combined() -> None:
    assert parse_arm("baseline") == Arm(label="baseline")
    assert parse_arm("clip=0.5").interventions == ("clip=0.5",)
    assert parse_arm("clip=0.5").make()[0].norm == 0.5
    both = parse_arm("kss:weight=2+rate=0.3+clip=1")
    assert both.rate == 0.3
    assert [i.name for i in both.make()] == ["kss", "clip"]
    assert both.make()[0] is not both.make()[0]  # a fresh set a run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ksss", "did you mean kss"),
        ("clip=-1", "greater than 0"),
        ("clip:norms=1", "norm"),
        ("rate=0", "factor above zero"),
        ("rate=fast", "factor above zero"),
        ("nothing=1", "no arm"),
    ],
)
def test_arms_that_mean_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_arm(text)


def test_the_default_arm_is_the_rate_to_start_with() -> None:
    recipe = Recipe(learning_rate=1e-2)

    def factors(start_here: float | None) -> list[float]:
        return [arm.rate for arm in default_arms(recipe, start_here)]

    assert factors(2e-3) == [1.0, 0.2, 1.0]
    assert factors(None) == factors(2e-2) == factors(9.5e-3) == [1.0, 0.3, 1.0]  # none is lower


@pytest.mark.parametrize(
    ("steps", "bounds"), [(300, ["update_bound", "step_clip"]), (301, ["update_bound"])]
)
def test_the_runs_own_length_chooses_the_bounds(steps: int, bounds: list[str]) -> None:
    recipe = Recipe(learning_rate=1e-2, max_steps=steps, warmup_steps=0)
    tried = [arm.interventions for arm in default_arms(recipe, 2e-3)[2:]]
    assert tried == [(bound,) for bound in bounds]


def test_an_arm_changes_the_recipe_it_names_and_nothing_else() -> None:
    recipe = Recipe(learning_rate=1e-3, warmup_steps=10, max_steps=100)
    both = parse_arm("warmup=30+rate=0.5").recipe(recipe)
    assert both == recipe.model_copy(update={"warmup_steps": 30, "learning_rate": 5e-4})
    assert parse_arm("beta1=0.8").recipe(recipe).adam_beta1 == 0.8
    muon = parse_arm("optimizer=muon").recipe(recipe)
    assert muon == recipe.model_copy(update={"optimizer": "muon"})
    with pytest.raises(InputError, match="warmup"):
        parse_arm("warmup=soon")
    with pytest.raises(InputError, match="it should be 'adamw'"):
        parse_arm("optimizer=moun")
    with pytest.raises(InputError, match="no arm 'batch'"):
        parse_arm("batch=64")  # all arms share their batches


def test_the_baseline_comes_first_and_nothing_twice() -> None:
    assert [a.label for a in parse_arms(["kss", "baseline"])] == ["baseline", "kss"]
    assert [a.label for a in parse_arms(["kss"])] == ["baseline", "kss"]
    with pytest.raises(InputError, match="twice"):
        parse_arms(["kss", "kss"])
