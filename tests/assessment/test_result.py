"""The flat result of `rksp.score`: the JSON's names, short in a terminal, drawn in a notebook."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
import torch
from support.given_models import HandGPT, tokens
from support.reports import with_risk

import rksp


@pytest.fixture(scope="module")
def result() -> rksp.Result:
    torch.manual_seed(0)
    return rksp.score(HandGPT(), tokens(), lr=1e-3, states=128)


def test_fields_bear_the_names_of_the_json(result):
    document = json.loads(result.report.to_json())
    seed = document["seeds"][0]
    parts = (document, *(seed[name] for name in ("risk", "gradient", "forward", "spectra")))
    for part in (*parts, document["target"]):
        assert part.keys() <= result.to_dict().keys() & set(dir(result))
    assert result.verdict == document["verdict"]
    assert result.probability_failed == seed["risk"]["probability_failed"]
    assert result.grad_norm == seed["gradient"]["grad_norm"]


def test_a_printed_result_names_fields_of_the_recipe_and_no_options(result):
    last = str(result).splitlines()[-1]
    assert "assumed: 1000 steps" in last and "--" not in last
    fields = last.split("takes ")[1].split(", ")
    assert {"max_steps", "warmup_steps", "adam_beta1"} <= {*fields} <= {*rksp.Recipe.model_fields}


def test_it_is_frozen_and_knows_no_other_field(result):
    with pytest.raises(FrozenInstanceError):
        result.report = None
    with pytest.raises(AttributeError, match="no field 'probability'"):
        _ = result.probability


def test_it_is_short_in_a_terminal(result):
    lines = repr(result).splitlines()
    assert len(lines) <= 8 and lines[0].startswith("HandGPT: ")
    assert "P(failed)" in lines[1] and "likely_edge" in lines[2]


def test_a_notebook_shows_the_page_in_a_frame(result):
    shown = result._repr_html_()
    assert shown.startswith('<iframe sandbox=""') and shown.count("<") == 2
    assert "HandGPT" in shown and "&lt;svg" in shown


def test_without_an_answer_it_says_why(result):
    bare = rksp.Result(with_risk(result.report, verdict="not assessed", reasons=["it is gone"]))
    assert bare.probability_failed is None and "it is gone" in repr(bare)


def test_a_profile_is_short_too():
    profile = rksp.profile(HandGPT(), tokens())
    assert len(repr(profile)) < 500 and "blocks (2), width 24" in repr(profile)
    assert profile._repr_html_().count("<tr>") == 3
