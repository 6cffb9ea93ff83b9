"""The catalogue of levers against the plans, and the table that is fitted to their pairs."""

from __future__ import annotations

from dataclasses import fields, replace
from statistics import median

import pytest
from support.levers import lever_table

from lab.fit.artifacts import artifact_json
from lab.ladders.collection import stored_ladders
from lab.ladders.edge_ladders import lab_inputs
from lab.ladders.lever_evidence import model_shifts
from lab.ladders.lever_fit import (
    Pair,
    fit_lever_table,
    ordered_pairs,
    pairs_of,
    shipped_plans,
    shipped_runs,
)
from lab.ladders.lever_fit import lever_size as fitted_size
from lab.ladders.levers import LeverEffect
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.levers.catalogue import BY_NAME, LEVERS
from rksp.classifiers.levers.effects import ARTIFACT, load_lever_table
from rksp.ground.errors import ArtifactError
from rksp.models.declared import Declared
from rksp.watch.registry import make_intervention

NO_MODEL = Declared(None)


def _pair(family: str, shift: float, kind: str = "decoder", **fields: float) -> Pair:
    given = {"edge": shift, "reach": shift, "best": 0.0, "loss": 0.0, "loss_at_equal_rate": 0.0}
    given |= {"failing": 2, "saved": 1, "cost": 1.0, "restored": 0.0} | fields
    effect = LeverEffect(model=family, lever="x", seed=1, is_bound=False, learned=True, **given)
    return Pair(effect=effect, family=family, kind=kind)


def test_every_lever_of_the_plans_that_is_no_other_family_has_its_row() -> None:
    measured = {pair for lever in LEVERS for pair in lever.measured.items()}
    others = {
        (plan.name, name)
        for plan in shipped_plans()
        for name, values in plan.levers.items()
        if set(values) == {"family"} and plan.name == "models"
    }
    placed = {
        ("models", f"norm_{where}") for where in ("after_branch", "around_branch", "after_sum")
    }
    all_ = {(plan.name, name) for plan in shipped_plans() for name in plan.levers}
    assert measured - all_ == set()
    compared = {pair for pair in all_ if pair[0] == "step_clip"}  # arms set beside step clip
    assert all_ - measured - compared == (others - placed) | {("models", "tied_init_x10")}


def test_a_lever_of_the_recipe_makes_the_recipe_of_its_pair() -> None:
    plans = {plan.name: plan for plan in shipped_plans()}
    seen = 0
    for lever in LEVERS:
        for plan, name in lever.measured.items():
            pair = next(p for p in plans[plan].pairs() if p.lever == name)
            before, after = pair.plain, pair.changed
            if lever.is_inverted:
                before, after = after, before
            if lever.field and not after.interventions:
                assert lever.applied(NO_MODEL, before.recipe) == after.recipe, lever.name
                seen += 1
            if after.interventions and not lever.field:
                made = [make_intervention(x) for x in (after.interventions[0], lever.intervention)]
                options = [{f.name: getattr(one, f.name) for f in fields(one)} for one in made]
                assert options[0] == options[1] and type(made[0]) is type(made[1]), lever.name
    assert seen > 8


def _pairs_of(lever):
    """Yield the pairs of the plans that a model of the edge may see: no intervention."""
    for plan in shipped_plans():
        for pair in ordered_pairs(lever, plan):
            if not pair.plain.interventions and not pair.changed.interventions:
                yield pair


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_a_lever_sets_for_the_model_of_the_edge_what_its_pairs_differ_in(lever) -> None:
    for pair in _pairs_of(lever):
        given = lab_inputs(pair.plain.model_copy(update={"recipe": pair.changed.recipe}))
        known = replace(given, **lever.changed(NO_MODEL, pair.plain.recipe))
        assert known == replace(lab_inputs(pair.changed), family=known.family), pair.model


def test_no_lever_was_measured_against_what_the_model_of_the_edge_says() -> None:
    model, sizes, plans = load_edge_model(), load_lever_table(), shipped_plans()
    told = 0
    for lever in LEVERS:
        size, said = sizes.size("decoder", lever.name), model_shifts(lever, plans, "decoder", model)
        if lever.held_back or size is None or size.low is None:
            continue
        told += abs(median(said)) > 0.01
        assert not size.low > 0 > median(said), lever.name
        assert not size.high < 0 < median(said), lever.name
    assert told >= 3


def test_every_intervention_of_the_catalogue_can_be_made() -> None:
    lines = [lever.intervention for lever in LEVERS if lever.intervention]
    assert [make_intervention(line).name for line in lines] == [x.split(":")[0] for x in lines]


@pytest.mark.slow
def test_the_shipped_table_is_rebuilt_from_the_shipped_ladders() -> None:
    fitted = fit_lever_table(run for run, _ in stored_ladders(shipped_runs()))
    assert artifact_json(fitted) == artifact_json(load_lever_table())


def test_a_lever_that_helps_every_family_alike_is_sound() -> None:
    pairs = [_pair(name, 0.5 + 0.05 * i) for i, name in enumerate("abcdef")]
    size = fitted_size(pairs, "decoder")
    assert size.is_sound and size.low < size.shift < size.high
    assert size.holds == 1.0 and size.misses < 0.2 and size.families["a"] == 0.5


def test_an_edge_that_hardly_moves_holds_no_sign() -> None:
    still = [_pair(name, 0.004) for name in "abcdef"]
    assert fitted_size(still, "decoder").holds == 0.0
    assert fitted_size([_pair(name, 0.02) for name in "abcdef"], "decoder").holds == 1.0


@pytest.mark.parametrize(
    "pairs",
    [
        [_pair(name, 0.6 if i % 3 else -0.2) for i, name in enumerate("abcdef")],
        [_pair(name, 0.1 * 3**i) for i, name in enumerate("abcdef")],
        [_pair(name, 0.5, loss_at_equal_rate=0.2) for name in "abcdef"],
        [_pair(name, 0.5, loss_at_equal_rate=float("inf")) for name in "abcdef"],
        [_pair(name, -0.5) for name in "abcdef"],
        [_pair(name, 0.5) for name in "abc"],
    ],
    ids=["its sign differs", "its size differs", "it is dear", "it diverges", "it harms", "few"],
)
def test_a_lever_that_no_page_may_name(pairs) -> None:
    assert not fitted_size(pairs, "decoder").is_sound


def test_a_size_that_no_other_family_tells_matters_less_where_runs_are_restored() -> None:
    spread = [_pair(f"{name}{i}", 0.1 * 3**i) for i in range(5) for name in "ab"]
    restored = fitted_size(spread, "decoder")
    assert restored.restores and restored.is_sound and restored.misses > 0.21
    some = [replace(p, effect=replace(p.effect, restored=0.3)) for p in spread[:2]] + spread[2:]
    assert not fitted_size(some, "decoder").is_sound
    assert not fitted_size(spread[:8], "decoder").is_sound  # too few to tell


def test_pairs_of_parallel_blocks_do_not_count_for_a_lever_of_sequential_ones() -> None:
    plans = shipped_plans()
    ladders = {run.spec.id: run for run, _ in stored_ladders(shipped_runs())}
    muon = BY_NAME["muon"]
    families = {pair.family for pair in pairs_of(muon, plans, ladders)}
    every = {pair.family for pair in pairs_of(replace(muon, is_sequential=False), plans, ladders)}
    assert every - families == {"gpt_neox", "phi", "gptj", "falcon"}


def test_families_of_one_kind_alone_make_its_size_and_few_are_pooled() -> None:
    pairs = [_pair(name, 0.5) for name in "abc"] + [_pair("bert", -0.5, "encoder")]
    assert fitted_size(pairs, "decoder").families == {"a": 0.5, "b": 0.5, "c": 0.5}
    pooled = fitted_size(pairs, "encoder")
    assert pooled.pooled and pooled.holds == 0.0  # BERT goes against the others
    assert fitted_size(pairs, "vision") is None


def test_a_wide_spread_between_families_widens_the_interval() -> None:
    near = fitted_size([_pair(name, 0.5) for name in "abcd"], "decoder")
    far = fitted_size(
        [_pair(n, s) for n, s in zip("abcd", (0, 0.5, 0.5, 1), strict=True)], "decoder"
    )
    assert far.high - far.low > near.high - near.low > 0


def test_a_damaged_table_is_said_to_be_damaged() -> None:
    text = artifact_json(lever_table(qk_norm=0.5))
    assert artifact_json(ARTIFACT.parse(text)) == text
    for wrong in ("{}", text.replace("qk_norm", "qk_nrm"), text.replace("0.5", '"much"', 1)):
        with pytest.raises(ArtifactError):
            ARTIFACT.parse(wrong)
