"""Engines and the store: nothing is lost, nothing is doubled, and a failure marks only itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support.grid_runs import (
    PATIENCE,
    children,
    coordinator,
    kill_a_worker_then_the_coordinator,
    wait_until,
)
from support.places import SUPPORT

from rksp.grid.cell import Cell
from rksp.grid.engines.local import LocalEngine
from rksp.grid.engines.remote import RayEngine, SlurmEngine
from rksp.grid.group import CellAnswer, Options
from rksp.grid.run import drive, read_grid
from rksp.grid.store import TRIES, GridStore
from rksp.ground.errors import ArtifactError, InputError
from rksp.recipe import Recipe

FAULTS = "grid_faults:evaluate"


@pytest.fixture(autouse=True)
def faults_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))


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
        *cells("buggy", 3, raise_at=2),
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
            "buggy": ["done", "error", "done"],
            "wrong": ["invalid"] * 2,
            "unlucky": ["done"] * 3,
            "hopeless": ["killed"] * 2,
        }
        rows = {(row.target, row.recipe["max_steps"]): row for row in store.rows()}
        assert rows["dies", 2].tries == TRIES
        assert "SIGKILL" in rows["dies", 2].message
        assert "RuntimeError: nobody expected this" in rows["buggy", 2].message
        assert rows["buggy", 2].tries == 1
        assert rows["hangs", 3].tries == 1  # a second hour would not help
        assert rows["wrong", 1].message == "there is no such model."
        assert rows["good", 2].result.probability_failed == 2e-3


def test_an_idle_worker_that_was_killed_costs_nothing(tmp_path):
    with GridStore(tmp_path / "grid.db") as store:
        store.fill([*cells("first", 1), *cells("second", 2)], Options())
        engine, others = LocalEngine(1, evaluator=FAULTS), children(os.getpid())
        job = engine.submit(store.claim(60.0))
        wait_until(lambda: job.poll()[1] is not None)
        for worker in set(children(os.getpid())) - set(others):
            with contextlib.suppress(ProcessLookupError):  # the listing lists itself
                os.kill(worker, signal.SIGKILL)
        store.release()
        drive(store, engine)
        assert outcome(store) == {"first": ["done"], "second": ["done"] * 2}


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
        assert second.wait(PATIENCE) == third.wait(PATIENCE) == 0
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
        key = task.cells[0].key
        assert quick.claim(lease=60.0).cells == task.cells
        assert slow.claim(lease=60.0) is None
        assert not slow.finish(key, CellAnswer(verdict="late"))
        assert quick.finish(key, CellAnswer(verdict="ok"))
        assert not quick.finish(key, CellAnswer(verdict="twice"))
        slow.fail([key], "killed", "late")
        assert quick.rows()[0].result == CellAnswer(verdict="ok")
        assert quick.rows()[0].state == "done"


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_jump_of_the_clock_gives_no_work_twice(tmp_path, monkeypatch, jump):
    with GridStore(tmp_path / "grid.db") as store:
        store.fill([*cells("m", 1), *cells("n", 1)], Options())
        first = store.claim(60.0).cells[0].key
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        second = store.claim(60.0).cells[0].key
        assert second != first
        assert store.claim(60.0) is None
        assert store.finish(first, CellAnswer(verdict="ok"))
        assert store.finish(second, CellAnswer(verdict="ok"))


def test_reading_a_store_leaves_the_work_of_this_process_alone(tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path) as store:
        store.fill(cells("m", 2), Options())
        task = store.claim(60.0)
        assert any(row.state != "done" for row in read_grid(path).rows)
        assert store.counts()["running"] == 2
        assert store.finish(task.cells[0].key, CellAnswer(verdict="ok"))


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
    with pytest.raises(ArtifactError, match="not a grid store"):
        GridStore(path)
    base = sqlite3.connect(tmp_path / "other.db")
    base.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT)")
    base.execute("INSERT INTO meta VALUES ('schema', 'rksp-grid-99')")
    base.commit()
    base.close()
    with pytest.raises(ArtifactError, match="rksp-grid-99"):
        GridStore(tmp_path / "other.db")


def test_text_that_is_not_utf8_is_damage(tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path) as store:
        store.fill(cells("good", 1), Options())
    base = sqlite3.connect(path)
    base.execute("UPDATE meta SET value = CAST(x'ff22' AS TEXT) WHERE name = 'made_by'")
    base.commit()
    base.close()
    with pytest.raises(ArtifactError, match="damaged"):
        read_grid(path)


def test_jobs_write_events_and_failures_are_the_same(tmp_path):
    pytest.importorskip("submitit")
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


def test_what_jobs_left_in_the_folder_is_not_computed_again(tmp_path):
    """A coordinator died; its jobs went on. The next reads what they wrote."""
    pytest.importorskip("submitit")
    plan = [*cells("whole", 2), *cells("half", 3), *cells("fresh", 1)]
    engine = SlurmEngine(tmp_path / "jobs", 2, cluster="local", evaluator=FAULTS)
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan, Options())
        keys = [row.key for row in store.rows()]
        lines = [{"kind": "result", "cell": key, "result": {"verdict": "left"}} for key in keys[:3]]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (engine.folder / "events-old.jsonl").write_text(text + '{"kind": "result", "ce')
        drive(store, engine)
        assert [row.result.verdict for row in store.rows()] == ["left"] * 3 + ["ok"] * 3
        assert len(store.profiles()) == 2


# Slurm's commands as far as submitit uses them: a job is a process of this machine.
SLURM = {
    "sbatch": """
        echo x >> "$SPOOL/ids"; id=$(wc -l < "$SPOOL/ids")
        echo "Submitted batch job $id"; cp "$1" "$SPOOL/script-$id"
        SLURM_JOB_ID=$id bash "$1" > /dev/null 2>&1 &
    """,
    "srun": """
        while [ "$1" != "$PYTHON" ]; do shift; done
        export SLURM_JOB_NODELIST=here SLURM_NTASKS=1 SLURM_NNODES=1
        export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
        "$@"; touch "$SPOOL/over-$SLURM_JOB_ID"
    """,
    "sacct": """
        echo 'JobID|State|NodeList'
        for i in $(seq $(wc -l < "$SPOOL/ids")); do
            [ -e "$SPOOL/over-$i" ] && echo "$i|COMPLETED|here" || echo "$i|RUNNING|here"
        done
    """,
    "scancel": "exit 1",
}


def test_what_is_submitted_to_slurm_runs(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    commands, spool = tmp_path / "bin", tmp_path / "spool"
    commands.mkdir()
    spool.mkdir()
    for name, text in SLURM.items():
        (commands / name).write_text("#!/bin/bash\n" + textwrap.dedent(text))
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SPOOL", str(spool))
    monkeypatch.setenv("PYTHON", sys.executable)
    with GridStore(tmp_path / "grid.db") as store:
        store.fill([*cells("good", 3), *cells("wrong", 2, invalid=True)], Options())
        drive(
            store,
            SlurmEngine(
                tmp_path / "jobs", 2, parameters={"slurm_partition": "cpu"}, evaluator=FAULTS
            ),
        )
        assert outcome(store) == {"good": ["done"] * 3, "wrong": ["invalid"] * 2}
        assert len(store.profiles()) == 1
    script = (spool / "script-1").read_text()
    assert "#SBATCH --partition=cpu" in script
    assert "#SBATCH --cpus-per-task=1" in script
    assert not (spool / "script-3").exists()  # one job for each initialization


def test_where_no_cluster_is_that_is_said_at_once():
    pytest.importorskip("ray")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "no-such-host.invalid:6379"):
        with pytest.raises(InputError, match=f"no Ray cluster at {address}"):
            RayEngine(1, address=address)


def test_submitit_judges_its_parameters(tmp_path):
    pytest.importorskip("submitit")
    with pytest.raises(InputError, match="submitit refuses a parameter"):
        SlurmEngine(tmp_path, 1, cluster="local", parameters={"partitoin": "cpu"})


def test_without_slurm_that_is_said(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="Slurm is not available"):
        SlurmEngine(tmp_path / "jobs", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("ray", "ray", lambda folder: RayEngine()),
        ("submitit", "slurm", lambda folder: SlurmEngine(folder, 1)),
    ],
)
def test_a_missing_package_is_one_sentence(module, extra, use, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install '(rksp|ray)\[{extra}\]'"):
        use(tmp_path / "jobs")
