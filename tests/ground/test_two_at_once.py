"""Two runs in one folder at the same time do not harm each other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from support.benchmark_scripts import harness

from rksp.ground.files import ResultFolder

cheap, processes, scenes = (harness(name) for name in ("cheap", "processes", "scenes"))


def _together(*works) -> list[int | None]:
    """Run functions in processes of their own at the same time; return their exit codes."""
    return [processes.exit_code(pid) for pid in [processes.forked(work) for work in works]]


def _folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("alone", "both"):
        (tmp_path / name).mkdir()
    return tmp_path / "alone", tmp_path / "both"


def test_two_grids_share_a_store_and_judge_each_cell_once(tmp_path):
    scene = scenes.GridScene()
    alone, both = _folders(tmp_path)
    assert _together(lambda: scene.work(alone)) == [0]
    assert _together(*[lambda: scene.work(both)] * 2) == [0, 0]
    assert scene.rows(both) == scene.rows(alone)
    assert set(Counter(cheap.judged(both / "judged")).values()) == {1}
    assert len(cheap.judged(both / "judged")) == scene.size


def test_a_grid_ends_the_work_of_another_that_was_killed(tmp_path):
    scene = scenes.GridScene()
    alone, both = _folders(tmp_path)
    assert _together(lambda: scene.work(alone)) == [0]
    first, second = (processes.forked(lambda: scene.work(both)) for _ in range(2))
    end = time.monotonic() + 60
    while len(scene.done(both)) < 3 and time.monotonic() < end:
        time.sleep(0.005)
    kept = scene.done(both)
    os.kill(first, signal.SIGKILL)
    assert processes.exit_code(first) == -signal.SIGKILL
    assert processes.exit_code(second) == 0
    assert scene.rows(both) == scene.rows(alone)
    assert 3 <= len(kept) < scene.size


@pytest.mark.slow
def test_two_labs_share_a_folder(tmp_path):
    scene = scenes.LabScene(plan=scenes.PLAN | {"ladders": 4}, workers=1)
    alone, both = _folders(tmp_path)
    assert _together(lambda: scene.work(alone)) == [0]
    assert _together(*[lambda: scene.work(both)] * 2) == [0, 0]
    assert scene.rows(both) == scene.rows(alone)
    assert {path.suffix for path in (both / "stored").iterdir()} == {".json"}


def test_the_start_of_a_lab_leaves_a_file_that_another_writes(tmp_path):
    young = tmp_path / ".1-0123456789ab.partial"
    young.touch()
    ResultFolder(tmp_path).clean()
    assert young.exists()


@pytest.mark.slow
def test_a_second_confirmation_in_a_folder_is_refused_and_harms_nothing(tmp_path):
    scene = scenes.ConfirmScene()
    alone, both = _folders(tmp_path)
    assert _together(lambda: scene.work(alone)) == [0]
    with ResultFolder(both / "kept").alone():
        assert _together(lambda: scene.work(both)) == [2]
        assert scene.done(both) == set()
    codes = _together(*[lambda: scene.work(both)] * 2)
    assert 0 in codes and set(codes) <= {0, 2}
    assert scene.rows(both) == scene.rows(alone)
