"""Where between its rates a ladder has its best rate and its edge: known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge_cases import inputs, ladder
from support.past_runs import team_ladder

from lab.own_runs.thinned import thinned_markdown
from rksp.own_runs import observed
from rksp.own_runs.observed import EVEN, READ, Observed, crossing, lowest
from rksp.own_runs.offsets import GRID

RATES = np.array([-4.0, -3.5, -3.1, -2.5, -2.0])  # uneven, as people choose them


def bowl(at: float, rates: np.ndarray = RATES) -> np.ndarray:
    losses = 0.1 * (rates - at) ** 2
    return losses - losses.min()


@pytest.mark.parametrize("at", [-3.25, -3.1, -2.9])
def test_the_lowest_point_of_a_parabola_is_found_on_any_grid(at):
    read = lowest(RATES, bowl(at), 2, 1e-6)
    assert read.at == pytest.approx(at, abs=1e-9)
    assert read.unsure == pytest.approx(READ * 0.5, rel=1e-3)


def test_a_flat_bottom_may_lie_anywhere_in_its_cell():
    for excess in (np.zeros(5), 0.001 * bowl(-2.9)):
        read = lowest(RATES, excess, 2, 0.01)
        assert read.at == pytest.approx((-3.3 - 2.8) / 2)
        assert read.unsure == pytest.approx(EVEN * 0.5)


def test_a_broken_neighbour_does_not_push_the_best_rate_out_of_its_cell():
    excess = np.array([0.2, 0.1, 0.0, np.inf, np.inf])
    assert -3.3 <= lowest(RATES, excess, 2, 0.005).at < -3.1


def test_a_loss_that_rises_through_the_margin_tells_where():
    excess = np.array([0.1, 0.0, 0.05, 0.45, 2.0])  # 0.25 lies half way from 0.05 to 0.45
    read = crossing(RATES, excess, 0.005)
    assert read.at == pytest.approx((-3.1 - 2.5) / 2)
    assert READ * 0.6 <= read.unsure < EVEN * 0.6


@pytest.mark.parametrize(
    ("excess", "why"),
    [
        ([0.1, 0.0, 0.05, np.inf, np.inf], "it broke"),
        ([0.1, 0.0, 0.05, 4.0, 4.0], "it broke"),
        ([0.1, 0.0, 0.05, 0.1, 0.2], "none failed"),
        ([0.9, 0.5, 0.3, 0.1, 0.0], "the best is the highest"),
        ([0.1, 0.0, 0.24, 0.26, 0.9], "seeds differ by more"),
    ],
)
def test_what_does_not_tell_is_not_read(excess, why):
    assert crossing(RATES, np.array(excess), 0.03) is None, why


def coarse(losses: list[float], failed: list[float]) -> Observed:
    """A ladder with a decade between its rates."""
    return Observed(
        name="coarse",
        family="gpt2",
        inputs=inputs(width=512, steps=20_000, warmup_steps=500),
        log_rates=np.array([-5.0, -4.0, -3.0, -2.0]),
        failed=np.array(failed),
        losses=np.array(losses),
    )


def middle(likelihood: np.ndarray, center: float) -> float:
    """Return the mean place of a likelihood near its center, less the floor of doubt."""
    near = np.abs(GRID) < 1.5
    weight = np.where(near, likelihood - likelihood.min(), 0.0)
    return center + float(weight @ GRID / weight.sum())


def test_a_failure_by_a_hair_puts_the_edge_beside_it():
    """A post-norm ladder of a course: 0.295 nats above the best, 0.25 being the margin."""
    gradual = coarse([3.13, 3.0, 3.295, 7.3], [0, 0, 1, 1])
    sudden = coarse([3.13, 3.0, 8.0, 8.0], [0, 0, 1, 1])
    likelihood = gradual.edge_likelihood(-3.5)
    assert -3.5 + GRID[np.argmax(likelihood)] == pytest.approx(-4 + 0.25 / 0.295, abs=0.03)
    assert -3.3 < middle(likelihood, -3.5) < -3.1
    assert middle(sudden.edge_likelihood(-3.5), -3.5) == pytest.approx(-3.5, abs=0.03)
    contradicted = replace(gradual, failed=np.array([0.0, 1, 1, 1]))  # labels that know better
    assert middle(contradicted.edge_likelihood(-3.5), -3.5) < -3.9


def test_losses_beside_the_best_rate_tell_where_it_is():
    leaning = coarse([3.6, 3.13, 3.0, 3.6], [0, 0, 0, 1])
    mirrored = coarse([3.6, 3.0, 3.13, 3.6], [0, 0, 0, 1])
    assert -3.5 < middle(leaning.best_likelihood(-3.0), -3.0) < -3.1
    assert -3.9 < middle(mirrored.best_likelihood(-4.0), -4.0) < -3.5


def test_a_run_that_crashed_is_no_neighbour_and_one_that_broke_is():
    losses = [3.4, 3.1, np.nan, 3.05, 3.3]
    of = lambda failed: replace(
        coarse([3.0] * 4, [0.0] * 4),
        log_rates=RATES,
        failed=np.array(failed),
        losses=np.array(losses),
    )
    crashed, broke = of([0, 0, np.nan, 0, 0]), of([0, 0, 1.0, 0, 0])
    assert len(crashed._known()[0]) == 4 and len(broke._known()[0]) == 5
    assert np.isinf(broke._known()[1][2])


def test_the_table_of_the_normal_distribution_is_that_of_scipy():
    from scipy.special import ndtr

    places = np.linspace(-12, 12, 9973)
    assert (
        np.abs(np.interp(places, observed._PLACES, observed._CHANCES) - ndtr(places)).max() < 1e-7
    )


def test_readings_are_judged_by_ladders_that_are_thinned():
    """A smooth bowl is read well; where the losses are shuffled nothing is."""
    rates = np.arange(-4, -1.99, 0.2)
    whole = replace(
        ladder(0, -2.0, source="other"),
        best=-3.0,
        rates=rates,
        excess=0.3 * (rates + 2.93) ** 2,
        failed=np.zeros(len(rates), dtype=bool),
    )
    row = next(x for x in thinned_markdown([whole]).splitlines() if "best rate | public" in x)
    between_rates, middles = (float(cell.split(",")[0]) for cell in row.split("|")[4:6])
    assert between_rates < 0.02 < 0.15 < middles
    assert READ < EVEN


def test_a_coarse_ladder_no_longer_misleads_about_the_best_rate():
    """The same team on a fine and on a coarse grid: its best rate is the same."""
    fine = team_ladder(0.0, step=0.1, rungs=range(-20, -1))
    true = float(np.mean([fine.log_rates[i] for i in np.argsort(fine.losses)[:2]]))
    for first in np.arange(0, 0.8, 0.2):
        rates = np.arange(true - 1.6 + first, true + 1.7, 0.8)
        seen = replace(
            fine,
            log_rates=rates,
            failed=np.zeros(len(rates)),
            losses=3 + 0.1 * (rates - true) ** 2,
        )
        assert middle(seen.best_likelihood(true), true) == pytest.approx(true, abs=0.06)
