"""Each check trips on its failing setting and not on its stable twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import check_cases_forward, check_cases_model, check_cases_precision, check_cases_rate
from support.check_evidence import (
    RECIPE,
    TUNED,
    UNMEASURED,
    attending,
    found,
    healthy,
    routing,
)

from rksp.checks.evidence import CheckEvidence
from rksp.checks.registry import CHECKS, run_checks
from rksp.documents.finding import Level
from rksp.recipe.start import SCRATCH

CASES = {
    **check_cases_forward.CASES,
    **check_cases_precision.CASES,
    **check_cases_rate.CASES,
    **check_cases_model.CASES,
}
NUMBERLESS = {
    "non-finite-activation",
    "fp16-family",
    "fp8-training",
    "non-finite-gradient",
    "missing-normalization",
    "module-and-configuration",
}


@pytest.mark.parametrize("case", CASES)
def test_failing_setting_trips_it_and_the_stable_twin_does_not(case: str):
    failing, level, stable = CASES[case]
    name = case.split(",")[0]
    finding = found(failing)[name]
    assert finding.level is level
    assert (finding.value is None) == (name in NUMBERLESS) or case == "fp8-training, outliers"
    assert finding.fix.endswith(".")
    assert finding.message.endswith(".")
    assert name not in found(stable)


def test_every_check_has_a_case_at_its_worst_level():
    worst = {check.name: check.level for check in CHECKS}
    reached: dict[str, list[Level]] = {}
    for case, (_, level, _) in CASES.items():
        reached.setdefault(case.split(",")[0], []).append(level)
    assert set(reached) == set(worst)
    order = list(Level)
    milder = {n for n in worst if min(map(order.index, reached[n])) > order.index(worst[n])}
    assert milder == {"router-logit-scale"}  # the error is the next test's
    assert found(healthy(forward=routing(logit_std=20.0)))["router-logit-scale"].level == "error"


def test_a_healthy_run_has_no_findings():
    assert run_checks(healthy()) == ()


def test_what_is_not_known_is_not_judged():
    assert run_checks(CheckEvidence(recipe=RECIPE)) == ()
    nothing = dict.fromkeys(("loss", "logit_std", "activation_absmax"))
    bare = healthy(
        facts=dict.fromkeys(("input_std", "output_std", "embedding_std")),
        forward=nothing | {"attention": (), "routers": ()},
        gradient=UNMEASURED | {"reason": "the gradient is zero"},
        start_here=None,
        do_not_exceed=None,
        likely_edge=None,
    )
    assert run_checks(bare) == ()


def test_trained_weights_are_not_judged_as_initializations():
    evidence = healthy(
        facts={"input_std": 0.3, "embedding_std": 2.0},
        forward={"loss": 40.0, "logit_std": 30.0} | attending(logit_std=9.0, entropy=0.05),
        start=TUNED,
    )
    assert found(evidence) == {}
    assert len(found(replace(evidence, start=SCRATCH))) >= 5
