"""Grids end to end on tiny models: the same answers as one by one, and what the table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rksp.errors import InputError
from rksp.gathered import first_step
from rksp.grid import table
from rksp.grid.cell import Cell, Options
from rksp.grid.evaluate import evaluate_task, summarize
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore, Row
from rksp.models.resolve import resolve
from rksp.pipeline import evaluate, gather, judge
from rksp.recipe import Recipe

TINY = ["n_embd=32", "n_head=2", "vocab_size=256"]
STATES = Options(states=256)


def run_here(store: GridStore) -> None:
    """Works a store off in this process."""
    while task := store.claim(60.0):
        for event in evaluate_task(task):
            if event["kind"] == "profile":
                store.profiled(task["cells"][0][0], event["seconds"])
            elif event["kind"] == "result":
                assert store.finish(event["cell"], event["result"])
            else:
                keys = [event["cell"]] if "cell" in event else [key for key, _ in task["cells"]]
                store.fail(keys, event["failure"], event["message"])


@pytest.fixture(scope="module")
def worked(tmp_path_factory) -> tuple[list[Row], list[float]]:
    plan = read_plan(
        "gpt2", [*TINY, "n_layer=1,2", "lr=1e-4,1e-2,1.0", "warmup=0,100", "optimizer=adamw,sgd"]
    )
    bad = Cell(target="gpt2", overrides={"n_layerr": 3}, recipe=Recipe(learning_rate=1e-3))
    with GridStore(tmp_path_factory.mktemp("grid") / "grid.db") as store:
        store.fill([*plan.cells, bad], STATES)
        run_here(store)
        return store.rows(), store.profiles()


def test_one_profile_for_each_model_and_a_broken_target_beside_good_ones(worked):
    rows, profiles = worked
    assert len(rows) == 25
    assert len(profiles) == 2
    assert [row.state for row in rows] == ["done"] * 24 + ["failed"]
    assert rows[-1].failure == "invalid"
    assert "n_layerr" in rows[-1].message


def test_cells_say_what_score_says(worked):
    rows, _ = worked
    for row in (rows[0], rows[7], rows[14], rows[23]):
        source = resolve(row.target, overrides=row.overrides)
        alone, _ = evaluate(source, Recipe(**row.recipe), seed=row.seed, num_states=256)
        assert summarize(alone) == row.result


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "adafactor", "muon"])
def test_recipes_that_share_a_first_step_share_the_response(optimizer):
    source = resolve("gpt2", overrides={"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64})
    recipe = Recipe(optimizer=optimizer, learning_rate=1e-3)
    later = {"warmup_steps": 9, "max_steps": 50, "schedule": "linear", "batch_size": 4,
             "adam_beta1": 0.8, "adam_beta2": 0.95, "momentum": 0.5, "learning_rate": 0.3}  # fmt: skip
    other = recipe.model_copy(update=later)
    assert first_step(recipe) == first_step(other)
    gathered = gather(source, num_states=256)
    one, two = (judge(gathered, r).response for r in (recipe, other))
    assert one is two
    decayed = judge(gathered, recipe.model_copy(update={"weight_decay": 0.5})).response
    assert decayed is not one
    assert decayed.descent != one.descent


def test_ranking_filters_and_the_best_safe_setting(worked):
    rows, _ = worked
    found = table.records(rows)
    probabilities = [r["probability_failed"] for r in found if r["probability_failed"] is not None]
    assert probabilities == sorted(probabilities)
    assert found[-1]["verdict"] == "could not run"
    low = table.where(found, ["lr<=1e-2", "optimizer=adamw", "n_layer=2"])
    assert len(low) == 4
    assert {r["learning_rate"] for r in low} == {1e-4, 1e-2}
    best = table.best_safe(found)
    assert len(best) == 3
    for model, record in best.items():
        safe = [r for r in found if r["model"] == model and table.is_safe(r)]
        assert (record is None) == (not safe)
        assert record is None or record["learning_rate"] == max(r["learning_rate"] for r in safe)
    for front in table.pareto(found).values():
        for one in front:
            for other in found:
                is_better = (
                    other["model"] == one["model"]
                    and other["learning_rate"] >= one["learning_rate"]
                    and other["probability_failed"] < one["probability_failed"]
                )
                assert not is_better
    with pytest.raises(InputError, match="no such column"):
        table.where(found, ["learning=3"])
    with pytest.raises(InputError, match="is not NAME<VALUE"):
        table.where(found, ["lr"])


def test_the_heat_map_rises_with_the_rate(worked):
    rows, _ = worked
    lines = table.heat_map(table.records(rows), table.axes_of(rows))
    blocks = [line.split("  ")[-1] for line in lines[1:-1]]
    assert len(blocks) >= 2
    assert blocks[0][0] == "·"
    shades = "·░▒▓█"
    assert all(
        list(map(shades.index, b)) == sorted(map(shades.index, b)) for b in blocks if "·" in b
    )


def test_exports_hold_every_cell(worked, tmp_path):
    rows, _ = worked
    found = table.records(rows)
    for suffix in ("csv", "jsonl", "parquet"):
        table.export(found, tmp_path / f"grid.{suffix}")
    assert len((tmp_path / "grid.csv").read_text().splitlines()) == 26
    first = json.loads((tmp_path / "grid.jsonl").read_text().splitlines()[0])
    assert first == json.loads(json.dumps(found[0]))
    parquet = pytest.importorskip("pyarrow.parquet")
    stored = parquet.read_table(tmp_path / "grid.parquet").to_pylist()
    assert [r["probability_failed"] for r in stored] == [r["probability_failed"] for r in found]
    with pytest.raises(InputError, match="none of"):
        table.export(found, tmp_path / "grid.xlsx")


def rksp(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-c", "from rksp.cli import main; main()", *arguments],
        capture_output=True, text=True, env=environment, cwd=cwd, check=False,
    )  # fmt: skip


def test_the_command_resumes_filters_and_keeps_what_is_good(tmp_path):
    grid = ["grid", "gpt2", "lr=1e-4,1.0", *TINY, "n_layer=1,0", "--snapshots", "256"]
    done = rksp(*grid, "-o", "g.db", "--format", "json", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "2 of 4 cells could not run" in done.stderr
    document = json.loads(done.stdout)
    assert [c["verdict"] for c in document["cells"]] == ["ok", "risk"] + ["could not run"] * 2
    again = rksp(*grid, "-o", "g.db", "--top", "1", "--where", "lr=1", cwd=tmp_path)
    assert again.returncode == 3
    assert "resumes, 2 of 4 cells are done" in again.stderr
    assert again.stdout.splitlines()[1].split()[3] == "risk"
    other = rksp(*grid, "--fail-on", "0.9", "-o", "g.db", cwd=tmp_path)
    assert other.returncode == 2
    assert "holds another grid" in other.stderr


@pytest.mark.slow
def test_a_thousand_cells_cost_little_more_than_their_ten_profiles(tmp_path):
    """The profile of a model is what its first cell costs: the pass, the response, one answer."""
    plan = read_plan(
        "gpt2",
        ["n_embd=192", "n_head=4", "n_layer=6", "vocab_size=2000", "seed=range(10)",
         "lr=logspace(-5,-1,20)", "warmup=0,10,30,100,300"],
    )  # fmt: skip
    firsts = []
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan.cells, Options())
        start = time.process_time()
        while task := store.claim(600.0):
            clock, is_first = time.process_time(), True
            for event in evaluate_task(task):
                if event["kind"] == "profile":
                    store.profiled(task["cells"][0][0], event["seconds"])
                    continue
                assert store.finish(event["cell"], event["result"])
                if is_first:
                    firsts.append(time.process_time() - clock)
                    is_first = False
        whole = time.process_time() - start
        assert store.counts() == {"todo": 0, "running": 0, "done": 1000, "failed": 0}
        assert len(store.profiles()) == len(firsts) == 10
    print(f"{whole:.1f} s for 1000 cells, {sum(firsts):.1f} s for the first of each model")
    assert whole <= 1.2 * sum(firsts)
