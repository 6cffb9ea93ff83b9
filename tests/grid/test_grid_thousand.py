"""A thousand cells over ten initializations: cheap, unkillable, and the same table everywhere."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from support.benchmark_scripts import script
from support.grid_runs import (
    PATIENCE,
    coordinator,
    kill_a_worker_then_the_coordinator,
    run_here,
    wait_until,
)

from rksp.grid.engines.base import EVALUATOR
from rksp.grid.group import Options
from rksp.grid.plan import GridPlan, read_plan
from rksp.grid.run import drive, read_grid
from rksp.grid.store import GridStore
from rksp.grid.table import Record

STATES = Options(states=256)


@pytest.fixture(scope="module")
def plan() -> GridPlan:
    return read_plan(
        {
            "seed": list(range(10)),
            "lr": [10 ** (-5 + i / 5) for i in range(20)],
            "warmup": [0, 10, 30, 100, 300],
        },
        target="gpt2",
        overrides={"n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 256},
    )


def table(path: Path) -> list[Record]:
    result = read_grid(path)
    assert Counter((row.state, row.message) for row in result.rows) == {("done", None): 1000}
    assert len({row.key for row in result.rows}) == 1000
    return result.records()


@pytest.fixture(scope="module")
def expected(plan, tmp_path_factory) -> list[Record]:
    """The ranked table as one undisturbed process makes it."""
    path = tmp_path_factory.mktemp("thousand") / "grid.db"
    with GridStore(path) as store:
        store.fill(plan.cells, STATES)
        run_here(store)
        assert len(store.profiles()) == 10
    return table(path)


def test_the_table_is_worth_comparing(expected):
    assert len({record.probability_failed for record in expected}) >= 90  # rates
    assert {record.verdict for record in expected} == {"ok", "caution", "risk"}


@pytest.mark.slow
def test_local_processes_that_are_killed_give_the_same_table(plan, expected, tmp_path):
    path = tmp_path / "grid.db"
    with GridStore(path, owner="reader") as store:
        store.fill(plan.cells, STATES)
    kill_a_worker_then_the_coordinator(path, EVALUATOR, first=50, second=350)
    with GridStore(path, owner="reader") as store:
        assert 350 <= store.counts()["done"] < 1000
    assert coordinator(path, EVALUATOR, workers=1).wait(PATIENCE) == 0
    assert table(path) == expected
    assert 10 <= len(read_grid(path).profiles) <= 13  # a kill costs the profiles then at work


@pytest.mark.slow
def test_two_ray_nodes_of_which_one_is_killed_give_the_same_table(
    plan, expected, tmp_path, monkeypatch
):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from rksp.grid.engines.remote import RayEngine

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    path = tmp_path / "grid.db"
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 10}
    head = {"num_cpus": 1, "_system_config": quick, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        done_then: list[int] = []
        killer = threading.Thread(target=_kill_midway, args=(path, cluster, other, done_then))
        with GridStore(path) as store:
            store.fill(plan.cells, STATES)
            killer.start()
            drive(store, RayEngine(2, address=cluster.address))
            killer.join()
        assert 150 <= done_then[0] < 900
        assert len(cluster.list_all_nodes()) == 1
        assert table(path) == expected
        assert 10 <= len(read_grid(path).profiles) <= 12
    finally:
        ray.shutdown()
        cluster.shutdown()


def _kill_midway(path: Path, cluster, node, done_then: list[int]) -> None:
    with GridStore(path, owner="killer") as store:
        wait_until(lambda: store.counts()["done"] >= 150)
        done_then.append(store.counts()["done"])
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_it_costs_little_more_than_its_profiles():
    shape = {"n_embd": 192, "n_head": 4, "n_layer": 6, "vocab_size": 2000}
    measured = script("grid").grid_cost
    # The least of two: other work on the machine adds a tenth, now and then a third.
    costs = [measured("gpt2", models=2, cells=200, overrides=shape) for _ in range(2)]
    cost = min(costs, key=lambda found: found["ratio"])
    print(costs)
    assert (cost["cells"], cost["profiles"]) == (200, 2)
    assert cost["ratio"] <= 1.3
