"""Spectra can be left out: the rates do not depend on them."""

from __future__ import annotations

import pytest

from rksp.assessment.pipeline import evaluate, score_report
from rksp.documents.options import MeasureOptions
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.score.measured import measured

DEEP = {"n_layer": 7, "n_embd": 32, "n_head": 2, "vocab_size": 300}
RECIPE = Recipe(learning_rate=1e-3)


@pytest.fixture(scope="module")
def reports():
    source = resolve("gpt2", overrides=DEEP)
    options = {name: MeasureOptions(states=128, spectra=name) for name in ("all", "some", "none")}
    return {
        name: score_report(RECIPE, [evaluate(source, RECIPE, option)])
        for name, option in options.items()
    }


@pytest.mark.parametrize("fitted", ["some", "none"])
def test_the_answer_and_the_findings_are_the_same(reports, fitted):
    whole, part = reports["all"].seeds[0], reports[fitted].seeds[0]
    assert part.risk == whole.risk and whole.risk.likely_edge is not None
    assert part.forward == whole.forward and part.gradient == whole.gradient
    assert reports[fitted].findings == reports["all"].findings


def test_some_are_four_from_the_first_block_to_the_last(reports):
    whole = {layer.name: layer for layer in reports["all"].seeds[0].spectra.layers}
    some = reports["some"].seeds[0].spectra.layers
    assert [layer.layer for layer in some] == [0, 2, 4, 6]
    assert all(layer == whole[layer.name] for layer in some)
    assert "The spectra are those of 4 of 7 blocks." in reports["some"].target.notes


def test_none_are_said_to_be_none(reports):
    spectra = reports["none"].seeds[0].spectra
    assert spectra.layers == [] and spectra.reading == "not measured"
    assert "asked for" in spectra.reason
    shown = [row.word for row in measured(reports["none"].seeds[0])]
    assert "gradient norm" in shown and "near-unit mass" not in shown
