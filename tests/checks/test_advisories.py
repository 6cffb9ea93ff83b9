"""Advisories: their data, the recipe that each matches, its near miss, and the levels."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from urllib.parse import urlsplit

import pytest
from packaging.specifiers import SpecifierSet
from support.places import TESTS

from lab.advisories import matches
from rksp.checks.advisories import (
    ESTABLISHED,
    Advisory,
    advisories,
    answer,
    audit,
    find_advisory,
    gpu_facts,
    model_facts,
)
from rksp.checks.environment import Environment, Release, name_of
from rksp.documents.finding import Level
from rksp.ground.errors import InputError
from rksp.recipe_files.said.facts import Fact

DAY = datetime.date(2026, 11, 24)
RECIPES = {
    row["id"]: row
    for row in map(json.loads, (TESTS / "checks/advisory_recipes.jsonl").read_text().splitlines())
}


def environment(**versions: str) -> Environment:
    releases = {name_of(name): Release(version) for name, version in versions.items()}
    return Environment(releases=releases, is_whole=False)


def advisory(**changes) -> Advisory:
    about = {
        "source": "a test",
        "when": {"packing": True},
        "symptom": "nan",
        "established": "maintainer confirmed",
        "range_is_certain": True,
        "fix": "Upgrade.",
    } | changes.pop("about", {})
    fields = {
        "id": "RKSA-2026-9999",
        "summary": "A fault.",
        "severity": Level.ERROR,
        "affected": [{"package": "trl", "range": ">=1.0,<1.2"}],
        "references": ["https://example.org/1"],
        "modified": DAY,
        "database_specific": about,
    }
    return Advisory.model_validate(fields | changes)


def found(one: Advisory, where: Environment, facts: dict | None = None, today=DAY):
    known = {key: Fact((value,)) for key, value in (facts or {"packing": True}).items()}
    return audit(where, known, today, [one])


def level(one: Advisory, where: Environment, facts: dict | None = None, today=DAY) -> str:
    (finding,) = found(one, where, facts, today).findings
    return finding.level.value


@pytest.mark.parametrize("one", advisories(), ids=lambda one: one.id)
def test_an_advisory_matches_its_recipe_and_not_its_near_miss(one):
    recipe = RECIPES[one.id]
    assert matches(one, recipe, is_near=False)
    assert not matches(one, recipe, is_near=True)
    nothing = {**recipe, "facts": {}}
    assert not matches(one, nothing, is_near=False) or not one.database_specific.when


def test_the_data_keep_to_their_schema():
    all_ids = [one.id for one in advisories()]
    assert all_ids == sorted(set(all_ids))
    assert RECIPES.keys() == set(all_ids)
    same = Counter((one.affected, json.dumps(one.database_specific.when)) for one in advisories())
    assert [key for key, count in same.items() if count > 1] == []
    for one in advisories():
        assert one.summary.endswith(".") and one.database_specific.fix.endswith(".")
        assert one.affected or one.database_specific.when
        for part in one.affected:
            assert bool(part.range) != bool(part.versions)
            SpecifierSet(part.range)
            assert name_of(part.package) == part.package.replace("_", "-")
        for link in one.references:
            assert urlsplit(link).scheme == "https" and urlsplit(link).path
        for range_ in one.database_specific.upgrade.values():
            SpecifierSet(range_)


def test_the_table_of_conditions_is_the_one_of_facts():
    when = {"packing": True, "any": [{"batch_size": ">1"}, {"precision": ["bf16", None]}]}
    facts = {"packing": Fact((True,)), "batch_size": Fact((1,))}
    assert answer(when, facts).holds is None
    assert answer(when, facts).lacks == ("precision",)
    assert answer(when, facts | {"precision": Fact((None,))}).by == ("packing", "precision")
    assert answer(when, facts | {"packing": Fact((None,))}).holds is False
    assert answer({"temperature": "!=1"}, {"temperature": Fact((None,))}).holds is None
    assert answer({"x": ">1"}, {"x": Fact(("auto",))}).holds is None
    assert answer({"x": [1, 2]}, {"x": Fact((True,))}).holds is False


def test_a_gpu_is_known_by_a_part_of_its_name():
    hopper = {"gpu": ["H100", "H200"]}
    assert answer(hopper, gpu_facts("NVIDIA H100 80GB HBM3")).holds
    assert answer(hopper, gpu_facts("h200")).holds
    assert answer(hopper, gpu_facts("GH200")).holds is False
    assert answer({"device": "rocm"}, gpu_facts("MI300X")).holds
    assert answer({"device": "cuda"}, gpu_facts(None)).holds is None


def test_a_configuration_shows_the_type_of_the_whole_and_of_its_part():
    config = {"model_type": "gemma3", "vision_config": {}, "text_config": {
        "model_type": "gemma3_text", "dtype": "bfloat16", "head_dim": 256}}  # fmt: skip
    facts = model_facts(config)
    assert set(facts["model_type"].values) == {"gemma3", "gemma3_text"}
    assert (facts["vision"].values, facts["stored_dtype"].values) == ((True,), ("bf16",))
    assert "num_key_value_heads" not in facts
    assert model_facts(None) == {}


def test_an_error_needs_a_certain_range_and_more_than_one_report():
    here = environment(trl="1.1")
    assert level(advisory(), here) == "error"
    assert level(advisory(about={"range_is_certain": False}), here) == "warning"
    assert level(advisory(about={"established": "reproduced by several"}), here) == "error"
    assert level(advisory(about={"established": "single report"}), here) == "note"
    several = {"established": "reproduced by several"}
    assert level(advisory(affected=[], about=several), here) == "warning"
    assert level(advisory(affected=[]), here) == "error"


@pytest.mark.parametrize("version", ["1.2.dev0", "1.1+g12ab", "1.1rc1"])
def test_what_is_not_the_release_itself_is_a_note(version):
    one = advisory(affected=[{"package": "trl", "range": "<=1.2"}])
    assert level(one, environment(trl=version)) == "note"


@pytest.mark.parametrize("version", ["1.1.post1", "1.1+cu124", "1.1"])
def test_post_releases_and_builds_are_the_release(version):
    assert level(advisory(), environment(trl=version)) == "error"


def test_a_wheel_says_what_it_was_built_for():
    part = {"package": "torch", "range": "<3"}
    one = advisory(affected=[part], about={"when": {"device": "cuda"}})
    judged = {build: audit(environment(torch=f"2.9{build}"), {}, DAY, [one]) for build in
              ("+cu128", "+rocm6.4", "+cpu", "")}  # fmt: skip
    assert [len(one.findings) for one in judged.values()] == [1, 0, 0, 0]
    assert [len(one.unsettled) for one in judged.values()] == [0, 0, 0, 1]


def test_frameworks_that_patch_others_lower_it_to_a_note():
    one = advisory(
        affected=[{"package": "transformers", "range": "<4.48"}], about={"symptom": "wrong loss"}
    )
    here = environment(transformers="4.47.0")
    assert level(one, here, {"packing": True, "trainer": "hf_trainer"}) == "error"
    assert level(one, here, {"packing": True, "trainer": "axolotl"}) == "note"


@pytest.mark.parametrize(
    ("range_", "days", "expected"),
    [(">=1.0", 90, "error"), (">=1.0", 91, "note"), ("<=1.1", 91, "note"), ("<1.2", 365, "error")],
)
def test_a_range_without_an_end_lapses_after_ninety_days(range_, days, expected):
    one = advisory(affected=[{"package": "trl", "range": range_}])
    assert level(one, environment(trl="1.1"), today=DAY + datetime.timedelta(days)) == expected


def test_what_is_unknown_never_warns_but_is_counted():
    result = found(advisory(), environment(trl="1.1"), {"objective": "lm"})
    assert result.findings == () and result.unsettled[0][1] == ("packing",)
    unpinned = Environment(releases={"trl": Release(None)}, is_whole=False)
    result = found(advisory(), unpinned)
    assert (result.findings, result.unpinned) == ((), {"trl": 1})
    assert found(advisory(), environment(torch="2.9")).unpinned == {}


def test_a_fix_in_force_silences():
    one = advisory(about={"set": {"model_init_kwargs.dtype": "float32"}})
    facts = {"packing": True, "dtype": "bf16"}
    assert found(one, environment(trl="1.1"), facts).findings
    assert not found(one, environment(trl="1.1"), facts | {"dtype": "float32"}).findings


def test_one_finding_for_a_cause_and_at_most_five():
    chain = [
        advisory(id=f"RKSA-2026-{n}", published=f"202{n % 10}-01-01", about={"cause": "one"})
        for n in (9001, 9004, 9002)
    ]
    known = {"packing": Fact((True,))}
    assert [f.code for f in audit(environment(trl="1.1"), known, DAY, chain).findings] == [
        "RKSA-2026-9004"
    ]
    many = [advisory(id=f"RKSA-2026-90{n:02d}", severity="note") for n in range(7)]
    many.append(advisory(id="RKSA-2026-9999"))
    result = audit(environment(trl="1.1"), known, DAY, many)
    assert (len(result.findings), result.more) == (5, 3)
    assert result.findings[0].code == "RKSA-2026-9999"


def test_an_advisory_that_was_withdrawn_or_never_was_is_not_found():
    with pytest.raises(InputError, match="RKSA-2026-0036"):
        find_advisory("RKSA-2026-0O36")
    assert find_advisory("rksa-2026-0036").database_specific.source == "ADV4-036"
    assert {one.database_specific.established for one in advisories()} == set(ESTABLISHED)
