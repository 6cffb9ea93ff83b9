"""How much own runs help: whose ladders are shown, and what the model may know of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.edge_cases import ladder

from lab.fit.edge_fit import _card
from lab.fit.edge_spreads import HeldOut
from lab.own_runs import evaluation
from rksp.classifiers.edge_model import load_edge_model


@pytest.fixture
def parts(monkeypatch) -> list[HeldOut]:
    """Two sources left out, of which one has two repositories; and the tasks of the lab."""
    of = lambda source, edge, team, first: [
        replace(ladder(n, edge, source=source, width=512, steps=9000), team=team)
        for n in range(first, first + 2)
    ]
    course = [*of("course", -2.0, "a/x", 0), *of("course", -1.0, "b/y", 2)]
    other = of("other", -1.5, "c/z", 0)
    found = [
        HeldOut(left="source", name=rows[0].source, seen=load_edge_model(), ladders=rows)
        for rows in (course, other)
    ]
    monkeypatch.setattr(evaluation, "held_out", lambda ladders: found)
    return found


def test_a_source_of_two_repositories_is_two_teams(parts):
    cases = list(evaluation._cases([], load_edge_model()))
    assert [case[0] for case in cases] == ["course (x)", "course (y)", "other"]
    assert all(len({x.team for x in case[2]}) == 1 for case in cases)


def test_a_source_that_is_left_out_is_left_out_of_the_spreads(parts):
    before = list(evaluation._cases([], load_edge_model()))
    far = [replace(x, low=x.low + 2, high=x.high + 2) for x in parts[0].ladders]
    parts[0] = replace(parts[0], ladders=far)
    after = list(evaluation._cases([], load_edge_model()))
    assert after[0][1].long == before[0][1].long
    assert after[2][1].long != before[2][1].long  # the other source's do know it


def test_hindsight_is_no_worse_than_what_is_fair(parts):
    for case in evaluation._cases([], load_edge_model()):
        found = [
            evaluation._errors(learner(case, case[2][:1]), case, 1)
            for learner in (evaluation._hindsight, evaluation._shrunk, evaluation._informed)
        ]
        assert found[0].edge <= min(e.edge for e in found) + 0.01


def test_only_what_a_ladder_has_is_in_the_digest_of_the_data():
    digest = lambda **more: _card([ladder(1, -2.0, **more)])["digest"]
    assert digest() == digest(in_fp8=False) != digest(in_fp8=True)
