"""The model of the edge: known edges are found, censoring and signs hold, bytes repeat."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from support.edge_cases import SLOPE, inputs, ladder, ladders

from lab.fit.artifacts import artifact_json
from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import log_rates
from lab.fit.edge_scores import auroc_of, single_runs
from lab.fit.edge_spreads import Miss, node_weights, posterior
from lab.fit.lapses import said_of, sharpness_of
from lab.ladders.edge_ladders import edge_ladders
from rksp.classifiers.edge_inputs import EdgeInputs, config_features
from rksp.classifiers.edge_model import ARTIFACT, EdgeModel, load_edge_model, shifts
from rksp.classifiers.rates import Lapse, RateDistribution, sharpened
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.errors import ArtifactError
from rksp.recipe import Recipe


@pytest.fixture(scope="module")
def model() -> EdgeModel:
    return fit_edge_model(ladders())


def test_the_edge_of_ladders_that_were_not_seen_is_found(model):
    for width in (64, 300, 1000):
        read = model.predict(inputs(width))
        assert read.log_edge == pytest.approx(1 + SLOPE * math.log10(width), abs=0.15)
        assert read.log_edge - read.log_best == pytest.approx(0.6, abs=0.15)


def test_one_in_twenty_edges_lies_below_the_rate_not_to_exceed(model):
    rng = np.random.default_rng(1)
    widths = 2 ** rng.integers(5, 12, size=400)
    edges = 1 + SLOPE * np.log10(widths) + 0.1 * rng.standard_normal(400)
    ceilings = [math.log10(model.predict(inputs(int(w))).rate_at(0.05)) for w in widths]
    assert (edges < ceilings).mean() <= 0.08


def test_runs_that_fail_far_below_their_edge_are_lapses(model):
    wide = [x for x in ladders() if x.edge > -1.5]
    lapsed = [dataclasses.replace(x, failed=x.failed | (x.rates == x.rates[0])) for x in wide]
    others = [x for x in ladders() if x.edge <= -1.5]
    clean, lapsing = (fit_edge_model([*others, *part]).lapse.share for part in (wide, lapsed))
    runs = sum(len(x.rates) for x in ladders())
    assert clean < 2 / runs * 3
    assert lapsing - clean == pytest.approx(len(wide) / runs, rel=0.5)


def test_no_rate_is_said_to_fail_or_to_pass_for_sure(model):
    lapse = Lapse(share=0.01, low=0.005, high=0.02)
    read = dataclasses.replace(model, lapse=lapse).predict(inputs(256))
    rates = 10.0 ** np.arange(-9, 6)
    chances = [read.failed(rate) for rate in rates]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1]) == pytest.approx((0.01, 0.99))
    assert all(low >= 0.005 and high <= 0.995 for low, high in map(read.interval, rates))


@pytest.mark.parametrize("steps", [100, 1000, 5000, 250_000])
def test_no_interval_is_empty_and_each_holds_its_chance(steps):
    read = load_edge_model().predict(inputs(steps=steps))
    for rate in 10.0 ** np.arange(-9, 4, 0.25):
        low, high = read.interval(rate)
        # Where few sources fail, or pass, these are what the mean is made of: it is then an end.
        assert low <= read.failed(rate) <= high and low < high
    assert read.interval(1e-9)[1] > 1.5 * read.failed(1e-9)  # the floor has an interval too
    # At the edge the interval spans what the sources do.
    low, high = read.interval(read.likely_edge)
    assert high - low > 0.5


def _misses(sources: int, between: float, within: float, ladders: int = 12) -> list[Miss]:
    rng = np.random.default_rng(2)
    found = []
    for source in range(sources):
        middle = between * rng.standard_normal()
        for error in middle + within * rng.standard_normal(ladders):
            low, high = error - 0.05, error + 0.05
            found.append(Miss(source=str(source), low=low, high=high, weight=1.0))
    return found


def test_the_spread_between_many_sources_is_found_and_apart_from_that_within():
    found = posterior(_misses(80, between=0.4, within=0.1))
    assert found.within == pytest.approx(0.1, rel=0.2)
    assert found.between[3] == pytest.approx(0.4, rel=0.2)
    assert found.between[-1] < 1.7 * found.between[0]
    assert posterior(_misses(80, between=0.0, within=0.3)).between[3] < 0.1


def test_few_sources_leave_their_spread_uncertain_and_longer_tails():
    few, many = (posterior(_misses(n, between=0.3, within=0.1)) for n in (5, 80))
    assert few.between[-1] / few.between[0] > 2 * many.between[-1] / many.between[0]
    at = few.around(0.0, node_weights())
    normal = RateDistribution(location=0.0, within=0.0, between=at.spread).alone()
    assert at.source(0.001) < normal.source(0.001)
    assert at.quantile(0.5) == 1.0
    for share in (0.01, 0.3, 0.9):
        assert at.below(at.quantile(share)) == pytest.approx(share)


def test_an_open_ladder_below_its_prediction_widens_no_spread_and_one_above_does():
    closed = _misses(20, between=0.1, within=0.1)
    one = lambda low: [Miss(source="open", low=low, high=math.inf, weight=1.0)]
    assert posterior([*closed, *one(-2.0)]).between[3] == pytest.approx(
        posterior(closed).between[3], rel=0.05
    )
    assert posterior([*closed, *one(1.0)]).between[3] > 1.3 * posterior(closed).between[3]


@pytest.mark.parametrize(
    ("field", "small", "large"), [("batch_tokens", 1e3, 1e6), ("warmup_steps", 0, 80)]
)
def test_a_larger_batch_or_a_longer_warmup_lowers_no_rate(field, small, large):
    shipped = load_edge_model()
    for steps in (200, 2000, 100_000):
        one, other = (
            shipped.predict(dataclasses.replace(inputs(steps=steps), **{field: value}))
            for value in (small, large)
        )
        assert other.start_here >= one.start_here
        assert other.likely_edge >= one.likely_edge
        assert other.rate_at(DEFAULT_RISK) >= one.rate_at(DEFAULT_RISK)


def test_the_rates_are_ordered_and_the_start_costs_least():
    for width, steps in ((64, 200), (512, 1000), (4096, 250_000)):
        read = load_edge_model().predict(inputs(width, steps=steps, warmup_steps=20))
        start = read.start_here
        assert max(start, read.rate_at(DEFAULT_RISK)) < read.likely_edge
        assert read.failed(read.likely_edge) == pytest.approx(0.5)
        assert read.failed(read.rate_at(0.2)) == pytest.approx(0.2)
        for factor in (0.1, 0.5, 2, 10):
            assert read.expected_excess(start * factor) >= read.expected_excess(start)


@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("steps", [100, 1000, 250_000])
def test_the_rate_at_a_chance_has_that_chance_and_rises_with_it(norm, steps):
    read = load_edge_model().predict(inputs(steps=steps, norm=norm))
    chances = [0.0, 1e-4, *np.linspace(0.01, 0.99, 99).tolist(), 1.0]
    rates = [read.rate_at(chance) for chance in chances]
    assert rates == sorted(rates)
    told = [read.failed(rate) for rate in rates]
    assert told[2:-1] == pytest.approx(chances[2:-1], abs=1e-7)
    lapse = read.lapse.share  # which no rate takes away
    assert (told[0], told[-1]) == pytest.approx((lapse, 1 - lapse), abs=1e-5)
    assert read.rate_at(0.5) == read.likely_edge == 10**read.log_edge


def test_a_low_share_of_edges_counts_less_in_usual_runs_alone():
    shipped = load_edge_model()
    assert shipped.sharpness > 1
    for norm, is_less in (("pre", True), ("none", False)):
        read = shipped.predict(inputs(steps=10_000, norm=norm))
        rate = read.edge.quantile(0.1)
        plain = dataclasses.replace(read, sharpness=1.0)
        assert (read.failed(rate) < 0.8 * plain.failed(rate)) is is_less
        high = read.edge.quantile(0.8)
        assert read.failed(high) == plain.failed(high)


def test_the_sharpness_that_made_the_runs_is_found_and_none_where_shares_come_true():
    rng = np.random.default_rng(3)
    shares, lapse = rng.uniform(0.01, 0.99, 40_000), Lapse(share=0.001, low=5e-4, high=2e-3)
    for made in (1.0, 1.5):
        failed = rng.uniform(size=len(shares)) < [sharpened(x, made) for x in shares]
        runs = said_of(shares.tolist(), failed.tolist(), 1.0)
        assert sharpness_of(runs, lapse) == pytest.approx(made, abs=0.11)


def test_a_run_that_never_reaches_its_peak_bears_a_higher_nominal_rate():
    shipped = load_edge_model()
    half = shipped.predict(inputs(steps=1000, warmup_steps=2000))
    whole = shipped.predict(inputs(steps=1000, warmup_steps=1000))
    assert half.likely_edge == pytest.approx(2 * whole.likely_edge)


def test_the_same_ladders_in_any_order_give_the_same_bytes(model):
    again = fit_edge_model(ladders()[::-1])
    assert artifact_json(again) == artifact_json(model)
    assert artifact_json(ARTIFACT.parse(artifact_json(model))) == artifact_json(model)


@pytest.mark.parametrize("path", [("edge", "intercept"), ("lapse", "share")])
def test_a_damaged_artifact_is_refused(model, path):
    document = json.loads(artifact_json(model))
    document[path[0]][path[1]] = "NaN"
    with pytest.raises(ArtifactError, match="damaged"):
        ARTIFACT.parse(json.dumps(document))


def test_a_rate_is_carried_by_the_shift_of_the_edge(model):
    found = shifts(model, inputs(64), inputs(1024))
    assert 10 ** found["rksp"] == pytest.approx(1 / 16, rel=0.2)
    assert found["same rate"] == 0
    assert 10 ** found["1/width"] == pytest.approx(1 / 16)


def _gpt2(**changes):
    """What the shipped model says of GPT-2 with a constant rate."""
    recipe = {"steps": 4000, "warmup_steps": 500, "late_share": 1.0, "beta2": 0.999} | changes
    sizes = {"width": 768, "depth": 12, "vocabulary": 50257, "sequence_length": 1024}
    return load_edge_model().predict(EdgeInputs(**sizes, batch_tokens=2**18, **recipe))


def test_a_constant_schedule_is_no_failure():
    assert _gpt2().failed(3e-4) < 0.5
    for steps in (1000, 4000, 5000, 20_000, 100_000):
        assert _gpt2(steps=steps).failed(1e-4) < 0.05
    assert _gpt2().failed(3e-2) > 0.95  # a rate that no schedule saves


def test_one_step_of_decay_hardly_moves_the_answer():
    wsd = lambda steps: Recipe(schedule="wsd", max_steps=4000, decay_steps=steps).late_share
    constant, one = _gpt2(), _gpt2(late_share=wsd(1))
    assert one.failed(3e-4) == pytest.approx(constant.failed(3e-4), abs=0.005)
    assert one.log_edge == pytest.approx(constant.log_edge, abs=0.01)
    edges = [_gpt2(late_share=wsd(steps)).log_edge for steps in (1, 50, 100, 200, 400, 800)]
    assert edges == sorted(edges)
    assert max(b - a for a, b in pairwise(edges)) < 0.5


def test_what_a_long_run_or_warmup_does_stops_at_the_data():
    longest = _gpt2(steps=1200, warmup_steps=0).log_edge
    assert _gpt2(steps=10**6, warmup_steps=0).log_edge == pytest.approx(longest, abs=1e-9)
    assert _gpt2(steps=10**6).start_here > 0.5 * _gpt2(steps=5000).start_here
    warmed = [_gpt2(steps=10**5, warmup_steps=steps).log_edge for steps in (400, 4000, 40_000)]
    assert warmed[0] < warmed[1] == warmed[2]


def test_a_memory_counts_beyond_the_usual_ones():
    usual = [config_features(inputs(beta1=beta1)) for beta1 in (0.9, 0.95)]
    assert all(x["short_memory"] == x["long_memory"] == 0 for x in usual)
    assert config_features(inputs(beta1=0.98))["long_memory"] > 0.3
    looking_ahead = config_features(inputs(beta1=0.8, optimizer="nadamw"))
    longer = config_features(inputs(beta1=0.8, optimizer="nadamw", steps=2000))
    assert 0 < looking_ahead["short_memory"] < 0.5 * longer["short_memory"]
    assert config_features(inputs(beta1=0.8))["short_memory"] == 0


def test_depth_costs_more_where_nothing_normalizes():
    shipped = load_edge_model()
    fall = {
        norm: shipped.predict(inputs(norm=norm, depth=4)).log_edge
        - shipped.predict(inputs(norm=norm, depth=16)).log_edge
        for norm in ("pre", "none")
    }
    assert fall["none"] > fall["pre"] + 0.2


def test_runs_of_one_optimizer_are_ranked_apart_from_the_others():
    """The edge of an optimizer that was never seen is not known, but what moves it is."""
    runs = [
        dataclasses.replace(
            ladder(n, -2.0, source="marin", optimizer=optimizer, width=width),
            best=None,
            rates=np.array([-2.0]),
            failed=np.array([failed]),
            low=-math.inf if failed else -2.0,
            high=-2.0 if failed else math.inf,
            changed="warmup=1",
        )
        for n, (optimizer, width, failed) in enumerate(
            [("adamw", 2048, True), ("adamw", 1024, False), ("lion", 64, True), ("lion", 32, False)]
        )
    ]
    found = single_runs([*ladders(), *runs], lambda x: x.source)
    of_lion = [run for run in found if run[0].inputs.optimizer == "lion"]
    assert (auroc_of(found), auroc_of(of_lion)) == (0.75, 1.0)


def test_an_open_ladder_has_no_edge():
    one = ladder(0, -2.0)
    assert one.has_edge
    assert not dataclasses.replace(one, high=math.inf).has_edge


def test_a_damaged_model_predicts_no_rate():
    shipped = load_edge_model()
    line = dataclasses.replace(shipped.edge, weights={**shipped.edge.weights, "width": 5588.0})
    with pytest.raises(ArtifactError, match="fit it again"):
        dataclasses.replace(shipped, edge=line).predict(inputs(4096))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("card",), 3),
        (("card", "digest"), 3),
        (("short", "below"), [0.0]),
        (("long", "above"), []),
        (("long", "edge", "within"), 1e300),
        (("short", "best", "within"), 0.0),
        (("short", "edge", "between"), [0.1]),
        (("weights",), [0.1]),
        (("ranges", "width"), [-1e300, 2.0]),
        (("lapse", "share"), 0.5),
        (("card", "transfer"), {"rksp": {"edge": "small"}}),
    ],
)
def test_a_model_whose_parts_do_not_fit_is_damaged(part, value):
    stored = json.loads(artifact_json(load_edge_model()))
    place = stored
    for name in part[:-1]:
        place = place[name]
    place[part[-1]] = value
    with pytest.raises(ArtifactError, match="damaged"):
        ARTIFACT.parse(json.dumps(stored))


def test_a_ladders_best_rate_is_one_of_its_rates_on_every_processor():
    # numpy's logarithm differs from Python's in the last bit, and not everywhere alike.
    found = [x for x in edge_ladders() if x.best is not None and len(x.rates) > 1]
    assert len(found) > 400
    assert all(x.best in x.rates for x in found)
    values = [10 ** (-n / 97) for n in range(500)]
    assert log_rates(values).tolist() == [math.log10(value) for value in values]


def _of_family(family: str, edge: float, count: int):
    """Ladders of one family whose edges lie `edge` decades above what the width says."""
    found = []
    for n in range(count):
        width = 64 * 2 ** (n % 4)
        given = ladder(500 + n, 1 + SLOPE * math.log10(width) + edge, width=width, family=family)
        found.append(dataclasses.replace(given, name=f"{family}-{n}"))
    return found


def test_a_family_has_its_own_offset_and_few_ladders_do_not_shout():
    many = fit_edge_model([*ladders(), *_of_family("olmo2", 1.0, 12)], spreads=False)
    one = fit_edge_model([*ladders(), *_of_family("olmo2", 1.0, 2)], spreads=False)
    seed = fit_edge_model([*ladders(), *_of_family("olmo2", 1.0, 1)], spreads=False)
    offset = lambda model: (
        model.predict(inputs(family="olmo2")).log_edge - model.predict(inputs()).log_edge
    )
    assert offset(many) == pytest.approx(0.9, abs=0.2)
    assert 0.1 < offset(one) < offset(many)
    spread = lambda model: model.kinds.families["olmo2"].deviation.edge
    assert spread(one) > 1.3 * spread(many)
    assert "olmo2" not in seed.kinds.families  # one seed would tell its own noise


def test_half_of_what_toy_runs_show_of_a_family_counts_in_long_runs_and_half_widens_the_spread():
    shipped = load_edge_model()
    at = lambda steps, family: shipped.predict(
        inputs(768, steps=steps, warmup_steps=2000, family=family, is_parallel=True)
    )
    plain = lambda steps: shipped.predict(
        inputs(768, steps=steps, warmup_steps=2000, family="gpt_neox")
    )
    short, long = (at(s, "gpt_neox").log_edge - plain(s).log_edge for s in (200, 100_000))
    assert long == pytest.approx(short / 2, abs=1e-6)
    assert at(100_000, "gpt_neox").edge.spread > plain(100_000).edge.spread
    assert at(100_000, "gpt_neox").unlike["kind"] == pytest.approx(short / 2, abs=0.1)


def test_what_the_data_do_not_know_widens_the_interval_and_says_so():
    shipped = load_edge_model()
    usual = shipped.predict(inputs(family="llama"))
    for changed in ({"family": "never-seen"}, {"optimizer": "muon"}, {"width": 200_000}):
        read = shipped.predict(inputs(**{"width": 256, "family": "llama"} | changed))
        assert read.edge.spread > usual.edge.spread + 0.02
        assert sum(read.unlike.values()) > sum(usual.unlike.values()) + 0.05
    assert sum(usual.unlike.values()) < 0.1


def test_masked_text_widens_the_interval_of_long_runs_by_more_than_another_objective_does():
    shipped = load_edge_model()
    at = lambda steps, **more: shipped.predict(
        inputs(768, steps=steps, warmup_steps=100, family="bert", predicts_next=False, **more)
    )
    masked, other = at(100_000, masks=True), at(100_000)
    assert masked.unlike["objective"] == pytest.approx(0.45)
    assert 0 < other.unlike["objective"] < 0.4
    assert (
        masked.rate_at(DEFAULT_RISK) / 10**masked.log_edge
        < other.rate_at(DEFAULT_RISK) / 10**other.log_edge
    )
    assert "objective" not in at(200, masks=True).unlike  # the lab has such runs


def test_a_rate_of_muon_in_jordans_scale_is_converted():
    shipped = load_edge_model()
    at = lambda **more: shipped.predict(inputs(1024, optimizer="muon", family="llama", **more))
    matched, original = at(), at(muon_scale="original")
    assert original.log_edge - matched.log_edge == pytest.approx(math.log10(0.2 * 32))
    assert original.log_best - matched.log_best == pytest.approx(math.log10(0.2 * 32))
    adamw = inputs(1024, muon_scale="original")  # it has one scale
    assert shipped.predict(adamw).log_edge == shipped.predict(inputs(1024)).log_edge


def test_a_model_narrower_than_any_run_so_long_has_no_higher_edge_or_rate_and_is_named():
    shipped = load_edge_model()
    at = lambda width, steps: shipped.predict(
        inputs(width, steps=steps, warmup_steps=100, family="llama")
    )
    assert at(64, 100_000).log_edge == pytest.approx(at(256, 100_000).log_edge)
    assert at(64, 100_000).rate_at(DEFAULT_RISK) == pytest.approx(
        at(256, 100_000).rate_at(DEFAULT_RISK)
    )
    assert at(64, 100_000).outside["width"] == pytest.approx(math.log10(4))
    assert at(64, 200).log_edge > at(256, 200).log_edge + 0.1  # the lab has such runs
    assert "width" not in at(64, 200).outside


def test_another_objective_than_the_next_token_widens_long_runs():
    shipped = load_edge_model()
    at = lambda steps, causal: shipped.predict(
        inputs(768, steps=steps, family="bert", norm="post", predicts_next=causal)
    )
    assert at(100_000, causal=False).edge.spread > at(100_000, causal=True).edge.spread + 0.05
    below = lambda said: said.rate_at(DEFAULT_RISK) / said.likely_edge
    assert below(at(100_000, causal=False)) < below(at(100_000, causal=True))
    assert at(200, causal=False).edge.spread == at(200, causal=True).edge.spread


def test_the_best_rate_follows_the_batch_up_to_a_critical_one():
    shipped = load_edge_model()
    best = [
        shipped.predict(inputs(1024, steps=50_000, warmup_steps=2000, batch_tokens=tokens)).log_best
        for tokens in (1e5, 3e5, 1e6, 4e6, 2e7)
    ]
    assert best[0] + 0.05 < best[1] < best[2] - 0.05
    assert best[2] == pytest.approx(best[3], abs=1e-9) == pytest.approx(best[4], abs=1e-9)


def test_a_deviation_that_raises_the_edge_of_toy_runs_does_nothing_in_long_ones():
    raised = config_features(inputs(64, init_std=0.8))["large_init"]
    assert raised == pytest.approx(math.log10(0.8 * math.sqrt(2.5 * 64)))
    assert config_features(inputs(64, init_std=0.02))["large_init"] == 0
    assert config_features(inputs(64, init_std=0.8, steps=10_000))["large_init"] == 0


def test_the_lab_says_what_its_models_are():
    found = {x.inputs.family: x.inputs for x in edge_ladders() if x.source == "lab"}
    assert found["bert"].norm == found["opt_post"].norm == "post"
    assert found["gpt_neox"].is_parallel and found["zoo_parallel"].is_parallel
    assert found["olmo2"].normalizes_branches and not found["llama"].normalizes_branches
    assert not found["llama"].is_parallel
    assert any(x.inputs.is_made_up for x in edge_ladders() if x.source == "lab")


def test_depth_costs_more_where_blocks_normalize_after_the_sum():
    said = load_edge_model().predict
    fall = {
        norm: said(inputs(norm=norm, depth=4)).log_edge - said(inputs(norm=norm, depth=24)).log_edge
        for norm in ("pre", "post")
    }
    assert fall["post"] > fall["pre"] + 0.02


def test_the_best_rate_follows_the_length_of_the_run_up_to_the_data_and_the_edge_does_not():
    runs = {steps: inputs(steps=steps) for steps in (300, 1000, 5000, 100_000)}
    length = {steps: config_features(run)["length"] for steps, run in runs.items()}
    assert 0 == length[300] < length[1000] < length[5000] == length[100_000] == 1
    model = load_edge_model()
    assert model.best.weights["length"] > 0.1 and "length" not in model.edge.weights


def test_a_warm_up_does_not_move_adafactor():
    edge = lambda **run: load_edge_model().predict(inputs(steps=10_000, **run)).log_edge
    without, with_one = ({"warmup_steps": n} for n in (0, 1000))
    assert edge(optimizer="adafactor", **without) == edge(optimizer="adafactor", **with_one)
    assert edge(**without) < edge(**with_one) - 0.1
