"""The table of planted faults: it is what the document shows, and what was asked for is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.places import ROOT

from lab.bench import watched_faults
from lab.bench.watched_faults import CHOOSING, KINDS, SCRIPTS, Row, planned, read_rows, show

README = ROOT / "rksp" / "watch" / "monitors" / "README.md"
ROW = Row(
    script="plain", shape="1x1x1x1", seed=0, planted="weight", where="a.b.weight", alarm=47,
    stopped=True, cause="weight", module="a.b",
)  # fmt: skip


def test_the_document_shows_the_table(capsys):
    show(read_rows(watched_faults.TABLE))
    assert capsys.readouterr().out in README.read_text()


def test_a_wrong_name_and_a_wrong_place_are_counted(capsys):
    show([ROW, replace(ROW, cause="rate"), replace(ROW, module="a.c"), replace(ROW, alarm=-1)])
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
