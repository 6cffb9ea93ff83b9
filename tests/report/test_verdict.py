"""The verdict: one word, and never calmer than a finding."""

from __future__ import annotations

import pytest
from support.reports import finding

from rksp.documents.verdict import WORST_FIRST, combined, decisive_finding

BROKEN = finding("RKSP304", "error", message="Epsilon is zero in fp16.")


@pytest.mark.parametrize("risk", WORST_FIRST)
@pytest.mark.parametrize("level", ["error", "warning", "note"])
def test_a_finding_only_ever_makes_the_verdict_worse(risk, level):
    for is_cause in (False, True):
        verdict = combined(risk, [finding(level=level, is_cause=is_cause)])
        assert WORST_FIRST.index(verdict) <= WORST_FIRST.index(risk)
        assert combined(risk, []) == risk


def test_an_error_is_a_risk_and_a_documented_cause_at_least_a_caution():
    assert combined("ok", [finding(level="error")]) == "risk"
    assert combined("ok", [finding(level="warning")]) == "ok"
    assert combined("ok", [finding(level="warning", is_cause=True)]) == "caution"
    assert combined("ok", [finding(level="note", is_cause=True)]) == "ok"
    assert combined("cannot tell", [finding(level="warning", is_cause=True)]) == "cannot tell"


def test_the_deciding_finding_is_the_one_that_made_it_worse():
    mild, bad = finding("RKSP306", "warning", is_cause=True), finding("RKSP304", "error")
    assert decisive_finding("ok", [mild, bad]) == bad
    assert decisive_finding("ok", [mild]) == mild
    assert decisive_finding("risk", [mild, bad]) is None
    assert decisive_finding("ok", []) is None
