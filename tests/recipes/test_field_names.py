"""One table says what people call a field: in Python, on the command line, on axes, in columns."""

from __future__ import annotations

import pytest

from rksp.grid.plan import read_plan
from rksp.ground.errors import InputError
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe
from rksp.recipe_files.columns import canonical

EVERY = [(name, field) for field, flag in flags_of(Recipe).items() for name in flag.names.split()]


@pytest.mark.parametrize(("name", "field"), EVERY)
def test_a_name_means_the_same_field_everywhere(name, field):
    assert canonical(name) == ("recipe", field)
    value = {"schedule": "linear", "optimizer": "lion", "precision": "bf16"}.get(field, 0.5)
    value = 7 if field in ("max_steps", "batch_size", "sequence_length") else value
    said = Recipe.parse({name: value})
    assert said.model_fields_set == {field}
    (cell,) = read_plan({name: [value]}, target="gpt2").cells
    assert getattr(cell.recipe, field) == getattr(said, field)


def test_people_say_batch_wd_bs_and_steps():
    said = {"batch": "batch_size", "bs": "batch_size", "wd": "weight_decay", "steps": "max_steps"}
    assert said.items() <= dict(EVERY).items()
    assert len(EVERY) == len(dict(EVERY))  # no name has two meanings
    (cell,) = read_plan("gpt2", ["batch=8", "wd=0.1", "steps=50"]).cells
    assert (cell.recipe.batch_size, cell.recipe.weight_decay, cell.recipe.max_steps) == (8, 0.1, 50)


def test_a_field_that_is_named_twice_is_refused():
    with pytest.raises(InputError, match="batch_size twice"):
        Recipe.parse({"batch": 8, "batch_size": 16})


def test_a_warm_up_below_one_is_a_share_of_the_run():
    assert Recipe.parse({"warmup_ratio": 0.1, "steps": 200}).warmup_steps == 20
