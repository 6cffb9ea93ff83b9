"""Plans of pairs, ladders with interventions, and the table of what a lever did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.ladders import tiny_spec, write_plan
from typer.testing import CliRunner

from lab import commands as cli
from lab.ladders.collection import build_collection, read_collection, stored_ladders
from lab.ladders.grid import read_ladder_plan
from lab.ladders.ladder import LadderRun, ladder_batches, run_once
from lab.ladders.lever_fit import shipped_runs
from lab.ladders.levers import (
    LeverEffect,
    edge_of,
    final_losses,
    lever_effects,
    lever_table,
    median_with_interval,
)
from lab.ladders.pairs import LadderPairs
from lab.ladders.plan import LadderSpec
from lab.ladders.store import read_ladder, write_ladder
from rksp.ground.errors import InputError
from rksp.own_runs.outcome import Curves, OutcomePolicy

BASE = tiny_spec().model_dump(mode="json", exclude={"family", "seed", "interventions"})
PAIRS = {
    "name": "pairs",
    "base": BASE,
    "models": {"plain": {"family": "zoo_pre_ln"}, "tied": {
        "family": "zoo_pre_ln", "shape.tie_word_embeddings": True}},
    "levers": {
        "tied": {"shape.tie_word_embeddings": True},
        "batch_x4": {"recipe.batch_size": 8},
        "clipped": {"interventions": ["clip=0.1"]},
    },
    "seeds": [1, 2],
}  # fmt: skip


def test_a_pair_differs_in_its_lever_alone() -> None:
    pairs = [p for p in LadderPairs.model_validate(PAIRS).pairs() if p.model == "plain"]
    assert [(p.lever, p.plain.seed) for p in pairs[:3]] == [
        ("tied", 1), ("batch_x4", 1), ("clipped", 1),
    ]  # fmt: skip
    for pair in pairs:
        assert pair.plain.seed == pair.changed.seed
        assert pair.plain.rates == pair.changed.rates
    tied, batch, clipped = (pair.changed for pair in pairs[:3])
    plain = pairs[0].plain
    assert tied.shape == {**plain.shape, "tie_word_embeddings": True}
    assert tied.recipe == plain.recipe
    assert batch.recipe == plain.recipe.model_copy(update={"batch_size": 8})
    assert clipped.model_copy(update={"interventions": ()}) == plain


def test_a_lever_that_a_model_has_already_makes_no_pair() -> None:
    plan = LadderPairs.model_validate(PAIRS)
    found = [(p.model, p.lever) for p in plan.pairs()]
    assert ("plain", "tied") in found
    assert ("tied", "tied") not in found


def test_a_prefix_has_the_first_model_with_all_its_levers_and_no_ladder_is_there_twice() -> None:
    plan = LadderPairs.model_validate({**PAIRS, "skip": {"clipped": ["plain"]}})
    specs = plan.expand()
    assert len({spec.id for spec in specs}) == len(specs)
    needed = {p.id for pair in plan.pairs() for p in (pair.plain, pair.changed)}
    assert {spec.id for spec in specs} == needed
    assert specs[0] == plan.plain("plain", 1)
    assert specs[2] == plan.changed("plain", "batch_x4", 1)
    assert not specs[3].interventions  # skipped
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"skip": {"clippd": ["plain"]}}, "clipped"),
        ({"skip": {"clipped": ["plan"]}}, "plain"),
        ({"models": {}}, "not valid"),
        ({"models": {"plain": {"family": "zoo_preln"}}}, "zoo_pre_ln"),
        ({"levers": {"tied": {"recipe.bach": 1}}}, "not valid"),
    ],
)
def test_a_bad_plan_of_pairs_is_one_sentence(tmp_path: Path, change, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_ladder_plan(write_plan(tmp_path, {**PAIRS, **change}))


def test_interventions_name_a_ladder_only_if_there_are_any() -> None:
    plain = tiny_spec()
    assert tiny_spec(interventions=[]).id == plain.id
    assert tiny_spec(interventions=["clip=0.1"]).id != plain.id
    assert tiny_spec(interventions=["clip=0.1"]).id != tiny_spec(interventions=["clip=0.2"]).id


def _losses(**fields: object) -> np.ndarray:
    spec = tiny_spec(**{"recipe": {**tiny_spec().recipe.model_dump(), "max_steps": 12}} | fields)
    return run_once(spec, 1e-2, ladder_batches(spec)).loss


def test_interventions_act_in_a_ladder_and_one_that_does_nothing_changes_nothing() -> None:
    plain = _losses()
    assert np.array_equal(_losses(interventions=["clip=1e9"]), plain)
    assert not np.array_equal(_losses(interventions=["qk_norm"]), plain)


def test_steps_that_were_undone_are_not_counted_as_missing(tmp_path: Path) -> None:
    run = _run(tiny_spec(), {1e-4: 1.0, 1e-3: 1.0, 1e-2: 1.0}, steps=3)
    path = write_ladder(tmp_path, run, {})
    build_collection([path], tmp_path / "packed.parquet")
    for read in (read_ladder(path), *read_collection(tmp_path / "packed.parquet")):
        assert [curves.planned_steps for curves in read.curves] == [3, 3, 3]
        assert read.spec.recipe.max_steps == 4
        assert not any(outcome.is_failure for outcome in read.judge().outcomes)


# The table


UNTRAINED = 5.0  # nats before the first step


def _run(spec: LadderSpec, finals: Mapping[float, float], *, steps: int = 4, seconds: float = 1.0):
    curves = tuple(
        Curves(
            loss=np.array([UNTRAINED, *[final] * (steps - 1)], dtype=np.float32),
            grad_norm=np.ones(steps, dtype=np.float32),
            planned_steps=steps,
        )
        for final in finals.values()
    )
    return LadderRun(
        spec=spec, rates=tuple(finals), curves=curves, seconds=(seconds,) * len(finals)
    )


def _effect(before: Mapping[float, float], after: Mapping[float, float]) -> LeverEffect:
    plan = LadderPairs.model_validate({**PAIRS, "seeds": [1]})
    pair = next(plan.pairs())
    ladders = {
        pair.plain.id: _run(pair.plain, before),
        pair.changed.id: _run(pair.changed, after, seconds=3.0),
    }
    (effect,) = lever_effects([pair], ladders)
    return effect


PLAIN = {1e-4: 1.2, 1e-3: 1.0, 1e-2: 1.1, 1e-1: 2.0}


def test_a_lever_that_carries_every_loss_one_rate_up_moves_all_by_a_decade() -> None:
    effect = _effect(PLAIN, {1e-4: 1.3, 1e-3: 1.2, 1e-2: 1.0, 1e-1: 1.1, 1.0: 2.0})
    assert effect.edge == pytest.approx(1.0)
    assert effect.reach == pytest.approx(1.0)
    assert effect.best == pytest.approx(1.0)
    assert effect.loss == pytest.approx(0.0)
    assert effect.loss_at_equal_rate == pytest.approx(0.1)  # of +0.1, +0.2 and -0.1
    assert (effect.saved, effect.failing) == (1, 1)
    assert effect.cost == pytest.approx(3.0)
    assert effect.learned and not effect.is_bound


def test_the_same_ladder_again_moves_nothing() -> None:
    effect = _effect(PLAIN, PLAIN)
    assert (effect.edge, effect.reach, effect.best, effect.loss) == (0.0, 0.0, 0.0, 0.0)
    assert (effect.saved, effect.failing) == (0, 1)


def test_a_lever_that_makes_all_runs_worse_alike_keeps_the_edge_and_loses_the_reach() -> None:
    effect = _effect(PLAIN, {rate: loss + 0.3 for rate, loss in PLAIN.items()})
    assert effect.edge == pytest.approx(0.0)
    assert effect.reach < 0
    assert effect.loss == pytest.approx(0.3)


def test_a_ladder_that_never_failed_gives_a_bound_and_two_give_nothing() -> None:
    flat = dict.fromkeys(PLAIN, 1.0)
    assert _effect(PLAIN, flat).is_bound
    # The last rate that passed is above.
    assert _effect(PLAIN, flat).edge == pytest.approx(-1 - edge_of(PLAIN, 1.0, 0.25, UNTRAINED).at)
    assert math.isnan(_effect(flat, flat).edge)


def test_an_edge_lies_nearer_to_the_rate_whose_loss_is_nearer_to_the_bar() -> None:
    low, high = ({1e-3: 1.0, 1e-2: loss, 1e-1: 2.0} for loss in (1.2, 1.05))
    near, far = (edge_of(finals, 1.0, 0.25, UNTRAINED).at for finals in (low, high))
    assert -2 < near < far < -1
    diverged = edge_of({1e-3: 1.0, 1e-2: 1.0, 1e-1: math.inf}, 1.0, 0.25, UNTRAINED)
    assert diverged.at == edge_of({1e-3: 1.0, 1e-2: 1.0, 1e-1: UNTRAINED}, 1.0, 0.25, UNTRAINED).at
    assert edge_of({1e-3: 1.0, 1e-2: 1.0}, 1.0, 0.25, UNTRAINED).is_open
    assert edge_of({1e-3: 2.0, 1e-2: 3.0}, 1.0, 0.25, UNTRAINED).at == -3


def test_losses_tell_where_a_bisected_edge_will_lie() -> None:
    told, middle = [], []
    for run, _ in stored_ladders(shipped_runs()):
        finals = final_losses(run, OutcomePolicy())
        coarse = {rate: finals[rate] for rate in run.spec.rates if rate in finals}
        best = min(finals.values())
        if len(coarse) == len(finals) or min(coarse.values()) > best + 0.05:
            continue
        lost = float(run.curves[0].loss[0])
        fine, first = (edge_of(x, best, 0.25, lost) for x in (finals, coarse))
        if fine.is_open or first.is_open:
            continue
        ends = [math.log10(rate) for rate in sorted(coarse)]
        low = max(end for end in ends if end < first.at)
        told.append(first.at - fine.at)
        middle.append(low + run.spec.step / 2 - fine.at)
    assert len(told) > 50
    assert np.square(told).mean() < 0.85 * np.square(middle).mean()


def test_a_lever_that_stops_learning_has_no_edge_and_is_counted() -> None:
    effect = _effect(PLAIN, dict.fromkeys(PLAIN, 9.0))
    assert not effect.learned
    assert math.isnan(effect.edge)
    assert "1 learn nothing" in lever_table([effect])


def test_an_interval_needs_three_pairs() -> None:
    assert median_with_interval([0.1, math.nan]) == "+0.10"
    assert median_with_interval([]) == "–"
    assert median_with_interval([0.1, math.inf]) == "+inf"  # divergence is no missing value
    assert median_with_interval([0.1, 0.2, 0.3]) == "+0.20 [+0.10, +0.30]"


def test_the_command_reads_folders_and_collections_alike(tmp_path: Path) -> None:
    plan_file = write_plan(tmp_path, {**PAIRS, "seeds": [1]})
    plan = read_ladder_plan(plan_file)
    for spec in plan.expand():
        write_ladder(tmp_path / "ladders", _run(spec, PLAIN), {})
    build_collection([tmp_path / "ladders"], tmp_path / "all.parquet")
    outputs = [
        CliRunner().invoke(cli.app, ["levers", str(tmp_path / name), "--plan", str(plan_file)])
        for name in ("ladders", "all.parquet")
    ]
    assert outputs[0].exit_code == 0
    assert outputs[0].output == outputs[1].output
    assert "| tied | 1 | 1 | +0.00 |" in outputs[0].output
