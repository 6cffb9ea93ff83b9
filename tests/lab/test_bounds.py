"""What nobody can do better: known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge_cases import ladder

from lab.own_runs import bounds
from rksp.classifiers.edge_model import load_edge_model


def test_a_truth_anywhere_in_its_cell_is_a_quarter_of_it_off_the_middle():
    assert bounds._of_grid([0.2, 0.2, 0.2]) == pytest.approx(0.1, abs=1e-3)
    assert bounds._of_grid([0.4]) > bounds._of_grid([0.2])
    assert np.isnan(bounds._of_grid([]))


def test_the_best_start_in_hindsight_loses_nothing_where_one_ladder_is_judged():
    model = load_edge_model()
    whole = ladder(0, -2.0, source="other", width=512, steps=9000)
    start = np.log10(model.predict(whole.inputs).start_here)
    rates = start + np.array([-0.6, -0.3, 0.0, 0.3, 0.6])
    bowl = lambda at: replace(whole, rates=rates, excess=(rates - start - at) ** 2)
    assert bounds._least_regret(model, [bowl(0.3)]) == pytest.approx(0, abs=0.01)
    assert bounds._least_regret(model, [bowl(0.6), bowl(-0.6)]) > 0.3
