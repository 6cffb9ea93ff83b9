"""Engines and the store: nothing is lost, nothing is doubled, and a failure marks only itself."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from grid_runs import coordinator, kill_a_worker_then_the_coordinator, wait_until

from rksp.errors import ArtifactError, InputError
from rksp.grid.cell import Cell, Options
from rksp.grid.drive import drive
from rksp.grid.engines.local import LocalEngine
from rksp.grid.store import TRIES, GridStore
from rksp.recipe import Recipe

FAULTS = "grid_faults:evaluate"


@pytest.fixture(autouse=True)
def faults_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def cells(target: str, count: int, **told: object) -> list[Cell]:
    """`count` cells of one initialization; `max_steps` numbers them from one."""
    return [
        Cell(
            target=target,
            overrides=told,
            recipe=Recipe(learning_rate=1e-3 * (i + 1), max_steps=i + 1),
            labels={"lr": 1e-3 * (i + 1)},
        )
        for i in range(count)
    ]


def run(store: GridStore, workers: int = 2, **options: float) -> None:
    drive(store, LocalEngine(workers, evaluator=FAULTS), **options)


def outcome(store: GridStore) -> dict[str, list[str]]:
    """Target → state of each of its cells, in order."""
    found: dict[str, list[str]] = {}
    for row in store.rows():
        found.setdefault(row.target, []).append(row.failure or row.state)
    return found


def test_a_cell_that_dies_hangs_or_is_invalid_marks_only_itself(tmp_path):
    plan = [
        *cells("good", 5),
        *cells("dies", 4, die_at=2),
        *cells("hangs", 3, hang_at=3),
        *cells("wrong", 2, invalid=True),
        *cells("unlucky", 3, die_once=str(tmp_path / "died")),
        *cells("hopeless", 2, die_in_profile=True),
    ]
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan, Options())
        run(store, workers=2, timeout=2.0)
        assert outcome(store) == {
            "good": ["done"] * 5,
            "dies": ["done", "killed", "done", "done"],
            "hangs": ["done", "done", "timeout"],
            "wrong": ["invalid"] * 2,
            "unlucky": ["done"] * 3,
            "hopeless": ["killed"] * 2,
        }
        rows = {(row.target, row.recipe["max_steps"]): row for row in store.rows()}
        assert rows["dies", 2].tries == TRIES
        assert "SIGKILL" in rows["dies", 2].message
        assert rows["hangs", 3].tries == 1  # a second hour would not help
        assert rows["wrong", 1].message == "there is no such model."
        assert rows["good", 2].result["probability_failed"] == 2e-3


def test_one_profile_for_each_initialization(tmp_path):
    plan = [cell for i in range(10) for cell in cells(f"model-{i}", 100)]
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan, Options())
        run(store)
        assert store.counts() == {"todo": 0, "running": 0, "done": 1000, "failed": 0}
        assert len(store.profiles()) == 10


def test_killed_workers_and_a_killed_coordinator_lose_and_double_nothing(tmp_path):
    path = tmp_path / "grid.db"
    plan = [cell for i in range(6) for cell in cells(f"model-{i}", 20, pause=0.01)]
    with GridStore(path, owner="reader") as store:
        store.fill(plan, Options())
        orphans = kill_a_worker_then_the_coordinator(path, FAULTS, first=5, second=25)
        before = {row.key: row.result for row in store.rows() if row.state == "done"}
        assert 0 < len(before) < len(plan)
        assert store.counts()["running"] > 0  # its claims are still there
        second, third = coordinator(path, FAULTS), coordinator(path, FAULTS)  # two at once
        assert second.wait(60) == third.wait(60) == 0
        rows = store.rows()
        assert [row.state for row in rows] == ["done"] * len(plan)
        assert len({row.key for row in rows}) == len(plan)
        assert all(row.result == before[row.key] for row in rows if row.key in before)
        assert {row.tries for row in rows} <= {0, 1}
        wait_until(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in orphans))


def test_only_the_holder_of_a_lease_can_write(tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path, owner="far:1") as slow, GridStore(path, owner="away:2") as quick:
        slow.fill(cells("m", 2), Options())
        task = slow.claim(lease=-1.0)  # already over
        key = task["cells"][0][0]
        assert quick.claim(lease=60.0)["cells"] == task["cells"]
        assert slow.claim(lease=60.0) is None
        assert not slow.finish(key, {"verdict": "late"})
        assert quick.finish(key, {"verdict": "ok"})
        assert not quick.finish(key, {"verdict": "twice"})
        slow.fail([key], "killed", "late")
        assert quick.rows()[0].result == {"verdict": "ok"}
        assert quick.rows()[0].state == "done"


def test_a_renewed_lease_holds(tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path, owner="far:1") as one, GridStore(path, owner="away:2") as other:
        one.fill(cells("m", 1), Options())
        one.claim(lease=0.05)
        one.renew(60.0)
        time.sleep(0.1)
        assert other.claim(60.0) is None


def test_the_same_grid_resumes_and_another_is_refused(tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path) as store:
        assert store.fill(cells("m", 3), Options()) == 0
        run(store, workers=1)
    with GridStore(path) as store:
        assert store.fill(cells("m", 3), Options()) == 3
        assert store.counts()["done"] == 3
        with pytest.raises(InputError, match="holds another grid"):
            store.fill(cells("m", 4), Options())
        with pytest.raises(InputError, match="holds another grid"):
            store.fill(cells("m", 3), Options(states=64))


def test_failed_cells_can_be_opened_again(tmp_path):
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(cells("m", 2, invalid=True), Options())
        run(store, workers=1)
        assert store.counts()["failed"] == 2
        assert store.retry_failed() == 2
        assert store.counts()["todo"] == 2


def test_other_files_are_no_stores(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at " * 20)
    with pytest.raises(ArtifactError, match="no grid store"):
        GridStore(path)
    base = sqlite3.connect(tmp_path / "other.db")
    base.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT)")
    base.execute("INSERT INTO meta VALUES ('schema', 'rksp-grid-99')")
    base.commit()
    base.close()
    with pytest.raises(ArtifactError, match="rksp-grid-99"):
        GridStore(tmp_path / "other.db")


def test_slurm_jobs_write_events_and_failures_are_the_same(tmp_path):
    pytest.importorskip("submitit")
    from rksp.grid.engines.slurm import SlurmEngine

    plan = [*cells("good", 3), *cells("dies", 2, die_at=1), *cells("wrong", 1, invalid=True)]
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan, Options())
        engine = SlurmEngine(tmp_path / "jobs", 3, cluster="local", evaluator=FAULTS)
        drive(store, engine)
        assert outcome(store) == {
            "good": ["done"] * 3,
            "dies": ["killed", "done"],
            "wrong": ["invalid"],
        }
