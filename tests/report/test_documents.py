"""Documents: torch-free records that measurements fill, and one table of renderings."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from support.reports import scored, with_risk

from rksp.assessment.pipeline import evaluate, score_report
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.answer import CurvePoint
from rksp.documents.base import SCHEMA_VERSION, Document, Part
from rksp.documents.options import MeasureOptions
from rksp.documents.score import ForwardReport, GradientReport, ScoreReport
from rksp.documents.shown import ForwardStats, GradientProfile
from rksp.documents.terms import Gate
from rksp.grid.group import CellAnswer
from rksp.grid.run import GridResult
from rksp.grid.store import Row
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report import formats
from rksp.report.diff import compare
from rksp.report.formats import KINDS, RENDERINGS, Format, render, schema_of
from rksp.report.grid import grid_report

TINY = {"n_layer": "2", "n_embd": "32", "n_head": "2", "vocab_size": "256"}


class Pair(Part):
    """Two numbers."""

    one: float
    two: float


def test_a_record_takes_its_fields_from_the_first_source_that_has_them():
    first, second = SimpleNamespace(one=1.0, other=9), SimpleNamespace(one=2.0, two=3.0)
    assert Pair.of(first, second) == Pair(one=1.0, two=3.0)
    assert Pair.of(first, second, one=5) == Pair(one=5.0, two=3.0)
    with pytest.raises(ValidationError, match="two"):
        Pair.of(first)


@pytest.mark.parametrize(
    ("record", "measured"), [(ForwardReport, ForwardStats), (GradientReport, GradientProfile)]
)
def test_a_measurement_has_every_field_of_its_record(record, measured):
    named = {field.name for field in dataclasses.fields(measured)}
    named |= {name for name in vars(measured) if isinstance(vars(measured)[name], property)}
    assert record.model_fields.keys() <= named


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shares_the_base(kind):
    document = schema_of(kind)
    assert issubclass(document, Document)
    assert document.model_fields["kind"].default == kind
    assert document.model_fields["schema_version"].default == SCHEMA_VERSION


def test_the_digest_is_that_of_the_classifier_that_was_used():
    source, recipe = resolve("gpt2", overrides=TINY), Recipe(learning_rate=1e-3)
    shipped = load_edge_model()
    mine = dataclasses.replace(shipped, card=shipped.card | {"digest": "my own runs"})
    options = MeasureOptions(states=256, evidence="forward")
    report = score_report(recipe, [evaluate(source, recipe, options, classifier=mine)])
    assert report.seeds[0].risk.classifier_data == "my own runs"
    other = with_risk(report, classifier_data=shipped.card["digest"])
    assert "different data" in compare(other, report).notes[0]
    none = with_risk(report, classifier_data=None)  # nothing was asked: it failed for certain
    assert compare(none, report).notes == []


def test_what_was_changed_about_the_model_is_said_in_every_page(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "mimo"} | sizes))
    source, recipe = resolve(str(config)), Recipe(learning_rate=1e-3)
    options = MeasureOptions(states=256, evidence="forward")
    evaluation = evaluate(source, recipe, options)
    seen = dataclasses.replace(evaluation.profile, notes=("Channels come first.",))
    evaluation = dataclasses.replace(evaluation, profile=seen)
    report = score_report(recipe, [evaluation])
    assert report.target.notes == [*source.notes, "Channels come first."]
    assert "mimo is read as qwen2" in report.target.notes[0]
    for name in ("full", "markdown", "html", "json"):
        for note in report.target.notes:
            assert note in render(report, name), name
    assert "mimo is read" not in render(scored(), "full")


@pytest.mark.parametrize("count", [0, 1, 50, 161])
def test_a_curve_of_any_length_renders(count):
    rates = [10 ** (-7 + 8 * k / max(1, count - 1)) for k in range(count)]
    curve = [CurvePoint(learning_rate=r, probability=0.5, low=0.4, high=0.6) for r in rates]
    report = with_risk(scored(3.0), curve=curve)
    again = ScoreReport.model_validate_json(report.to_json())
    for name in formats.formats_of("score"):
        assert render(again, name)
    text = render(again, "full")
    assert ("P(failed) at rates from 1e-7 to 10: " in text) == (count in (50, 161))
    assert text.count("▅") >= min(count, 20)


def test_a_curve_at_no_rate_is_refused():
    report = json.loads(scored(3.0).to_json())
    report["seeds"][0]["risk"]["curve"][0][0] = 0.0
    with pytest.raises(ValidationError, match="greater than 0"):
        ScoreReport.model_validate(report)


@pytest.mark.parametrize(("kind", "name"), RENDERINGS)
def test_every_entry_of_the_table_names_a_function(kind, name):
    module, _, path = RENDERINGS[kind, name].partition(":")
    function = __import__(module, fromlist=["x"])
    for part in path.split("."):
        function = getattr(function, part)
    assert callable(function)


def test_a_format_for_all_kinds_is_one_entry(monkeypatch):
    toy = Format("toy", "", KINDS, "rksp.documents.base:Document.to_json")
    for kind in toy.kinds:
        monkeypatch.setitem(RENDERINGS, (kind, toy.name), toy.rendering)
    assert all(formats.formats_of(kind)[-1] == "toy" for kind in KINDS)
    assert json.loads(render(scored(), "toy"))["kind"] == "score"


def _row(position: int, probability: float | None, findings: list[dict]) -> Row:
    result = CellAnswer(
        verdict="ok",
        probability_failed=probability,
        probability_failed_high=probability,
        findings=findings,
    )
    return Row(
        key=str(position),
        position=position,
        init="",
        target="gpt2",
        overrides={},
        seed=0,
        recipe={"learning_rate": 10.0**-position},
        labels={"lr": 10.0**-position, "odd": float("inf")},
        state="done",
        tries=1,
        failure=None,
        message=None,
        result=result,
    )


def test_the_document_of_a_grid_is_strict_and_about_every_cell():
    warned = [{"code": "RKSP501", "level": "warning"}]
    noted = [{"code": "RKSP503", "level": "note"}]
    rows = (_row(1, 0.9, []), _row(2, 0.1, warned), _row(3, 0.2, noted))
    result = GridResult(rows=rows, profiles=(1.0,), made_by={"rksp": "0"})
    report = grid_report(result, Gate.parse("warning"), conditions=["lr<0.05"], top=1)
    assert (report.verdict, report.exit_code) == ("risk", 1)
    assert [cell.position for cell in report.cells] == [2]
    assert report.failing == [2]  # the first fails too, and is not shown
    assert "2 of 3 cells fail --fail-on warning" in report.gate.reasons[0]
    document = json.loads(report.to_json())
    assert document["schema_version"] == SCHEMA_VERSION
    assert "hidden" not in document
    assert document["cells"][0]["odd"] is None
    assert "/cells/0/odd" in document["non_finite"]
    assert grid_report(result, Gate.parse("never")).exit_code == 0
