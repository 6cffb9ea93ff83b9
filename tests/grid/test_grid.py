"""Grids end to end on tiny models: the same answers as one by one, and what the table says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import typer
from support.grid_runs import run_here
from support.places import SUPPORT

import rksp.grid.cell
from rksp.assessment.pipeline import evaluate
from rksp.cli import app
from rksp.documents.grid import FoundLevel, Record
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Gate
from rksp.grid import table
from rksp.grid.cell import Cell, summarize
from rksp.grid.engines.local import LocalEngine
from rksp.grid.group import CellAnswer, Options
from rksp.grid.plan import read_plan
from rksp.grid.run import GridResult, run_grid
from rksp.grid.store import GridStore, Row, made_by
from rksp.grid.table import axes_of, export, heat_map
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve
from rksp.recipe import Recipe
from rksp.report.formats import render
from rksp.report.grid import grid_report

TINY = ["n_embd=32", "n_head=2", "vocab_size=256"]
STATES = Options(states=256)


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
    rows, told = worked[0], []
    torch.set_num_threads(STATES.workers)  # more add in another order: other last digits
    for row in (rows[0], rows[7], rows[14], rows[23]):
        source = resolve(row.target, overrides=row.overrides)
        options = MeasureOptions(seed=row.seed, states=256)
        alone = evaluate(source, Recipe(**row.recipe), options)
        if alone.risk is not None and alone.risk.verdict == "cannot tell":
            continue  # a cell is ranked even where the interval says nothing
        assert summarize(alone) == row.result
        told.append(row)
    assert len(told) >= 2


@pytest.mark.parametrize(("streaming", "kept"), [("never", ["in", "out"]), ("always", [])])
def test_a_worker_keeps_freed_memory_unless_it_streams(streaming, kept, tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def noted():
        seen.append("in")
        yield
        seen.append("out")

    monkeypatch.setattr(rksp.grid.cell, "freed_memory_kept", noted)
    plan = read_plan("gpt2", [*TINY, "n_layer=1", "lr=1e-4,1e-2"])
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan.cells, STATES.model_copy(update={"streaming": streaming}))
        run_here(store)
        assert [row.state for row in store.rows()] == ["done"] * 2
    assert seen == kept


def test_ranking_filters_and_the_best_safe_setting(worked):
    rows, _ = worked
    found = table.records(rows)
    losses = [
        r.expected_excess + 0.01 * ("warning" in r.levels)
        for r in found
        if r.expected_excess is not None and "error" not in r.levels
    ]
    assert losses == sorted(losses)
    assert found[-1].verdict == "could not run"
    low = table.where(found, ["lr<=1e-2", "optimizer=adamw", "n_layer=2"])
    assert len(low) == 4
    assert {r.learning_rate for r in low} == {1e-4, 1e-2}
    best = table.best_safe(found)
    assert len(best) == 3
    for model, record in best.items():
        safe = [r for r in found if r.model == model and table.is_safe(r)]
        assert (record is None) == (not safe)
        losses = [r.expected_excess for r in safe]
        assert record is None or record.expected_excess <= min(losses) + 0.01
    with pytest.raises(InputError, match="names no column"):
        table.where(found, ["learning=3"])
    with pytest.raises(InputError, match="is not NAME<VALUE"):
        table.where(found, ["lr"])


def test_a_cell_is_safe_where_the_answer_is_ok_and_nowhere_else():
    where = {"position": 0, "model": "gpt2", "target": "gpt2", "seed": 0}
    record = Record(**where, probability_failed=0.1, verdict="ok")
    assert table.is_safe(record)
    faulty = (FoundLevel(code="RKSP304", level="error"),)
    for other in ({"verdict": "caution"}, {"probability_failed": None}, {"findings": faulty}):
        assert not table.is_safe(record.model_copy(update=other))


def test_the_heat_map_rises_with_the_rate(worked):
    rows, _ = worked
    found, axes = table.records(rows), table.axes_of(rows)
    heat = heat_map(found, axes)
    assert heat.axes == ["n_layer", "warmup", "optimizer"]
    assert heat.rates == [1e-4, 1e-3, 1e-2, 1.0]
    places = {row.name: row.probabilities for row in heat.rows}
    assert places.pop("– · – · adamw") == [None] * 4  # the broken target, alone at 1e-3
    assert len(places) == 8
    for low, missing, middle, high in places.values():
        assert missing is None
        assert low <= middle <= high
        assert low < high
    one = next(r for r in found if (r.get("n_layer"), r.get("warmup"), r.get("lr")) == (1, 0, 1.0))
    assert places[f"1 · 0 · {one.get('optimizer')}"][3] == one.probability_failed
    many = [r.model_copy(update={f"axis{i}": r.position for i in range(9)}) for r in found]
    crowded = heat_map(many, [*axes, *(f"axis{i}" for i in range(9))])
    assert crowded.axes == ["optimizer", "n_layer"]  # no mean over optimizers
    place = (1, 1.0, one.get("optimizer"))
    ones = [
        r.probability_failed
        for r in found
        if (r.get("n_layer"), r.get("lr"), r.get("optimizer")) == place
    ]
    shallow = next(row for row in crowded.rows if row.name == f"{one.get('optimizer')} · 1")
    assert shallow.probabilities[3] == pytest.approx(sum(ones) / len(ones))
    assert heat_map(found[:1], axes) is None


def test_the_terminal_shows_it_all(worked):
    def shown(rows: list[Row], **limits: object) -> str:
        result = GridResult(rows=tuple(rows), profiles=(), made_by={})
        return render(grid_report(result, Gate.parse("0.5"), **limits), "text")

    rows = worked[0][:-1]  # without the broken target, all share a width
    text = shown(rows, top=3)
    assert len(re.findall(r"(?m)^(?:ok|caution|risk) ", text.partition("\nRanked\n")[2])) == 3
    assert re.search(r"(?m)^gpt2 .*n_layer=1 .*\n +setting learning_rate=", text)
    assert re.search(r"1 · 0 · adamw +· <?\d+%( +[·░▒▓█] +[<>]?\d+%){2}$", text, re.MULTILINE)
    assert all(line == line.rstrip() for line in text.splitlines())
    fast = [row for row in rows if row.labels["lr"] == 1.0]
    assert "is safe; do not exceed " in " ".join(shown(fast).split())
    assert "no answer" in shown(worked[0][-1:])


def test_what_rksp_cannot_tell_is_not_ranked_by_its_number(worked):
    rows = worked[0]
    unsure = [
        r.model_copy(update={"result": CellAnswer(verdict="cannot tell", reasons=("odd",))})
        if r.recipe["learning_rate"] == 1e-4 and r.result
        else r
        for r in rows
    ]
    found = table.records(unsure)
    verdicts = [r.verdict for r in found]
    first = verdicts.index("cannot tell")
    assert set(verdicts[:first]) <= {"ok", "caution", "risk"}
    assert verdicts[first:] == ["cannot tell"] * 8 + ["could not run"]
    assert all(r.probability_failed is None and r.reasons == "odd" for r in found[first:-1])
    rows_of_map = heat_map(found, ["lr", "n_layer"]).rows
    assert all(row.probabilities[0] is None for row in rows_of_map)
    with_answers = table.records(rows)
    assert all(r.probability_failed is not None for r in with_answers[:-1])


def test_cells_of_other_batches_are_compared_by_the_text_they_see(worked):
    row = next(r for r in worked[0] if r.result and r.result.expected_excess is not None)
    cells = [
        row.model_copy(update={"position": n, "recipe": row.recipe | {"batch_size": batch}})
        for n, batch in enumerate((8, 256, 32, 256))
    ]
    found = table.records(cells)
    assert [cell.get("batch_size") for cell in found] == [256, 256, 32, 8]
    assert table.best_safe(found[:2]) == table.best_safe(found)
    ties = [
        found[0].model_copy(update={"batch_size": batch, "sequence_length": length})
        for batch, length in ((8, 64), (64, 8))
    ]
    assert table._loss(ties[0]) == table._loss(ties[1])  # equal cells are equal


def test_exports_hold_every_cell(worked, tmp_path):
    rows, _ = worked
    found = table.records(rows)
    for suffix in ("csv", "jsonl"):
        export(found, tmp_path / f"grid.{suffix}")
    assert len((tmp_path / "grid.csv").read_text().splitlines()) == 26
    first = json.loads((tmp_path / "grid.jsonl").read_text().splitlines()[0])
    words = " ".join(f"{part.code} {part.level}" for part in found[0].findings)
    assert first == json.loads(json.dumps(found[0].columns | {"findings": words}))


@pytest.mark.parametrize("name", ["grid.xlsx", "nowhere/grid.csv"])
def test_what_cannot_be_exported_is_said_before_the_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"--export {name}"):
        run("gpt2", "lr=1e-3", "-o", "g.db", "--export", name)
    with pytest.raises(InputError, match="is not NAME<VALUE"):
        run("gpt2", "lr=1e-3", "-o", "g.db", "--where", "lr")
    with pytest.raises(InputError, match="there is no folder"):
        run("gpt2", "lr=1e-3", "-o", "nowhere/g.db")
    assert list(tmp_path.iterdir()) == []


def test_the_command_resumes_filters_and_keeps_what_is_good(tmp_path, capsys):
    store = str(tmp_path / "g.db")
    told = ["gpt2", "lr=1e-4,1.0", *TINY, "n_layer=1,0", "-o", store, "--snapshots", "256"]
    told += ["--workers", "1"]
    assert run(*told, "--format", "json") == 3
    said = capsys.readouterr()
    assert "2 of 4 cells could not run" in said.err
    document = json.loads(said.out)
    assert [c["verdict"] for c in document["cells"]] == ["ok", "risk"] + ["could not run"] * 2
    assert document["profiles_made"] == 1
    assert run(*told, "--top", "1", "--where", "lr=1") == 3
    said = capsys.readouterr()
    assert "resuming: 2 of 4 cells are done" in said.err
    assert "\nrisk " in said.out.partition("\nRanked\n")[2]
    with pytest.raises(InputError, match="holds another grid"):
        run(*told, "--risk", "0.1")
    kept = tmp_path / "trials.json"
    assert run(store, "--top", "1", "--export", str(kept)) == 3  # a store shows itself
    said = capsys.readouterr()
    assert "\nok " in said.out.partition("\nRanked\n")[2]
    assert "holds the 1 of 4 cells that pass the gate" in said.err
    fixed = {"n_embd": 32, "n_head": 2, "vocab_size": 256, "n_layer": 1}
    assert json.loads(kept.read_text()) == [{"lr": 1e-4} | fixed]


def test_the_command_is_installed_and_lists_before_it_works(tmp_path):
    listed = subprocess.run(
        [sys.executable, "-c", "from rksp.cli import main; main()", "grid", "gpt2", "lr=1,2",
         "--dry-run"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert [json.loads(line)["lr"] for line in listed.stdout.splitlines()] == [1, 2]
    assert "cells: 2; models to measure: 1" in listed.stderr
    assert list(tmp_path.iterdir()) == []


def run(*arguments: str) -> int:
    """The exit code of `rksp grid` in this process; its errors are raised."""
    command = typer.main.get_command(app)
    return command.main(args=["grid", *arguments], prog_name="rksp", standalone_mode=False)


def fill_store(path: Path, *results: tuple[float, str]) -> None:
    """A finished store of one model: (P(failed), findings) of each cell."""
    cells = [
        Cell(target="gpt2", recipe=Recipe(learning_rate=1e-3 * (i + 1)), labels={"lr": i})
        for i in range(len(results))
    ]
    with GridStore(path) as store:
        store.fill(cells, STATES)
        for cell, (probability, findings) in zip(store.claim(60.0).cells, results, strict=True):
            parts = [text.split(" ") for text in findings.split(", ") if text]
            found = [{"code": code, "level": level} for code, level in parts]
            answer = CellAnswer(verdict="ok", probability_failed=probability, findings=found)
            assert store.finish(cell.key, answer)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("", 1),
        ("--fail-on 0.7", 0),
        ("--fail-on 0.3", 1),
        ("--exit-zero", 0),
        ("--fail-on never", 0),
        ("--fail-on 0.7 --top 1 --format csv", 0),
        ("--top 1 --format csv", 1),
        ("--where lr=0 --format json", 1),
    ],
)
def test_the_exit_code_is_about_every_cell_in_every_format(options, code, tmp_path, capsys):
    fill_store(tmp_path / "g.db", (0.1, "RKSP503 note"), (0.6, "RKSP501 note"))
    assert run(str(tmp_path / "g.db"), *options.split()) == code
    said = capsys.readouterr().err
    assert ("1 of 2 cells fail" in said or "2 of 2" in said) == (
        code == 1 or "exit-zero" in options
    )


def test_findings_can_fail_a_grid_too(tmp_path, capsys):
    fill_store(tmp_path / "g.db", (0.1, "RKSP503 note"), (0.2, "RKSP501 warning"))
    store = str(tmp_path / "g.db")
    assert [run(store, "--fail-on", word) for word in ("0.5", "error", "warning")] == [0, 0, 1]


def test_an_unfinished_store_is_no_answer(tmp_path, capsys):
    with GridStore(tmp_path / "g.db") as store:
        store.fill([Cell(target="gpt2", recipe=Recipe(learning_rate=1e-3))], STATES)
    assert run(str(tmp_path / "g.db")) == 3
    assert "1 of 1 cells are not done" in capsys.readouterr().err


def test_a_grid_from_python_is_the_same_grid(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    plan = read_plan({"lr": [1e-4, 0.7]}, target="gpt2", recipe={"warmup": 3})
    engine = LocalEngine(1, evaluator="grid_faults:evaluate")
    result = run_grid(plan, tmp_path / "g.db", options=STATES, engine=engine)
    assert [record.verdict for record in result.records()] == ["ok", "risk"]
    assert [record.verdict for record in result.records(bar=0.9)] == ["ok", "ok"]
    assert {record.get("warmup_steps") for record in result.records()} == {3}
    assert axes_of(result.rows) == ["lr"]
    assert {row.state for row in result.rows} == {"done"}
    assert len(result.profiles) == 1
    assert result.made_by["classifier"]


def test_numbers_of_another_classifier_do_not_join_the_table(tmp_path, monkeypatch):
    fill_store(tmp_path / "g.db", (0.1, ""))
    monkeypatch.setattr("rksp.grid.store.made_by", lambda: made_by() | {"classifier": "other"})
    cells = [Cell(target="gpt2", recipe=Recipe(learning_rate=1e-3))]
    with GridStore(tmp_path / "g.db") as store, pytest.raises(InputError, match="with classifier"):
        store.fill(cells, STATES)
