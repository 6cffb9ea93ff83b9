"""The harness of faults, a small part of it: `python -m lab.faults` runs the whole."""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import time

import pytest
from support.benchmark_scripts import harness

answers, inputs, limits = harness("answers"), harness("inputs"), harness("limits")
kinds = harness("kinds").kinds
CHEAP = ("recipe: axolotl", "recipe: torchtitan", "grids and sweeps", "rows of a grid")
CHEAP += ("axes typed", "lab plans", ".rksp.toml")
CHEAP += (pytest.param("sweep databases", marks=pytest.mark.slow),)


@pytest.mark.parametrize("name", CHEAP)
def test_damaged_input_is_refused_or_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (kind,) = (kind for kind in kinds(name) if kind.name == name)
    tally = inputs.explore(kind, 12, 7)
    assert tally.findings == []
    assert tally.codes["2"] >= 1
    assert tally.inputs == 12


def test_there_are_twelve_kinds_and_ten_thousand_inputs():
    names = [name for name, _, _ in harness("kinds")._KINDS]
    assert len(names) + len(harness("originals").recipes()) >= 12
    counts = [count for _, _, count in harness("kinds")._KINDS]
    assert sum(counts) + 180 * len(harness("originals").recipes()) >= 10_000


WRONG = {
    "unexpected": {"code": 3, "err": "x\n"},
    "traceback": {"code": 2, "err": "Traceback: x\n"},
    "stdout": {"code": 2, "out": "x", "err": "x\n"},
    "silent": {"code": 2},
    "no reason": {"code": 1, "out": "{}"},
    "escape": {"code": 0, "out": "\x1b"},
    "left": {"code": 0, "found": ("imported",)},
    "network": {"code": 0, "connected": ("1.2.3.4",)},
    "slow": {"code": 0, "seconds": 61.0},
    "long": {"code": 2, "err": "x" * 3000},
}


@pytest.mark.parametrize("case", WRONG)
def test_the_harness_complains(case):
    assert answers.complaint(answers.Answer(**WRONG[case])) is not None


def test_the_harness_is_content_with_a_sentence_and_wants_strict_json():
    assert answers.complaint(answers.Answer(code=2, err="rksp: no.\n")) is None
    said = answers.complaint(answers.Answer(code=0, out='{"x": NaN}'), is_json=True)
    assert said == "not strict JSON: NaN"


def test_a_finding_is_found_made_small_and_can_be_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (kind,) = kinds("axes typed")

    def breaks(case):
        bad = any("seed" in word for word in case.command)
        return answers.Answer(code=3 if bad else 0, err="unexpected X: y")

    monkeypatch.setattr(inputs, "answer", breaks)
    tally = inputs.explore(kind, 40, 0)
    assert tally.wrong >= 1
    assert len(tally.findings) == 1  # one cause
    stored = json.loads(json.dumps(tally.findings[0]))
    files = {name: base64.b64decode(data) for name, data in stored["files"].items()}
    again = answers.Case(command=tuple(stored["command"]), files=files)
    assert breaks(again).code == 3
    assert len(again.command) <= 10


@pytest.mark.parametrize("harm", ["memory", "abort"])
def test_an_input_that_ends_its_process_ends_no_other(harm):
    def work(job, child):
        child.note(f"job {job}")
        if job == 1 and harm == "memory":
            bytearray(5 * 2**30)
        if job == 1:
            os.abort()
        return "fine"

    found = dict(limits.in_processes([0, 1, 2], work, 2))
    assert [found[n].result for n in (0, 2)] == ["fine", "fine"]
    assert found[1].note == "job 1"
    assert "ended with status" in found[1].said


def test_a_child_that_is_ended_prints_no_stack():
    ((_, ended),) = limits.in_processes([0], lambda job, child: str(faulthandler.is_enabled()), 1)
    assert ended.result == "False"
    assert faulthandler.is_enabled()  # by pytest; a child would inherit it


def test_an_input_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.1)

    def work(job, child):
        child.note("forever")
        while True:
            time.process_time()

    ((_, ended),) = limits.in_processes([0], work, 1)
    assert "not done after" in ended.said
    assert ended.note == "forever"
