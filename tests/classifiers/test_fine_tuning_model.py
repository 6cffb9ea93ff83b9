"""The model of fine-tuning: known rates are found, and what it says keeps the laws of chance."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from support.fine_tuning_cases import BEST, GAP, SLOPE, inputs, ladder, ladders

import rksp.classifiers
from lab.fine_tuning_fit.fit import SPREADS, STATED, fit_fine_tuning
from lab.fine_tuning_fit.ladder import CARD, ladder_of_runs
from lab.fine_tuning_fit.left_out import KEYS, LeftOut, lapses, left_out
from lab.fine_tuning_fit.posterior import Seen, posterior
from lab.fine_tuning_fit.public_rows import inputs_of, public_ladders, read_public_rows
from lab.fine_tuning_fit.published_rows import AFTER_TRAINING, artifact, published_rows
from lab.fine_tuning_fit.scores import (
    chosen_starts,
    is_near,
    nested_starts,
    rate_score,
    run_score,
    starts,
)
from lab.fine_tuning_fit.shipped import shipped_model
from lab.fit.artifacts import artifact_json
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import (
    ARTIFACT,
    FineTuningModel,
    load_fine_tuning_model,
    matched_moments,
)
from rksp.classifiers.fine_tuning.published import ADAPTER_LADDERS, published_runs
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.errors import ArtifactError, InputError

ROWS = "RKSP_FINE_TUNING_ROWS"  # folder of the public rows, which are not shipped
SHIPPED_TABLE = "fitted/published.json"
FILES = ("ladders_ft.jsonl", "recipes_ft.jsonl", "runs_ft.jsonl", "runs_hfcards_ft.jsonl")
MANY = [
    FineTuningInputs(),
    inputs(),
    inputs("qlora", rank=64.0),
    inputs("unheard-of"),
    inputs("vera"),
    inputs(objective="preference"),
    inputs("full", kind="encoder", family="bert", objective="classification", parameters=1e8),
    inputs("full", kind="speech", family="whisper", objective="transcription"),
    inputs("full", optimizer="muon", parameters=1e6),
]


@pytest.fixture(scope="module")
def shipped() -> FineTuningModel:
    return load_fine_tuning_model()


@pytest.fixture(scope="module")
def made_up() -> FineTuningModel:
    return fit_fine_tuning(ladders())


@pytest.mark.parametrize("method", BEST)
@pytest.mark.parametrize("size", [1e9, 7e9, 7e10])
def test_the_rates_of_a_method_and_a_size_are_found(made_up, method, size):
    said = made_up.predict(inputs(method, parameters=size))
    slope = SLOPE * math.log10(size / 7e9) if method == "full" else 0.0
    assert said.best.location == pytest.approx(BEST[method] + slope, abs=0.2)
    assert said.edge.location - said.best.location == pytest.approx(GAP, abs=0.15)


def test_a_size_moves_only_what_is_trained_whole(made_up):
    moved = {
        method: made_up.predict(inputs(method, parameters=7e10)).edge.location
        - made_up.predict(inputs(method, parameters=7e9)).edge.location
        for method in ("lora", "full")
    }
    assert moved["lora"] == 0
    assert moved["full"] == pytest.approx(SLOPE, abs=0.1)


def test_edges_that_no_ladder_reached_are_pushed_up():
    def fitted(cut: float) -> float:
        cut_off = [
            dataclasses.replace(x, edge=(x.edge[0] + cut, math.inf)) if x.has_edge else x
            for x in ladders()
        ]
        return fit_fine_tuning(cut_off).predict(inputs()).edge.location

    assert fitted(0.0) < fitted(0.5) < fitted(1.0)


@pytest.mark.parametrize("given", MANY, ids=str)
def test_the_chance_to_fail_rises_with_the_rate_and_its_interval_holds_it(shipped, given):
    said = shipped.predict(given)
    rates = 10.0 ** np.arange(-12, 6, 0.25)
    chances = [said.failed(rate) for rate in rates]
    assert chances == sorted(chances)
    assert (chances[0], 1 - chances[-1]) == pytest.approx((said.lapse.share,) * 2, abs=1e-3)
    assert chances[0] < chances[-1]
    for rate, chance in zip(rates, chances, strict=True):
        low, high = said.interval(rate)
        assert 0 < low <= chance <= high < 1 and low < high


@pytest.mark.parametrize("given", MANY, ids=str)
def test_the_start_lies_below_the_edge_and_not_above_the_ceiling(shipped, given):
    said = shipped.predict(given)
    assert said.start_here <= said.rate_at(DEFAULT_RISK) < said.likely_edge


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("given", MANY, ids=str)
def test_the_rate_not_to_exceed_has_the_risk_that_was_asked_for(shipped, given, risk):
    said = shipped.predict(given)
    assert said.failed(said.rate_at(risk)) == pytest.approx(risk)


def test_one_in_twenty_edges_of_new_sources_lies_below_the_ceiling():
    below = []
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        seen = [x for x in ladders(60, seed=seed) if x.inputs.source != "south"]
        said = fit_fine_tuning(seen).predict(inputs())
        edges = BEST["lora"] + GAP + 0.1 * rng.standard_normal() + 0.1 * rng.standard_normal(50)
        below.append(np.mean(edges < math.log10(said.rate_at(0.05))))
    assert np.mean(below) <= 0.08


@pytest.mark.parametrize(
    "unseen",
    [
        {"method": "adalora"},
        {"objective": "a new one"},
        {"family": "a new one", "method": "full"},
        {"optimizer": "a new one"},
    ],
    ids=str,
)
def test_what_was_never_seen_widens_the_spread_and_is_named(shipped, unseen):
    method = unseen.get("method", "lora")
    known = shipped.predict(inputs("full" if method == "full" else "lora"))
    said = shipped.predict(inputs(**{"method": method} | unseen))
    changed = {name: value for name, value in unseen.items() if value != "full"}
    (factor,) = changed
    assert said.best.parts[0].between > known.best.parts[0].between
    assert factor in {name for name, _ in said.unseen}
    assert factor not in {name for name, _ in known.unseen}


def test_a_revealed_ladder_moves_its_source_towards_itself(shipped):
    mine, other = inputs(source="mine"), inputs(source="other")
    before = shipped.predict(mine)
    for shift in (-1.0, 1.0):
        best, edge = before.best.location + shift, before.edge.location + shift
        model = shipped.reveal(mine, best=(best - 0.1, best + 0.1), edge=(edge - 0.1, edge + 0.1))
        after, elsewhere = model.predict(mine), model.predict(other)
        for name, old in (("best", before.best), ("edge", before.edge)):
            moved = (getattr(after, name).location - old.location) * math.copysign(1, shift)
            there = (getattr(elsewhere, name).location - old.location) * math.copysign(1, shift)
            assert 0.1 < moved <= 1.0
            assert 0 <= there < moved
            assert getattr(after, name).parts[0].between < old.parts[0].between


def test_a_revealed_ladder_that_is_expected_moves_nothing_and_narrows(shipped):
    mine = inputs(source="mine")
    before = shipped.predict(mine)
    here = before.edge.location
    after = shipped.reveal(mine, edge=(here - 0.2, here + 0.2)).predict(mine)
    assert after.edge.location == pytest.approx(here, abs=1e-6)
    assert after.edge.parts[0].between < before.edge.parts[0].between


def test_a_checkpoint_without_a_name_is_no_surer_than_one_with_a_name(shipped):
    named, nameless = (shipped.predict(inputs(model=name)).edge for name in ("its-name", ""))
    assert named == nameless


def test_a_ladder_without_a_source_is_not_revealed(shipped):
    with pytest.raises(InputError, match="source"):
        shipped.reveal(inputs(), edge=(-3.0, -2.0))


def test_forgetting_is_said_only_where_ladders_show_it(shipped):
    assert shipped.predict(inputs()).forgetting is not None
    assert shipped.predict(inputs("full")).forgetting is None


def test_the_contributions_add_up_to_the_edge(shipped):
    said = shipped.predict(inputs(rank=64.0))
    assert sum(said.contributions.values()) == pytest.approx(said.edge.location)


@pytest.mark.parametrize("bracket", [(-1.0, 0.5), (1.0, math.inf), (-math.inf, -2.0), (3.0, 3.5)])
def test_moments_of_an_interval_are_those_of_the_integral(bracket):
    location, variance = 0.3, 0.8
    low, high = (float(np.clip(end, -9, 9)) for end in bracket)
    density = lambda x: norm.pdf(x, location, math.sqrt(variance))
    mass, first, second = (
        quad(lambda x, power=power: x**power * density(x), low, high)[0] for power in range(3)
    )
    mean, left = matched_moments(location, variance, *bracket)
    assert mean == pytest.approx(first / mass, rel=1e-5)
    assert left == pytest.approx(second / mass - (first / mass) ** 2, rel=1e-4)


def test_narrow_intervals_give_the_exact_posterior():
    noise, prior, values = 0.3, 0.5, (1.0, 1.4, 0.9)
    seen = [Seen(values={"a": 1.0}, low=y - 1e-4, high=y + 1e-4, noise=noise) for y in values]
    found = posterior(seen, {"a": 0.2}, {"a": prior})
    precision = len(values) / noise**2 + 1 / prior**2
    assert found.mean[0] == pytest.approx(
        (sum(values) / noise**2 + 0.2 / prior**2) / precision, abs=1e-4
    )
    assert found.covariance[0, 0] == pytest.approx(1 / precision, rel=1e-4)


def test_rows_alike_count_as_often_as_they_were_seen():
    one = dataclasses.replace(ladders(3)[0], kind=CARD, best=(-math.inf, math.inf))
    many = [dataclasses.replace(one, name=f"{one.name}-{n}") for n in range(7)]
    together = fit_fine_tuning([*ladders(), dataclasses.replace(one, count=7)])
    apart = fit_fine_tuning([*ladders(), *many])
    assert together.mean == pytest.approx(apart.mean, abs=1e-5)


def test_an_end_of_a_ladder_leaves_its_side_open():
    falling = [(-5.0, 3.0, False), (-4.0, 2.0, False), (-3.0, 1.0, False)]
    rising = [(rate, 4 - loss, failed) for rate, loss, failed in falling]
    top, bottom = (ladder_of_runs("x", inputs(), runs) for runs in (falling, rising))
    assert (top.best, top.edge, top.at_border) == ((-3.5, math.inf), (-3.0, math.inf), True)
    assert (bottom.best, bottom.at_border) == ((-math.inf, -4.5), True)


SCORES = [(-5.0, 0.50, False), (-4.0, 0.60, False), (-3.0, 0.58, False), (-2.0, 0.1, False)]


@pytest.mark.parametrize(
    ("noise", "best"),
    [((), (-4.5, -3.5)), ((0.016,) * 4, (-4.5, -2.5)), ((0.1,) * 4, (-math.inf, -2.5))],
)
def test_the_best_rate_lies_among_those_that_noise_does_not_part(noise, best):
    read = ladder_of_runs("x", inputs(), SCORES[::-1], noise=noise, higher_is_better=True)
    assert read.best == best and read.chosen == -4.0


def test_a_rate_falls_short_with_a_doubt_and_is_unknown_far_from_all_runs():
    runs = SCORES[:3]
    read = ladder_of_runs("x", inputs(), runs, noise=(0.0, 0.03, 0.04), higher_is_better=True)
    assert read.shortfall(-4.0) == pytest.approx((0.0, math.hypot(0.03, 0.03) / 0.6))
    assert read.shortfall(-3.5) == pytest.approx((0.01 / 0.6, math.hypot(0.035, 0.03) / 0.6))
    assert read.shortfall(-2.0) == read.shortfall(-3.0)
    assert read.shortfall(-1.9)[0] == read.shortfall(-6.1)[0] == math.inf
    estimate = fit_fine_tuning([read]).predict(read.inputs)
    one = LeftOut(ladder=read, estimate=estimate, name="x")
    quiet = dataclasses.replace(one, ladder=dataclasses.replace(read, noise=(0.0,) * 3))
    rule = lambda _: -3.0  # a thirtieth below the best
    assert is_near(one, rule) and not is_near(quiet, rule)
    score = rate_score([one], rule)
    assert (score.near, score.strict) == (1.0, 0.0)


def test_a_run_whose_end_is_not_known_is_no_failure():
    runs = [(-5.0, 2.0, False), (-4.0, 1.0, False), (-3.5, 1.5, False), (-3.0, None, None)]
    assert ladder_of_runs("x", inputs(), runs).edge == (-3.5, math.inf)
    runs[-1] = (-3.0, None, True)
    assert ladder_of_runs("x", inputs(), runs).edge == (-3.5, -3.0)


def test_a_ladder_that_never_trained_is_refused():
    with pytest.raises(InputError, match="No run"):
        ladder_of_runs("x", inputs(), [(-3.0, None, True)])


def test_the_order_of_the_ladders_changes_no_byte():
    assert artifact_json(shipped_model(ladders())) == artifact_json(
        shipped_model(list(reversed(ladders())))
    )


def test_a_model_survives_its_file(made_up):
    text = artifact_json(made_up)
    assert artifact_json(ARTIFACT.parse(text)) == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(schema="rksp-fine-tuning-0"),
        lambda d: d["mean"].update({next(iter(d["mean"])): None}),
        lambda d: d["covariance"].pop(),
        lambda d: d["covariance"][0].__setitem__(0, -1.0),
        lambda d: d["noise"].update(edge=0.0),
        lambda d: d.update(lapse=[0.5, 0.1, 0.2]),
        lambda d: d.pop("card"),
    ],
)
def test_a_damaged_file_is_refused(made_up, damage):
    document = json.loads(artifact_json(made_up))
    damage(document)
    with pytest.raises(ArtifactError):
        ARTIFACT.parse(json.dumps(document))


def test_left_out_ladders_are_not_seen():
    everything = ladders()
    strange = [
        ladder(inputs(source="strange", family="strange"), -1.0, -0.5, name=f"strange-{n}")
        for n in range(20)
    ]
    for key in KEYS.values():
        said = [x for x in left_out([*everything, *strange], key) if "strange" in x.name]
        known = fit_fine_tuning(everything).predict(strange[0].inputs)
        assert {x.estimate.edge.location for x in said} == {known.edge.location}


def test_scores_tell_a_good_rule_from_a_bad_one():
    predicted = list(left_out(ladders(), KEYS["sources"]))
    good, bad = rate_score(predicted, starts), rate_score(predicted, lambda x: starts(x) - 1)
    assert good.near > 0.9 > bad.near and good.error < 0.2 < bad.error
    assert run_score(predicted).auroc > 0.95


def test_runs_that_fail_far_below_their_edge_are_lapses():
    predicted = list(left_out(ladders(), KEYS["sources"]))
    lapsed = [
        dataclasses.replace(
            x, ladder=dataclasses.replace(x.ladder, failed=(True, *x.ladder.failed[1:]))
        )
        for x in predicted
    ]
    assert lapses(predicted).share < 0.01 < 0.05 < lapses(lapsed).share


def test_an_answer_needs_neither_numpy_nor_torch():
    code = (
        "import sys; from rksp.classifiers.fine_tuning.inputs import FineTuningInputs as I; "
        "from rksp.classifiers.fine_tuning.model import load_fine_tuning_model as load; "
        "load().predict(I(method='lora')).failed(1e-3); "
        "print([n for n in ('numpy', 'scipy', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_line_that_is_no_run_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    with pytest.raises(ArtifactError, match="line 1"):
        read_public_rows([path])


def test_the_shipped_model_is_the_fit_of_its_rows(shipped):
    if ROWS not in os.environ:
        pytest.skip(f"the public rows are not shipped; {ROWS} names their folder")
    rows = read_public_rows([Path(os.environ[ROWS]) / name for name in FILES])
    assert artifact_json(shipped_model(public_ladders(rows))) == artifact_json(shipped)


def published_row(rate: float, **more: object) -> dict:
    row = {"id": f"{rate}", "group": "them", "method": "dpo-full", "metric": "", "license": "MIT"}
    arch = {"family": "llama", "params": 7e9}
    return row | {"arch": arch, "recipe": {"lr": rate}, "trained_well": True} | more


def test_published_runs_are_counted_under_their_own_and_the_wider_objective():
    ladder = {"rates": [1e-7, 1e-6, 1e-5], "failed": [False, False, True]}
    ladder |= {"derived": {"near_best_rates": [1e-6]}, "method": "orpo"}
    assumed = published_row(4e-6, trained_well="assumed", group="others")
    rows = [published_row(5e-7), assumed, published_row(1.0, **ladder)]
    rows.append(published_row(1.0, recipe={"lr": 1.0, "optimizer": "sgd"}))
    found = {(row.objective, row.size): row for row in published_rows(rows)}
    own, wide = found["dpo", "1B to 10B"], found["preference", "any"]
    assert (own.runs, own.stated, own.sources, own.failed) == (2, 1, 2, 0)
    assert (wide.runs, wide.lowest, wide.middle, wide.highest) == (3, 5e-7, 1e-6, 4e-6)
    assert (wide.failed, wide.failed_from) == (1, 1e-5) and ("orpo", "any") in found
    assert artifact(rows) == artifact(rows[::-1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row.update(lowest=1.0),
        lambda row: row.update(stated=10**6),
        lambda row: row.pop("middle"),
        lambda row: row.update(highest=math.inf),
    ],
)
def test_a_damaged_table_of_published_runs_is_refused(tmp_path, damage):
    stored = json.loads(artifact([published_row(5e-7)]))
    whole, damaged = tmp_path / "whole.json", tmp_path / "damaged.json"
    whole.write_text(json.dumps(stored))
    assert {row.runs for row in published_runs(whole)} == {1}
    damage(stored["rows"][0])
    damaged.write_text(json.dumps(stored))
    with pytest.raises(ArtifactError):
        published_runs(damaged)


def test_the_usual_rate_gives_way_only_where_a_candidate_is_better_both_ways():
    def seen(practice_best: float, said: float) -> list[LeftOut]:
        of = inputs("full", kind="encoder", objective="classification", parameters=8e7)
        one = ladder(of, practice_best, practice_best + 1.5)
        estimate = fit_fine_tuning([one]).predict(one.inputs)
        best = estimate.best.moved(said - estimate.log_best)
        edge = estimate.edge.moved(-estimate.log_edge)
        changed = dataclasses.replace(estimate, best=best, edge=edge)
        return [LeftOut(ladder=one, estimate=changed, name="x")]

    usual, other = math.log10(5e-5), math.log10(5e-5) + 1
    good, bad = seen(other, other), seen(usual, other)
    assert chosen_starts({"sources": good, "families": good})["encoder"] == "model"
    assert chosen_starts({"sources": good, "families": bad})["encoder"] == "usual"
    assert chosen_starts({"sources": bad, "families": bad})["encoder"] == "usual"
    level = seen(usual, usual)
    assert chosen_starts({"sources": good, "families": level})["encoder"] == "usual"


@pytest.mark.parametrize(("away", "chosen"), [(-1.0, "model"), (0.0, "usual")])
def test_a_source_is_told_what_the_others_choose(away, chosen):
    far = math.log10(3e-4) + away
    seen = [
        ladder(inputs(source=source, family=source), far, far + 1.5, name=f"{source}-{n}")
        for source in ("east", "west", "north")
        for n in range(3)
    ]
    odd = ladder(inputs(source="odd", family="odd"), far + 1.0, far + 2.0, name="odd")
    found = nested_starts([*seen, odd])["lora"]
    assert len(found) == len(seen) + 1
    (told,) = [(one, name) for one, name in found if one.name == "odd"]
    assert told[1] == chosen and not is_near(told[0], starts)


def test_the_shipped_table_is_the_count_of_its_rows():
    if ROWS not in os.environ:
        pytest.skip(f"the public rows are not shipped; {ROWS} names their folder")
    files = [Path(os.environ[ROWS]) / name for name in FILES]
    ladders = map(inputs_of, read_public_rows(files[:1]))
    assert sum(one.trained == "adapter" for one in ladders) == ADAPTER_LADDERS
    rows = read_public_rows([*files, AFTER_TRAINING])
    assert artifact(rows) == (Path(rksp.classifiers.__file__).parent / SHIPPED_TABLE).read_text()


def test_the_shipped_model_is_of_the_shipped_design(shipped):
    assert (shipped.spreads, shipped.stated) == (SPREADS, STATED)
