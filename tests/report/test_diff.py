"""Two reports: what is new, worse, better, fixed or unchanged, and what that does to the gate."""

from __future__ import annotations

import json

import pytest
from support.reports import finding, scored, with_findings, with_risk

from rksp.documents.score import ScoreReport
from rksp.documents.terms import Gate
from rksp.ground.errors import InputError
from rksp.question.compare import RISE, compare
from rksp.question.gate import judge
from rksp.report.formats import render


def _states(old: ScoreReport, new: ScoreReport) -> dict[str, str]:
    return {f"{c.code}{c.layer}": c.state for c in compare(old, new).changes}


def test_every_state():
    old = with_findings(
        finding("RKSP101", "warning"),
        finding("RKSP102", "error"),
        finding("RKSP103", "warning"),
        finding("RKSP201", "note"),
    )
    new = with_findings(
        finding("RKSP101", "error"),
        finding("RKSP102", "warning"),
        finding("RKSP103", "warning", message="worded differently"),
        finding("RKSP202", "note"),
    )
    assert _states(old, new) == {
        "RKSP101": "worse",
        "RKSP102": "better",
        "RKSP103": "unchanged",
        "RKSP201": "fixed",
        "RKSP202": "new",
    }
    reverse = {"worse": "better", "better": "worse", "new": "fixed", "fixed": "new"}
    there = _states(old, new)
    assert _states(new, old) == {code: reverse.get(s, s) for code, s in there.items()}


@pytest.mark.parametrize("rate", [6e-4, 3.0, None])
def test_a_report_against_itself_has_nothing_new(rate):
    report = scored(rate)
    comparison = compare(report, report, strict=True)
    assert {change.state for change in comparison.changes} <= {"unchanged"}
    assert comparison.settings == {}
    assert comparison.notes == []
    assert all(old == new for old, new in comparison.numbers.values())
    assert not judge(Gate.parse("warning"), report, comparison).failed


def test_spectra_of_unequal_modes_a_state_are_not_compared():
    full = scored()

    def reduced(states_per_mode: int) -> ScoreReport:
        seed = full.seeds[0]
        layers = [
            layer.model_copy(update={"rank": layer.states // states_per_mode})
            for layer in seed.spectra.layers
        ]
        spectra = seed.spectra.model_copy(update={"layers": layers})
        changed = seed.model_copy(update={"spectra": spectra})
        return full.model_copy(update={"seeds": [changed]})

    assert compare(reduced(16), reduced(16)).notes == []
    assert compare(full, full).notes == []
    (note,) = compare(reduced(16), reduced(32)).notes
    assert "one mode per 16 states in the old report and one mode per 32 states" in note
    with pytest.raises(InputError, match="every direction in the old report and one mode per 16"):
        compare(full, reduced(16), strict=True)


def test_the_same_check_in_another_module_is_another_issue():
    old, new = with_findings(finding(layer="h.0")), with_findings(finding(layer="h.1"))
    assert _states(old, new) == {"RKSP101h.0": "fixed", "RKSP101h.1": "new"}


@pytest.mark.parametrize(
    ("rise", "state"),
    [(0.0, "unchanged"), (RISE / 2, "unchanged"), (2 * RISE, "worse"), (-2 * RISE, "better")],
)
def test_a_risk_is_worse_if_its_probability_rose_by_more_than_the_noise(rise, state):
    def at(probability: float) -> ScoreReport:
        report = with_risk(scored(3.0), probability_failed=probability)
        return report.model_copy(update={"findings": []})

    assert _states(at(0.7), at(0.7 + rise)) == {"RKSP001": state}


def test_only_new_and_worse_issues_count_at_the_gate():
    old = with_findings(finding("RKSP101", "error"))
    new = with_findings(finding("RKSP101", "error"), finding("RKSP102", "warning"))
    gate = Gate.parse("error")
    assert judge(gate, new).issues == ["RKSP101"]
    assert judge(gate, new, compare(old, new)).issues == []
    assert judge(Gate.parse("warning"), new, compare(old, new)).issues == ["RKSP102"]
    assert judge(gate, scored(3.0), compare(scored(), scored(3.0))).failed


def test_settings_and_numbers_that_moved():
    comparison = compare(scored(), scored(3.0))
    assert comparison.settings["learning_rate"] == ("6e-4", "3")
    assert comparison.verdict == ("ok", "risk")
    old, new = comparison.numbers["P(failed)"]
    assert old == scored().seeds[0].risk.probability_failed
    assert new == scored(3.0).seeds[0].risk.probability_failed


def test_another_classifier_cannot_be_a_baseline():
    other = with_risk(scored(), classifier_data="0" * 64)
    assert "different data" in compare(other, scored()).notes[0]
    with pytest.raises(InputError, match="different data; score it again"):
        compare(other, scored(), strict=True)


def test_a_model_that_overflows_compares_with_one_that_does_not():
    lost = scored(6e-4, 1e19)
    assert compare(lost, lost, strict=True).notes == []
    states = _states(scored(6e-4), lost)
    assert states["RKSP301transformer.h.0.ln_1"] == "new"
    assert _states(lost, scored(6e-4))["RKSP301transformer.h.0.ln_1"] == "fixed"


def test_renderings_mark_what_is_new():
    old, new = (
        with_findings(finding("RKSP101")),
        with_findings(finding("RKSP101"), finding("RKSP102")),
    )
    report = new.model_copy(update={"baseline": compare(old, new)})
    results = json.loads(render(report, "sarif"))["runs"][0]["results"]
    assert {r["ruleId"]: r["baselineState"] for r in results} == {
        "RKSP101": "unchanged",
        "RKSP102": "new",
    }
    annotations = render(report, "github")
    assert "RKSP102" in annotations
    assert "RKSP101" not in annotations
    assert "1 new, 1 unchanged" in render(report, "markdown")
    assert "1 new, 1 unchanged" in render(report, "html")
    assert "since the baseline: 1 new, 1 unchanged" in render(report, "text")
    assert "baselineState" not in render(new, "sarif")
    assert ScoreReport.model_validate_json(report.to_json()) == report
