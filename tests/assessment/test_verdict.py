"""One rule of the verdict: a score, a grid and several seeds read it alike."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from support.edge_cases import inputs
from support.reports import finding

from rksp.assessment.pipeline import Evaluation, evaluate, gather, judge, score_report
from rksp.assessment.risk import About, Basis, edge_inputs
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.answer import FromEdge
from rksp.documents.finding import Level
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Terms
from rksp.documents.verdict import Verdict, word_at, words_of
from rksp.grid.group import CellAnswer
from rksp.grid.store import Row
from rksp.grid.table import records
from rksp.ground.text import short
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.glossary import find_word
from rksp.spectra.features import Tier, extract

REAL = inputs(4096, depth=32, vocabulary=32000, batch_tokens=4e6, steps=250_000, warmup_steps=2000)


def _about(rate: float) -> About:
    return About(learning_rate=rate, steps=REAL.steps, tier=Tier.CONFIG)


def _assess(rate: float):
    return Basis.of(extract(), REAL, load_edge_model()).answer(_about(rate))


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
        result=CellAnswer(
            verdict=str(answer.verdict),
            probability_failed=answer.probability_failed,
            do_not_exceed=answer.do_not_exceed,
        ),
    )
    return records([row])[0].verdict


@pytest.mark.parametrize("share", [0.1, 0.99, 1.0, 1.004, 1.009, 1.012, 1.1, 3.0, 30.0])
def test_a_score_and_a_cell_of_a_grid_have_the_same_verdict(share):
    rate = _assess(1e-4).do_not_exceed * share
    answer = _assess(rate)
    assert answer.verdict.value == _cell(rate, answer)


@pytest.mark.parametrize("steps", [100, 300, 1000, 20_000])
def test_the_finding_and_the_verdict_agree_around_the_printed_rates(steps):
    evidence = gather(resolve("gpt2", counts=False), MeasureOptions(evidence="config"))

    def judged(rate: float) -> Evaluation:
        recipe = Recipe(learning_rate=rate, max_steps=steps, warmup_steps=steps // 10)
        return judge(evidence, recipe, with_details=False)

    at = judged(1e-5).risk
    for bound in (at.start_here, at.do_not_exceed):
        for share in (0.9, 0.93, 0.96, 0.99, 1.0, 1.01, 1.04, 1.07, 1.1, 2.0, 4.0):
            found = judged(bound * share)
            said = [f for f in found.findings if f.code == "RKSP501"]
            warned = [f for f in said if f.level is Level.WARNING]
            assert (found.risk.verdict is Verdict.CAUTION) == bool(warned)
            assert not any(re.search(r" 0\.\d* times", f.message) for f in said)
        printed = float(short(bound, 2))
        if printed <= at.do_not_exceed:
            assert "RKSP501" not in {finding.code for finding in judged(printed).findings}


def test_the_rate_not_to_exceed_as_shown_is_not_above_itself():
    ceiling = _assess(1e-4).do_not_exceed
    highest = max(ceiling, float(f"{ceiling:.1e}"))  # as it is shown
    assert _assess(highest).verdict is Verdict.OK
    assert word_at(None, ceiling, is_risk=False) is Verdict.OK


def _random_answers(count: int) -> Iterator[tuple[float, FromEdge, Terms]]:
    """Yield answers to random recipes on random models, under random terms."""
    model, draw = load_edge_model(), random.Random(0)
    per_estimate = 40
    for _ in range(count // per_estimate):
        recipe = Recipe(
            optimizer=draw.choice(("adamw", "lion", "sgd", "muon")),
            batch_size=2 ** draw.randint(0, 9),
            max_steps=(steps := draw.randint(50, 50_000)),
            warmup_steps=draw.choice((0, steps // 10)),
        )
        shape = {"width": 2 ** draw.randint(5, 12), "depth": draw.randint(1, 48)}
        norm = draw.choice(("pre", "post", "none"))
        said = model.predict(edge_inputs(recipe, **shape, vocabulary=32_000, norm=norm))
        for _ in range(per_estimate):
            bar, risk = draw.uniform(0.02, 0.98), draw.uniform(0.02, 0.98)
            terms = Terms(fail_on=[str(bar)], risk=risk)
            rate = 10 ** draw.uniform(-6.0, 1.0)
            about = About(learning_rate=rate, steps=steps, tier="config", terms=terms)
            fields = about.of_estimate(said, "cell")
            yield rate, FromEdge(**fields, start_excess=0.0), terms


def test_the_word_is_the_place_on_the_scale():
    seen = Counter()
    for rate, said, terms in _random_answers(10_000):
        bar, x = terms.gate.bar, said.do_not_exceed
        word = "risk" if said.probability_failed >= bar else "caution" if rate > x else "ok"
        assert said.verdict == word
        low, high = said.probability_failed_low, said.probability_failed_high
        assert low <= said.probability_failed <= high
        if bar == 0.5 or terms.risk <= 0.5:
            assert x <= said.likely_edge
        if rate <= x:  # printed as it is, so that the rate as printed is ok
            assert said.verdict == "ok" and said.probability_failed <= min(terms.risk, bar) + 1e-9
        seen[word] += 1
    assert min(seen.values()) > 300 and sum(seen.values()) == 10_000


def test_every_explanation_of_a_word_is_the_rule():
    rule = words_of(Terms().risk, Terms().gate.bar)
    for word in (Verdict.OK, Verdict.CAUTION, Verdict.RISK):
        assert rule[word] in find_word(word).meaning
    assert f"{Terms().risk:.0%}" in find_word("do not exceed").meaning


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
