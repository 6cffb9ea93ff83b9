"""Kills, full disks and equal bytes, a small part: `python -m lab.faults` runs the whole."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.benchmark_scripts import harness

from rksp.ground.files import ResultFolder

kills, scenes, writes = (harness(name) for name in ("kills", "scenes", "writes"))
matrix, equal = harness("matrix"), harness("equal")


def test_kills_of_a_grid_with_results_in_flight_change_nothing():
    toll = kills.kill(scenes.GridScene(), 3)
    assert toll.kills == 3
    assert toll.faults == 0
    assert toll.slowest < kills.ORPHANED


class _Forgetful(scenes.GridScene):
    """A grid whose results are said to be different each time."""

    def rows(self, folder: Path) -> object:
        return random.random()


def test_the_toll_sees_what_differs():
    assert kills.kill(_Forgetful(), 1).different >= 1


def _cache(folder: Path, is_whole: bool):
    results = ResultFolder(folder)
    torn = folder / "x.json"

    def write(turn: int) -> None:
        text = "ab"[turn] * 3_000_000
        results.write("x", text) if is_whole else torn.write_text(text)

    return torn, write


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path, is_whole):
    path, write = _cache(tmp_path, is_whole)
    wholes = writes.wholes_of(path, write)
    tally = writes.Writes(name="cache")
    writes.without_room(path, write, tally, wholes)
    assert (tally.wrong == 0) == is_whole
    if is_whole:
        for _ in range(4):
            writes.kill_one(path, write, tally, random.Random(0))
            assert path.read_bytes() in wholes
        assert tally.faults == 0
        assert tally.kills + tally.between == 4


def test_times_are_left_out_of_a_comparison_and_nothing_else():
    one, two = {"x": 1, "seconds": 1.0}, {"x": 1, "seconds": 2.0}
    steady = [equal.steady("a.json", json.dumps(d).encode()) for d in (one, two, {"x": 2})]
    assert steady[0] == steady[1] != steady[2]
    lines = [f'<testsuite tests="1" time="{s}">\n| build | {s} s |'.encode() for s in (1.5, 2.5)]
    assert equal.steady("a.xml", lines[0]) == equal.steady("a.xml", lines[1])
    assert b'tests="1"' in equal.steady("a.xml", lines[0])


def test_the_matrix_has_three_runs_two_threads_and_two_hash_seeds():
    found = matrix.cells()
    plain = [c for c in found if (c.locale, c.folder) == ("C.UTF-8", "work")]
    assert len({(c.run, c.threads, c.hash_seed) for c in plain}) == len(plain) == 12
    assert len(found) == 14


def test_a_difference_is_measured():
    one, two = ({"x": [1, value], "y": "a"} for value in (2, 4))
    said = equal.difference(*(json.dumps(d).encode() for d in (one, two)))
    assert said == "1 values, the worst by 5.0e-01 of itself at .x[1]"
    assert equal.difference(b"a\nb", b"a\nc") == "b'b' is b'c'"
    assert equal.difference(b"", None) == "in one of the two only"


def test_the_table_counts_answers_that_differ():
    first, second = matrix.cells()[:2]
    said = matrix.table({first: {"a": b"1", "b": b"2"}, second: {"a": b"1", "b": b"3"}})
    assert said.splitlines()[-1] == "1 of 2 answers differ."
