"""One rule of the verdict: a score, a grid and several seeds read it alike."""

from __future__ import annotations

import dataclasses

import pytest
from support.edge_cases import inputs
from support.reports import finding

from rksp.assessment.pipeline import Evaluation, evaluate, gather, judge, score_report
from rksp.assessment.risk import Basis
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.finding import Level
from rksp.documents.options import MeasureOptions
from rksp.documents.verdict import Verdict, verdict_at
from rksp.grid.store import Row
from rksp.grid.table import records
from rksp.ground.text import short
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.spectra.features import extract

REAL = inputs(4096, depth=32, vocabulary=32000, batch_tokens=4e6, steps=250_000, warmup_steps=2000)


def _assess(rate: float):
    return Basis.of(extract(), REAL, load_edge_model()).answer(rate)


def _cell(rate: float, answer) -> str:
    row = Row(
        key="k",
        position=0,
        init="i",
        target="gpt2",
        overrides={},
        seed=0,
        recipe={"learning_rate": rate},
        labels={},
        state="done",
        tries=1,
        failure=None,
        message=None,
        result=answer.model_dump(mode="json"),
    )
    return records([row])[0]["verdict"]


@pytest.mark.parametrize("share", [0.1, 0.99, 1.0, 1.004, 1.009, 1.012, 1.1, 3.0, 30.0])
def test_a_score_and_a_cell_of_a_grid_have_the_same_verdict(share):
    rate = _assess(1e-4).do_not_exceed * share
    answer = _assess(rate)
    assert answer.verdict.value == _cell(rate, answer)


@pytest.mark.parametrize("steps", [100, 300, 1000, 20_000])  # S above X, and below it
def test_the_finding_and_the_verdict_agree_around_the_printed_rates(steps):
    evidence = gather(resolve("gpt2", counts=False), MeasureOptions(evidence="config"))

    def judged(rate: float) -> Evaluation:
        recipe = Recipe(learning_rate=rate, max_steps=steps, warmup_steps=steps // 10)
        return judge(evidence, recipe, with_details=False)

    at = judged(1e-5).risk
    assert (at.start_here > at.do_not_exceed) == (steps < 1000)
    for bound in (at.start_here, at.do_not_exceed):
        for share in (0.9, 0.93, 0.96, 0.99, 1.0, 1.01, 1.04, 1.07, 1.1, 2.0, 4.0):
            found = judged(bound * share)
            said = [f for f in found.findings if f.code == "RKSP501"]
            warned = [f for f in said if f.level is Level.WARNING]
            assert (found.risk.verdict is Verdict.CAUTION) == bool(warned)
            assert all(" times" in f.message and " 0." not in f.message for f in said)
        printed = float(short(bound, 2))
        if printed >= max(at.start_here, at.do_not_exceed):
            assert "RKSP501" not in {finding.code for finding in judged(printed).findings}


def test_the_rate_not_to_exceed_as_shown_is_not_above_itself():
    ceiling = _assess(1e-4).do_not_exceed
    highest = max(ceiling, float(f"{ceiling:.1e}"))  # as it is shown
    assert _assess(highest).verdict is Verdict.OK
    assert verdict_at(0.5, 0.1, 1e-3, None, None) is Verdict.OK


def test_a_rate_above_the_bounds_is_doubtful_only_near_the_bar():
    start, ceiling = 1e-3, 2e-3
    for failed, rate, word in (
        (0.19, 3e-3, "ok"),  # above both, as many healthy recipes are
        (0.21, 3e-3, "caution"),
        (0.21, 2.1e-3, "ok"),  # less than a tenth above
        (0.49, 1e-3, "ok"),
        (0.5, 1e-3, "risk"),
    ):
        assert verdict_at(0.5, failed, rate, start, ceiling).value == word
    assert verdict_at(0.2, 0.1, 3e-3, start, ceiling) is Verdict.CAUTION  # of a stricter bar


def test_the_findings_of_several_seeds_are_those_of_the_deciding_one():
    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 512}
    source, recipe = resolve("gpt2", overrides=tiny), Recipe(learning_rate=6e-4)
    options = MeasureOptions(states=256, evidence="forward")
    evaluation = evaluate(source, recipe, options)
    seeds = [
        dataclasses.replace(
            evaluation,
            seed=seed,
            risk=evaluation.risk.model_copy(update={"verdict": Verdict(verdict)}),
            findings=(finding(message=f"of seed {seed}"),),
        )
        for seed, verdict in enumerate(["ok", "risk", "risk"])
    ]
    report = score_report(recipe, seeds)
    assert report.verdict == "risk"
    assert [found.message for found in report.findings] == ["of seed 1"]
