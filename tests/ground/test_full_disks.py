"""Full disks: a sentence, exit code 3, and work that goes on when there is room."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from rksp.grid.cell import Cell
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.run import run_grid
from rksp.grid.store import GridStore
from rksp.ground.errors import Incomplete
from rksp.recipe import Recipe
from rksp.watch import run_state
from rksp.watch.monitors.base import Reading
from rksp.watch.monitors.sinks import JsonLines


def test_a_checkpoint_without_room_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    model = nn.Linear(2, 2)
    kept = run_state.Checkpoints(tmp_path / "c", every=1)
    kept.keep(0, model, torch.optim.SGD(model.parameters(), lr=0.1))

    def fails(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(run_state, "save_file", fails)
    with pytest.raises(Incomplete, match=r"before-step-7\.safetensors cannot be written"):
        kept.write(7, model)
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_of_monitors_without_room_is_said(monkeypatch):
    monkeypatch.setattr(JsonLines, "_repair", lambda log, step: None)  # it has no end
    sink = JsonLines("/dev/full")
    with pytest.raises(Incomplete, match="full cannot be written: No space left"):
        sink.write([Reading(step=1, monitor="loss", quantity="loss", layer="", value=1.0)], [])
    sink.close()


def _cells(count: int) -> list[Cell]:
    rates = [1e-4 * (n + 1) for n in range(count)]
    return [Cell(target="gpt2", recipe=Recipe(learning_rate=rate)) for rate in rates]


def test_a_grid_without_room_is_said_and_goes_on_when_there_is_some(tmp_path):
    with GridStore(tmp_path / "g.db") as store:
        store._base.execute("PRAGMA max_page_count = 8")
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            store.fill(_cells(200), Options())
        assert store.counts()["todo"] == 0
        store._base.execute("PRAGMA max_page_count = 10000")
        assert store.fill(_cells(200), Options()) == 0
        assert store.counts()["todo"] == 200


class _NoRoom(sqlite3.Connection):
    """A connection to a file on a full disk."""

    def execute(self, *given: object) -> sqlite3.Cursor:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error


def test_a_new_grid_on_a_full_disk_is_not_called_damaged(tmp_path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **m: connect(*a, **m, factory=_NoRoom))
    plan = read_plan({"lr": [1e-4]}, target="gpt2")
    with pytest.raises(Incomplete, match=r"cannot be written or read .*disk is full"):
        run_grid(plan, tmp_path / "g.db", engine=object())
