"""The posterior of nested offsets: laws that every history obeys."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from support.edge_cases import inputs
from support.past_runs import team_ladder

from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.rates import RateDistribution, RateMixture
from rksp.own_runs.informed import InformedModel
from rksp.own_runs.observed import Observed, path_of
from rksp.own_runs.offsets import GRID, SEED, Spreads, posterior

TARGET = inputs(width=1024, steps=20_000, warmup_steps=500)


def informed(*seen: Observed, family: str = "gpt2") -> InformedModel:
    return InformedModel(prior=load_edge_model(), family=family, seen=seen)


def test_without_runs_the_answer_is_the_shipped_one():
    found, said = informed().predict(TARGET), load_edge_model().predict(TARGET)
    assert (found.edge, found.best, found.learned) == (said.edge, said.best, None)


def test_a_ladder_moves_the_edge_towards_what_it_shows_and_narrows_it():
    said = load_edge_model().predict(TARGET)
    for offset in (-0.5, 0.5):
        found = informed(team_ladder(offset)).predict(TARGET)
        assert 0 < (found.log_edge - said.log_edge) / offset < 1
        assert (found.log_best - said.log_best) * offset > 0
    found = informed(team_ladder(0.0)).predict(TARGET)
    assert found.edge.spread < said.edge.spread
    assert found.learned.edge_range_after < found.learned.edge_range_before


def test_what_a_run_shares_with_the_target_decides_how_much_it_says():
    """The same ladder, nearer and nearer to the target: it moves the answer more and more."""
    ladder = team_ladder(-0.5)
    own = informed(ladder)
    nearer = [
        informed(replace(ladder, family="llama")).predict(TARGET),
        own.predict(TARGET),
        own.predict(replace(ladder.inputs, warmup_steps=600)),
        own.predict(ladder.inputs),
    ]
    shifts = [-found.learned.edge_shift for found in nearer]
    assert shifts == sorted(shifts) and shifts[0] > 0
    levels = [found.learned.shares for found in nearer]
    assert levels == ["team", "optimizer", "model", "ladder"]


def test_another_optimizer_says_less():
    other = informed(team_ladder(-0.5, optimizer="lion")).predict(TARGET)
    assert abs(other.learned.edge_shift) < abs(
        informed(team_ladder(-0.5)).predict(TARGET).learned.edge_shift
    )


def test_more_ladders_say_more():
    ladders = [team_ladder(-0.5, name=str(w), width=w) for w in (256, 384, 512, 640)]
    shifts = [-informed(*ladders[:n]).predict(TARGET).learned.edge_shift for n in (1, 2, 4)]
    assert shifts == sorted(shifts)
    assert 0.2 < shifts[-1] < 0.5  # all that they show, less what the target does not share


def test_a_single_run_bounds_from_one_side():
    said = load_edge_model().predict(TARGET)
    low, high = said.log_edge - 0.5, said.log_edge + 0.5
    lone = lambda rate, failed: Observed(
        name="lone",
        family="gpt2",
        inputs=TARGET,
        log_rates=np.array([rate]),
        failed=np.array([failed]),
        losses=np.array([3.0]),
    )
    shift = lambda run: informed(run).predict(TARGET).learned.edge_shift
    assert shift(lone(high, 0.0)) > 0.03  # it trained where the edge was thought to be passed
    assert shift(lone(low, 1.0)) < -0.03
    assert abs(shift(lone(low - 1, 0.0))) < 0.02  # nothing new
    assert shift(lone(high, float("nan"))) == pytest.approx(0, abs=1e-6)


def test_a_best_rate_at_the_border_bounds_from_one_side():
    """Only rates above the best were tried: the best rate may lie lower, and is not pulled up."""
    whole = team_ladder(-0.4)
    best = int(np.argmin(whole.losses))
    cut = replace(
        whole,
        log_rates=whole.log_rates[best + 1 :],
        failed=whole.failed[best + 1 :],
        losses=whole.losses[best + 1 :],
    )
    said = load_edge_model().predict(whole.inputs)
    assert informed(cut).predict(whole.inputs).log_best < said.log_best + 0.02
    assert cut.best_likelihood(said.log_best)[0] == pytest.approx(1, abs=0.1)


def test_what_low_rates_lose_makes_the_curve_steeper_and_never_flatter():
    ladder, prior = team_ladder(0.0), load_edge_model().predict(TARGET).below
    below = lambda scale: (
        informed(replace(ladder, losses=ladder.losses * scale)).predict(TARGET).below
    )
    assert (below(0.01) == prior).all()
    assert (below(10.0)[prior > 0] > prior[prior > 0]).all()


def test_a_flat_bottom_says_less_of_the_best_rate():
    ladder = team_ladder(-0.4)
    flat = replace(ladder, losses=np.where(ladder.failed > 0, ladder.losses, 3.0))
    spread = lambda seen: informed(seen).predict(ladder.inputs).best.spread
    assert spread(ladder) < spread(flat)


def test_seeds_that_disagree_leave_the_edge_wider():
    ladder = team_ladder(0.0)
    twice = lambda failed: replace(
        ladder,
        log_rates=np.repeat(ladder.log_rates, 2),
        failed=failed,
        losses=np.repeat(ladder.losses, 2),
    )
    agree = np.repeat(ladder.failed, 2)
    torn = agree.copy()
    near = np.argsort(np.abs(np.repeat(ladder.log_rates, 2) - ladder.log_rates.mean()))
    torn[near[:6:2]] = 1 - torn[near[:6:2]]
    spread = lambda failed: informed(twice(failed)).predict(ladder.inputs).edge.spread
    assert spread(agree) < spread(torn)


def test_the_order_of_the_runs_does_not_matter():
    ladders = [team_ladder(o, name=str(o), width=w) for o, w in ((0.2, 256), (-0.3, 512), (0, 640))]
    found = {informed(*order).predict(TARGET).log_edge for order in itertools.permutations(ladders)}
    assert max(found) - min(found) < 1e-9


def test_one_ladder_that_contradicts_the_rest_is_outvoted():
    agreeing = [team_ladder(-0.2, name=str(w), width=w) for w in (256, 384, 512, 640)]
    without = informed(*agreeing).predict(TARGET).log_edge
    mad = informed(*agreeing, team_ladder(2.5, name="mad", width=768)).predict(TARGET).log_edge
    assert abs(mad - without) < 0.1


def test_what_was_measured_is_not_counted_twice():
    """A model whose gradient explains its edge: its own ladder then confirms the prediction."""
    prior = load_edge_model()
    measured = {"grad_norm": 1.0}
    bare, said = prior.predict(TARGET), prior.predict(TARGET, measured)
    offset = said.log_edge - bare.log_edge
    assert abs(offset) > 0.05
    ladder = team_ladder(offset, **{"width": 1024})
    assert abs(informed(ladder).predict(TARGET, measured).log_edge - said.log_edge) < 0.05


def test_the_tree_agrees_with_a_normal_posterior():
    """With normal likelihoods everything is normal: compare with the algebra of Gaussians."""
    spreads = Spreads(weights=(1.0,), between=(0.3,), outer=(0.5, 0.4, 0.1), within=0.2)
    places = [path_of("gpt2", inputs(width=w)) for w in (256, 512)]
    places.append(path_of("llama", inputs(width=256)))
    target = path_of("gpt2", inputs(width=1024))
    seen, noise = (0.4, 0.1, -0.3), 0.1
    logs = [-0.5 * ((GRID - x) / noise)[None] ** 2 for x in seen]
    found, known = posterior(list(zip(places, logs, strict=True)), target, spreads)
    levels = [0.3 * np.sqrt(share) for share in spreads.outer] + [spreads.model, spreads.ladder]

    def shared(one, other):
        same = 1 + next((n for n in range(4) if one[n] != other[n]), 4)
        return sum(s**2 for s in levels[:same])

    covariance = np.array([[shared(a, b) for b in places] for a in places])
    covariance += np.eye(3) * noise**2
    cross = np.array([sum(s**2 for s in levels[: min(3, 1 + _same(target, a))]) for a in places])
    weights = np.linalg.solve(covariance, cross)
    (part,) = found.parts
    assert part.location == pytest.approx(float(weights @ seen), abs=0.01)
    variance = sum(s**2 for s in levels[:3]) - float(weights @ cross)
    assert part.between == pytest.approx(np.sqrt(variance), rel=0.03)
    assert found.within == pytest.approx(0.2)
    assert known == 2


def _same(one, other) -> int:
    return next((n for n in range(4) if one[n] != other[n]), 4)


def test_a_surprising_ladder_favours_the_wide_spreads():
    parts = tuple(RateDistribution(location=0.0, within=0.2, between=b) for b in (0.05, 0.6))
    spreads = Spreads.of(RateMixture(weights=(0.5, 0.5), parts=parts), 1.0)
    place = path_of("gpt2", inputs(width=256))
    target = path_of("gpt2", inputs(width=1024))
    at = lambda x: [(place, -0.5 * ((GRID - x) / SEED)[None] ** 2)]
    assert posterior(at(1.2), target, spreads)[0].weights[1] > 0.9
    assert posterior(at(0.0), target, spreads)[0].weights[1] < 0.5


def test_a_thousand_runs_are_learned_within_a_moment():
    prior = load_edge_model()
    many = [
        team_ladder(-0.2, name=f"{w}", width=w, rungs=range(-2, 2), steps=20_000 + w)
        for w in range(256, 506)
    ]
    model = InformedModel(prior=prior, family="gpt2", seen=many)
    model.predict(TARGET)  # what the prior says of every run is computed once
    start = time.process_time()
    model.predict(TARGET)
    assert time.process_time() - start < 1  # 0.02 on a machine of its own, 0.25 on a busy one


def test_a_ladder_of_the_model_itself_covers_it():
    """Where rksp cannot tell, a ladder of that very model answers, and one of another does not."""
    from rksp.assessment.risk import About, Basis
    from rksp.documents.verdict import Verdict
    from rksp.spectra.features import Tier, extract

    far = {"width": 4, "depth": 500}
    asked = inputs(**far, steps=20_000, warmup_steps=500)

    def verdict(*seen: Observed) -> Verdict:
        doubts = ("the labelled runs all have a residual stream",)
        about = About(learning_rate=1e-3, steps=asked.steps, tier=Tier.CONFIG)
        model = informed(*seen)
        return Basis.of(extract(), asked, model, doubts).answer(about).verdict

    assert verdict() is Verdict.CANNOT_TELL
    assert verdict(team_ladder(0.0)) is Verdict.CANNOT_TELL
    assert verdict(team_ladder(0.3, **far)) is not Verdict.CANNOT_TELL
    open_above = team_ladder(0.3, **far, rungs=range(-6, -1))
    assert verdict(open_above) is Verdict.CANNOT_TELL  # it never failed, so its edge is not known


def test_what_is_unlike_the_data_in_a_recipe_carries_whole():
    rates = RateMixture(
        weights=(1.0,), parts=(RateDistribution(location=0.0, within=0.1, between=0.5),)
    )
    of = lambda unlike: Spreads.of(rates, 0.5, unlike)
    owns = [of(unlike).own for unlike in (0.0, 0.3, 0.5)]
    assert owns == pytest.approx([0.5 * 0.25, 0.5 * (0.25 - 0.09), 0.0])
    for unlike in (0.0, 0.3, 0.5, 0.6):  # what carries and what is the model's own make the whole
        found = of(unlike)
        assert sum(found.outer) * 0.25 + found.own == pytest.approx(0.25)


@pytest.mark.parametrize("offset", [-1.5, -0.5, 0.5])
def test_a_batch_of_few_tokens_says_nothing_of_usual_ones(offset):
    """A team like `lenardst` (CS336): at batch 1 its edge lies far off, elsewhere where it is said.

    What a step of few tokens costs is hardly known, so the ladder shows that and not the team.
    """
    few = team_ladder(offset, width=512, batch_tokens=256, steps=400_000)
    usual = team_ladder(max(offset, -0.5), width=512, batch_tokens=32_768, steps=10_000)
    said = load_edge_model().predict(TARGET)
    apart, alike = informed(few).predict(TARGET), informed(usual).predict(TARGET)
    assert abs(apart.log_edge - said.log_edge) <= 0.02
    assert abs(apart.log_best - said.log_best) <= 0.02
    assert abs(alike.log_edge - said.log_edge) > 0.05  # a usual batch says it of all
    same = informed(few).predict(few.inputs)  # and of itself it tells all
    assert (same.log_edge - load_edge_model().predict(few.inputs).log_edge) / offset > 0.8


@pytest.mark.parametrize("along", ["width", "batch_tokens"])
def test_two_ladders_show_a_slope_of_the_team(along):
    """An offset that rises with the size says more of a larger one than an offset that falls."""
    sizes, usual = (1024, 4096), {"width": 1024, "batch_tokens": 4096}
    asked = replace(team_ladder(0.0, **usual, warmup_steps=700).inputs, **{along: 16_384})

    def edge(*offsets: float, at: tuple[int, int] = sizes) -> float:
        changed = [{along: size, "warmup_steps": 500 + n} for n, size in enumerate(at)]
        ladders = [team_ladder(o, **usual | c) for o, c in zip(offsets, changed, strict=True)]
        return informed(*ladders).predict(asked).log_edge

    assert edge(-0.3, 0.0) - edge(0.0, -0.3) > 0.01
    same = sizes[:1] * 2  # of one size: which of the two is off does not matter
    assert abs(edge(-0.3, 0.0, at=same) - edge(0.0, -0.3, at=same)) < 0.005


@pytest.mark.parametrize("offset", [-0.6, -0.3, 0.0, 0.3, 0.6])
def test_a_known_offset_lies_within_its_interval(offset):
    ladders = [team_ladder(offset, name=str(w), width=w) for w in (256, 384, 640)]
    said, found = load_edge_model().predict(TARGET), informed(*ladders).predict(TARGET)
    for before, after in ((said.edge, found.edge), (said.best, found.best)):
        assert 0.05 < after.below(10 ** (before.location + offset)) < 0.95
        assert after.spread < before.spread * (1.0 if abs(offset) < 0.5 else 1.01)
        assert abs(after.location - before.location - offset) <= 0.6 * abs(offset) + 0.02


@pytest.mark.parametrize("odd", [0.3, 0.6, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("side", [-1, 1])
def test_one_odd_ladder_cannot_mislead(odd, side):
    """However far off it is, beside three that agree it moves neither rate by a fifth of a decade.

    From a decade and a half on it is taken for another metric, and moves nothing.
    """
    agreeing = [team_ladder(-0.2, name=str(w), width=w) for w in (256, 384, 512)]
    mad = team_ladder(-0.2 + side * odd, name="odd", width=640)
    without, beside = informed(*agreeing).predict(TARGET), informed(*agreeing, mad).predict(TARGET)
    most = 0.02 if odd >= 2 else 0.2
    assert abs(beside.log_edge - without.log_edge) < most
    assert abs(beside.log_best - without.log_best) < most
