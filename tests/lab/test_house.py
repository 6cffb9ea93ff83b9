"""`python -m lab house`: rooms, arrows and the walk, on planted houses and on our own."""

from __future__ import annotations

from graphlib import CycleError

import pytest

from lab.house import arrows, carries, climbs, code_lines, floors, keyed, modules, untyped, walk
from rksp.recipe import Recipe


def test_a_floor_is_the_longest_chain_below() -> None:
    assert floors({"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set()}) == {
        "ground": 1,
        "middle": 2,
        "top": 3,
    }
    with pytest.raises(CycleError):
        floors({"one": {"other"}, "other": {"one"}})


def test_a_step_to_a_higher_floor_is_a_climb() -> None:
    floor = {"low": 1, "high": 2}
    stays = ["rksp.high:a", "rksp.low.x:b", "rksp.low.y:c", "rksp.high:d", "rksp.low.x:e"]
    assert climbs(stays, floor) == 1
    assert climbs(stays[:3], floor) == 0


def test_our_house_stands_on_its_ground_and_holds_nothing_of_the_lab() -> None:
    floor = floors(arrows())
    assert floor["ground"] == 1
    assert floor["rksp"] >= floor["cli"] > floor["models"] > floor["recipe"]
    assert "rksp.cli.app" in modules()
    assert [name for name in modules() if "lab" in name.split(".")] == []


def test_a_rate_walks_from_the_score_to_the_report() -> None:
    stays = walk()
    assert stays[0] == "rksp.calls.score:score"
    assert "rksp.assessment.pipeline:score_report" in stays
    assert len(stays) > len(set(stays))  # a function that is called again is a stay again


def test_a_container_carries_the_rate_and_another_one_does_not() -> None:
    recipe = Recipe(learning_rate=6.1234e-4)
    assert carries(recipe, 6.1234e-4) and carries((recipe,), 6.1234e-4)
    assert not carries(((recipe,),), 6.1234e-4) and not carries(recipe, 1e-3)


def test_code_is_what_is_left_without_docstrings_blanks_comments_and_imports() -> None:
    head = '"""Doc."""\n\nimport os\n\n\n'
    text = head + 'def f():\n    """Doc.\n\n    More.\n    """\n    # why\n    return os\n'
    text = head + 'def f():\n    """Doc.\n\n    More.\n    """\n    # why\n    return os\n'
    assert code_lines(text) == 2


def test_a_spelled_key_is_an_access_and_a_display_or_another_name_is_none() -> None:
    assert keyed('row["rate"] + row.get("rate") + f(x)["a"]') == 3
    assert keyed('["rate"], {"rate": 1}, row[name], row.get(name)') == 0
    assert untyped("x: Any = 1\ny: Anyone\nz: list[Any] | Any\n") == 2
