"""What a grid's pages say: assumptions, ties, long rankings and wide maps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import run_rksp
from support.grid_runs import fill_done
from support.pages import check_self_contained, wrong_numbers

import rksp.cli.grid
from rksp.assessment.pipeline import Evaluation
from rksp.assessment.risk import About
from rksp.documents.terms import Gate
from rksp.grid.cell import summarize
from rksp.grid.plan import read_plan
from rksp.grid.run import read_grid
from rksp.grid.table import best_safe
from rksp.report.formats import render
from rksp.report.grid import grid_report

WARNED = [{"code": "RKSP505", "level": "warning"}]
FAULTY = [{"code": "RKSP304", "level": "error"}]


def filled(tmp_path: Path, grid: dict, answer) -> Path:
    fill_done(tmp_path / "g.db", read_plan(grid, target="gpt2"), answer)
    return tmp_path / "g.db"


def report(path: Path, **limits: object):
    return grid_report(read_grid(path), Gate.parse("0.5"), **limits)


def test_every_page_says_what_was_assumed(tmp_path):
    path = filled(tmp_path, {"lr": [1e-3, 1e-2], "warmup": [100]}, lambda recipe: {})
    document = report(path)
    assert document.assumed["max_steps"] == "1000 steps"
    assert document.assumed.keys() & {"learning_rate", "warmup_steps"} == set()
    assert json.loads(document.to_json())["assumed"] == document.assumed
    for form in ("text", "html", "markdown"):
        text = " ".join(render(document, form).replace("\\", "").split())
        assert "1000 steps" in text
        assert "--max-steps" in text
        assert "a warm-up of 100 in an assumed run of 1000 steps" in text


def test_every_page_names_the_first_lever_of_a_cell(tmp_path):
    warmed = {"lever": "warmup", "lever_factor": 1.312}
    answer = lambda recipe: warmed if recipe["learning_rate"] == 1e-2 else {}
    document = report(filled(tmp_path, {"lr": [1e-3, 1e-2]}, answer))
    assert [cell.lever for cell in document.cells].count("warmup") == 1
    for form in ("text", "html", "markdown"):
        assert render(document, form).count("warmup 1.3×") == 1
    (line,) = (text for text in render(document, "csv").splitlines() if "warmup,1.312" in text)
    assert ",0.01," in line


def test_a_grid_without_levers_has_no_column_of_them(tmp_path):
    document = report(filled(tmp_path, {"lr": [1e-3]}, lambda recipe: {}))
    assert "Raises the edge" not in render(document, "text")


def test_what_was_given_is_not_assumed(tmp_path):
    plan = read_plan("gpt2", ["lr=1e-3", "steps=50"], recipe={"warmup_steps": 9})
    assert plan.assumed.keys() & {"learning_rate", "max_steps", "warmup_steps"} == set()
    fill_done(tmp_path / "g.db", plan, lambda recipe: {})
    assert "assumed run" not in render(report(tmp_path / "g.db"), "text")
    wandb = tmp_path / "s.yaml"
    wandb.write_text("parameters: {lr: {values: [1]}, max_steps: {value: 7}}\n")
    assert "max_steps" not in read_plan(str(wandb), target="gpt2").assumed


@pytest.mark.parametrize(("behind", "first"), [(0.0, 2e-3), (0.009, 2e-3), (0.011, 1e-3)])
def test_a_warned_cell_is_never_above_a_clean_one_that_ties(behind, first, tmp_path):
    def answer(recipe: dict) -> dict:
        if recipe["learning_rate"] == 1e-3:
            return {"expected_excess": 0.1, "findings": WARNED, "probability_failed": 0.01}
        return {"expected_excess": 0.1 + behind}

    found = read_grid(filled(tmp_path, {"lr": [1e-3, 2e-3]}, answer)).records()
    assert found[0].learning_rate == first
    assert best_safe(found)["gpt2"].learning_rate == first


def test_a_cell_with_an_error_is_neither_first_nor_safe(tmp_path):
    def answer(recipe: dict) -> dict:
        is_faulty = recipe["learning_rate"] == 1e-3
        return {"findings": FAULTY, "expected_excess": 0.0} if is_faulty else {}

    found = read_grid(filled(tmp_path, {"lr": [1e-3, 2e-3]}, answer)).records()
    assert [record.learning_rate for record in found] == [2e-3, 1e-3]
    assert best_safe(found)["gpt2"].learning_rate == 2e-3
    assert best_safe(found[1:]) == {"gpt2": None}


def test_a_long_ranking_shows_its_top_and_how_to_see_all(tmp_path):
    path = filled(tmp_path, {"warmup": list(range(60)), "lr": [1e-3]}, lambda recipe: {})

    def ranks(*options: str) -> int:
        return len(
            re.findall(r"(?m)^(?:ok|caution|risk)  ", run_rksp("grid", str(path), *options).stdout)
        )

    assert (
        "Shown: 20 of 60 cells; --top 60 without --where shows all."
        in run_rksp("grid", str(path)).stdout
    )
    assert (ranks(), ranks("--top", "60"), ranks("--top", "3")) == (20, 60, 3)
    stored = json.loads(run_rksp("grid", str(path), "--format", "json").stdout)
    assert len(stored["cells"]) == 60


def test_a_random_sweep_has_a_map_of_twenty_columns(tmp_path):
    rates = [float(f"{1e-5 * 1.01**i:.6g}") for i in range(600)]
    grid = {"lr": rates}
    answer = lambda recipe: {"probability_failed": min(0.99, 50 * recipe["learning_rate"])}
    document = report(filled(tmp_path, grid, answer))
    heat = document.risk_map
    assert heat.is_binned
    assert len(heat.rates) == 20
    [row] = heat.rows
    assert None not in row.probabilities
    assert row.probabilities == sorted(row.probabilities)
    text = render(document, "text")
    assert "in 20 columns of equal width" in text
    page = render(document, "html")
    check_self_contained(page)
    assert wrong_numbers(page, json.loads(document.to_json())) == []
    assert page.count('class="risky"') == 20


def test_a_cell_without_a_profile_is_ranked_and_rendered(tmp_path):
    risk = About(tier="config", steps=9, learning_rate=1e-3).certain_failure("x is not finite")
    seen = Evaluation(seed=0, source=None, profile=None, gradient=None, risk=risk)
    path = filled(tmp_path, {"lr": [1e-3, 1e-2]}, lambda recipe: summarize(seen))
    document = report(path)
    assert [cell.verdict for cell in document.cells] == ["risk", "risk"]
    for form in ("text", "html", "markdown", "junit"):
        assert "0.01" in render(document, form) or "1e-2" in render(document, form)


def test_an_interrupted_grid_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rksp.cli.grid, "_worked", stop)
    said = run_rksp("grid", "gpt2", "lr=1e-3", "-o", "g.db", cwd=tmp_path)
    assert said.returncode == 130
    assert "finished cells are in g.db; the same command goes on from there" in said.stderr


def test_the_output_of_a_grid_is_a_store_or_a_report_by_its_suffix(tmp_path):
    grid = ["grid", "gpt2", "lr=1e-4,1e-3", "optimizer=adamw,sgd", "--evidence", "config"]
    done = run_rksp(*grid, "-o", "g.html", "-o", "g.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "<html" in (tmp_path / "g.html").read_text()
    cells = json.loads((tmp_path / "g.json").read_text())["cells"]
    assert len(cells) == 4 and not list(tmp_path.glob("*.db"))
    run_rksp(*grid, "-o", "g.db", cwd=tmp_path)
    assert run_rksp("grid", "g.db", "-o", "h.json", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "h.json").read_text())["cells"] == cells
    both = run_rksp(*grid, "-o", "a.db", "-o", "b.db", cwd=tmp_path)
    assert both.returncode == 2 and "two stores, a.db and b.db" in both.stderr
    for absent in ("absent.db", "absent.yaml"):
        said = run_rksp("grid", absent, cwd=tmp_path)
        assert said.returncode == 2 and f"rksp: {absent} cannot be read" in said.stderr
