"""The table of planted faults: it is what the document shows, and what was asked for is counted."""

from __future__ import annotations

import pytest
from support.places import ROOT

from lab.bench import unseen_faults, watched_faults
from lab.bench.under_watch import read_rows
from lab.bench.watched_faults import CHOOSING, KINDS, SCRIPTS, Row, planned, show

README = ROOT / "rksp" / "watch" / "monitors" / "README.md"
ROW = Row(
    script="plain", shape="1x1x1x1", seed=0, planted="weight", where="a.b.weight", alarm=47,
    stopped=True, cause="weight", module="a.b",
)  # fmt: skip


def test_the_document_shows_the_table(capsys):
    show(read_rows(Row, watched_faults.TABLE))
    assert capsys.readouterr().out in README.read_text()


def test_a_wrong_name_and_a_wrong_place_are_counted(capsys):
    others = ({"cause": "rate"}, {"module": "a.c"}, {"alarm": -1})
    show([ROW, *(ROW._replace(**other) for other in others)])
    out = capsys.readouterr().out
    assert "| weight | 4 | 3 | 4 | 2 | 3 | 3 of 4 |" in out
    assert "weight was taken for rate: 1" in out


@pytest.mark.parametrize("choosing", [False, True])
def test_rules_were_chosen_on_other_seeds_and_shapes(choosing):
    runs = list(planned(choosing, 5, 17))
    others = list(planned(not choosing, 5, 17))
    assert {seed for _, _, seed, _ in runs}.isdisjoint(seed for _, _, seed, _ in others)
    assert {shape for _, shape, _, _ in runs}.isdisjoint(shape for _, shape, _, _ in others)
    faults = [fault for *_, kinds in runs for fault in kinds]
    assert {fault: faults.count(fault) for fault in KINDS} == dict.fromkeys(KINDS, 30)
    assert faults.count("") == 102 and {script for script, *_ in runs} == set(SCRIPTS)
    assert (CHOOSING in {shape for _, shape, _, _ in runs}) is choosing


def test_every_unseen_script_knows_what_is_planted_in_it():
    faults = unseen_faults.read_faults()
    assert {name: one.kind for name, one in faults.items() if "resume" in name} and len(
        faults
    ) == 224
    for name, one in faults.items():
        script = unseen_faults.FAULTS.with_name(f"unseen_{one.script}.py").read_text(
            encoding="utf-8"
        )
        shape, _, word = name.rpartition(":")
        assert shape in script and (word in script or one.kind == "healthy" or word == "resume")
        assert ("{" in one.right + one.partly) is False and bool(one.right) is (
            one.kind == "harmful"
        )
