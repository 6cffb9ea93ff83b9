"""The page says in a clause what measuring changed, and which numbers are unusual."""

from __future__ import annotations

import pytest
from support.reports import scored, with_risk

from rksp.assessment.pipeline import evaluate, score_report
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.options import MeasureOptions
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.score.measured import change, measured

TINY = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 300}


def _seed(factor: float | None = 1.0, gradient: float = 0.0, **risk):
    """Return a seed whose edge moved by a factor, and by so many decades for its gradient."""
    seed = scored().seeds[0]
    if factor is None:
        return with_risk(scored(), verdict="cannot tell", reasons=["too far"]).seeds[0]
    edge = seed.configured.likely_edge * factor
    parts = [c._replace(decades=gradient) for c in seed.risk.contributions if c[2] == "grad_norm"]
    changed = {"likely_edge": edge, "contributions": parts} | risk
    return seed.model_copy(update={"risk": seed.risk.model_copy(update=changed)})


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (_seed(1 / 1.4, -0.146), "the first gradient lowered the edge by a factor of 1.4"),
        (_seed(2.0, 0.301), "the first gradient raised the edge by a factor of 2"),
        (_seed(2.0, 0.1), "measuring raised the edge by a factor of 2"),
        (_seed(1.01, 0.0), "the first gradient left the edge where the configuration puts it"),
        (_seed(None), "the configuration had said E"),
        (_seed(evidence="forward"), "the rates are the configuration's"),
    ],
)
def test_the_clause_says_what_moved_the_edge_and_by_how_much(seed, said):
    assert change(seed).startswith(said)


def test_nothing_is_said_where_nothing_was_measured():
    source = resolve("gpt2", overrides=TINY, counts=False)
    options = MeasureOptions(evidence="config")
    report = score_report(Recipe(), [evaluate(source, Recipe(), options)])
    assert change(report.seeds[0]) == "" and measured(report.seeds[0]) == []


def test_a_number_outside_the_range_of_the_labelled_models_says_so():
    low, high = load_edge_model().measured_ranges["grad_norm"]
    seed = scored().seeds[0]

    def note(norm: float) -> str:
        gradient = seed.gradient.model_copy(update={"grad_norm": norm})
        rows = measured(seed.model_copy(update={"gradient": gradient}))
        return next(row.note for row in rows if row.word == "gradient norm")

    assert "labelled models" not in note(10 ** (0.5 * (low + high)))
    assert f"outside {10**low:.2g} to {10**high:.2g} of the labelled models" in note(2 * 10**high)
    assert "labelled models" in note(0.5 * 10**low)


def test_a_forward_pass_gives_the_configuration_s_rates_and_says_so():
    source = resolve("gpt2", overrides=TINY)
    options = MeasureOptions(states=64, evidence="forward")
    seed = score_report(Recipe(), [evaluate(source, Recipe(), options)]).seeds[0]
    assert seed.risk.likely_edge == pytest.approx(seed.configured.likely_edge, rel=0.02)
    assert "configuration's" in change(seed)
