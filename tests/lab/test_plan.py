"""Plans expand the same way every time, random or grid, and say what is wrong with them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.ladders import TINY, tiny_plan, tiny_spec, write_plan

from lab.ladders.card import shipped_plans
from lab.ladders.grid import LadderGrid, read_ladder_plan
from lab.ladders.lever_fit import shipped_plans as shipped_pairs
from lab.ladders.plan import LadderSpec
from lab.zoo import build_member
from rksp.ground.errors import InputError
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.registry import make_intervention


def test_expansion_depends_on_the_plan_alone() -> None:
    first, again = tiny_plan(ladders=12).expand(), tiny_plan(ladders=12).expand()
    assert [spec.id for spec in first] == [spec.id for spec in again]
    assert len({spec.id for spec in first}) == 12
    assert [s.id for s in first] != [s.id for s in tiny_plan(ladders=12, seed=4).expand()]


def test_a_longer_plan_begins_with_a_shorter() -> None:
    short, long = tiny_plan(ladders=5).expand(), tiny_plan(ladders=20).expand()
    assert long[:5] == short


def test_every_prefix_is_stratified() -> None:
    weights = {"zoo_pre_ln": 1.0, "zoo_no_norm": 2.0, "zoo_moe": 0.5}
    families = [spec.family for spec in tiny_plan(ladders=35, families=weights).expand()]
    for length in range(1, 36):
        for family, weight in weights.items():
            expected = length * weight / 3.5
            assert abs(families[:length].count(family) - expected) <= 1.0


def test_draws_stay_in_their_budget_and_their_lists() -> None:
    budget = 2e8
    plan = tiny_plan(
        ladders=30, widths=[32, 64, 128], depths=[2, 4, 8], steps=[40], budgets=[budget]
    )
    for spec in plan.expand():
        recipe, shape = spec.recipe, spec.shape
        block = 12 * shape["num_hidden_layers"] * shape["hidden_size"] ** 2
        assert block * recipe.batch_size * recipe.sequence_length * recipe.max_steps <= budget
        assert shape["hidden_size"] in (32, 64, 128)
        assert shape["hidden_size"] % shape["num_attention_heads"] == 0
        assert shape["max_position_embeddings"] == recipe.sequence_length
        assert recipe.learning_rate is None  # the rate is the ladder's


def test_a_budget_that_nothing_fits_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(InputError, match="within the budget 1e\\+03"):
        tiny_plan(budgets=[1e3]).expand()


def test_rates_span_three_and_a_half_decades_by_default() -> None:
    spec = tiny_plan().expand()[0]
    rates = spec.rates
    assert len(rates) == 8
    assert math.log10(rates[-1] / rates[0]) == pytest.approx(3.5, abs=1e-4)
    assert rates == sorted(rates)
    assert all(float(f"{rate:.6g}") == rate for rate in rates)


def test_the_id_is_the_content() -> None:
    assert tiny_spec().id == tiny_spec().id
    assert tiny_spec().id != tiny_spec(seed=6).id
    assert tiny_spec().id != tiny_spec(first_rate=1.1e-4).id
    assert LadderSpec.model_validate_json(tiny_spec().model_dump_json()).id == tiny_spec().id


def test_the_shipped_plans_can_be_read() -> None:
    plans = {plan.name: plan for plan in shipped_plans()}
    assert {"first", "recall"} <= set(plans)
    recall = plans["recall"].expand()
    assert len({spec.id for spec in recall}) == len(recall) == 18
    assert {spec.seed for spec in recall[:6]} == {42}  # a plan cut short has all norms
    assert len({spec.family for spec in recall[:6]}) == 6
    assert {spec.task for spec in recall} == {"recall"}


def test_every_intervention_of_the_shipped_plans_finds_its_parts_in_its_model() -> None:
    seen = set()
    for plan in shipped_pairs():
        for spec in (pair.changed for pair in plan.pairs() if pair.changed.interventions):
            lines = tuple(line.partition(":")[0] for line in spec.interventions)
            if (spec.family, lines) in seen:
                continue
            seen.add((spec.family, lines))
            model = build_member(spec.family, spec.shape, seed=1)
            optimizer = make_optimizer(model, spec.recipe.model_copy(update={"learning_rate": 1.0}))
            for line in spec.interventions:
                make_intervention(line).bind(model, optimizer)
    assert len(seen) > 50


GRID = {
    "name": "grid",
    "base": tiny_spec().model_dump(mode="json"),
    "grid": {"seed": [1, 2], "recipe.warmup_steps": [0, 2], "family": ["zoo_pre_ln", "zoo_kan"]},
}


def test_a_grid_is_every_combination_first_list_slowest(tmp_path: Path) -> None:
    plan = read_ladder_plan(write_plan(tmp_path, GRID))
    assert isinstance(plan, LadderGrid)
    found = [(s.seed, s.recipe.warmup_steps, s.family) for s in plan.expand()]
    assert len(set(found)) == 8
    assert found[:3] == [(1, 0, "zoo_pre_ln"), (1, 0, "zoo_kan"), (1, 2, "zoo_pre_ln")]
    assert found[4][0] == 2
    assert all(s.recipe.max_steps == 4 for s in plan.expand())  # the base holds elsewhere


def test_a_random_plan_reads_as_before(tmp_path: Path) -> None:
    path = write_plan(tmp_path, TINY)
    assert read_ladder_plan(path) == tiny_plan()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({**TINY, "families": {"zoo_preln": 1}}, "zoo_pre_ln"),
        ({**TINY, "lader": 3}, "not valid"),
        ({**TINY, "ladders": 0}, "not valid"),
        ({**GRID, "grid": {"family": ["zoo_preln"]}}, "zoo_pre_ln"),
        ({**GRID, "grid": {"sed": [1]}}, "not valid"),
        ({**GRID, "grid": {"recipe.warmup": [1]}}, "not valid"),
        ([1, 2], "not valid"),
    ],
)
def test_a_bad_plan_is_one_sentence(tmp_path: Path, document: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_ladder_plan(write_plan(tmp_path, document))
    assert "\n" not in str(caught.value)


def test_a_missing_plan_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_ladder_plan(tmp_path / "nowhere.yaml")


def test_a_later_field_of_a_recipe_renames_no_stored_ladder() -> None:
    plain = tiny_spec()

    def renamed(**change: object) -> bool:
        recipe = plain.recipe.model_copy(update=change)
        return plain.model_copy(update={"recipe": recipe}).id != plain.id

    assert not renamed(objective="lm") and not renamed(z_loss=None)
    assert renamed(z_loss=1e-4) and renamed(weight_decay=0.3)
