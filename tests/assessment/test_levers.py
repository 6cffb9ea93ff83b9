"""Levers in an answer: which are named, and with which size."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from support.commands import left_with
from support.grid_runs import run_here
from support.levers import lever_size, lever_table

import rksp
from rksp.classifiers.levers.effects import load_lever_table
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore
from rksp.question.gate import deciding
from rksp.report import words
from rksp.report.formats import render, rendering

RECIPE = {"learning_rate": 6e-3, "warmup_steps": 100, "max_steps": 1000}
TABLE = lever_table(qk_norm=0.5, warmup=0.3, z_loss=0.2, clip=0.1, batch=0.9, kss=-0.9)


@pytest.fixture(autouse=True)
def known_sizes(monkeypatch):
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", lambda: TABLE)


def printed(report, form: str) -> str:
    made = rendering(report, form)
    if isinstance(made, str):
        return made
    console = Console(width=400, file=io.StringIO())
    console.print(made)
    return console.file.getvalue()


def scored(target: str = "gpt2", **recipe: object):
    return rksp.score(target, recipe={**RECIPE, **recipe}, evidence="config")


def names(result) -> list[str]:
    return [lever.name for lever in result.levers]


def test_the_largest_levers_come_first_and_three_at_most() -> None:
    levers = scored().levers
    assert len(levers) == 3 and levers[0].name == "qk_norm"
    assert [x.factor for x in levers] == sorted((x.factor for x in levers), reverse=True)
    assert levers[0].factor == pytest.approx(10**0.5, rel=0.01)
    assert levers[0].low < levers[0].factor < levers[0].high


@pytest.mark.parametrize(
    ("target", "change", "absent"),
    [
        ("qwen3", {}, "qk_norm"),
        ("gpt2", {"warmup_steps": 400}, "warmup"),
        ("gpt2", {"z_loss": 1e-4}, "z_loss"),
        ("gpt2", {"max_grad_norm": 0.1}, "clip"),
        ("gpt2", {}, "batch"),  # public ladders do not show it
        ("gpt2", {}, "kss"),  # it lowers the edge
    ],
)
def test_a_lever_that_is_on_or_does_not_help_is_not_named(target, change, absent) -> None:
    assert absent not in names(scored(target, **change))


@pytest.mark.parametrize(
    ("target", "change"),
    [("bert", {}), ("gpt2", {"optimizer": "muon"}), ("gpt2", {"peft": "lora"})],
    ids=["another kind of model", "another optimizer", "trained weights"],
)
def test_no_lever_is_named_where_the_data_cover_none(target, change) -> None:
    assert scored(target, **change).levers == []


@pytest.mark.parametrize(
    ("target", "change", "named"),
    [
        ("gpt2", {}, True),
        ("llama", {}, True),
        ("gpt_neox", {}, False),
        ("gptj", {}, False),
        ("gpt2", {"max_steps": 1000}, False),
        ("gpt2", {"optimizer": "muon"}, False),
    ],
)
def test_muon_is_named_for_short_runs_of_sequential_blocks(
    target, change, named, monkeypatch
) -> None:
    table = lever_table(muon=0.6)
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", lambda: table)
    found = scored(target, **{"max_steps": 300, "warmup_steps": 30} | change).levers
    assert [(x.name, x.arm) for x in found] == [("muon", "optimizer=muon")] * named


def test_nothing_is_named_where_rksp_cannot_tell() -> None:
    result = scored("gpt2", optimizer="adafactor", objective="other")
    assert result.risk_verdict == "cannot tell" and result.levers == []


def test_a_cell_of_a_grid_has_what_the_score_says(tmp_path) -> None:
    rest = {name: value for name, value in RECIPE.items() if name != "learning_rate"}
    plan = read_plan({"lr": [1e-3, 6e-3]}, target="gpt2", recipe=rest)
    with GridStore(tmp_path / "grid.db") as store:
        store.fill(plan.cells, Options(evidence="config"))
        run_here(store)
        found = [row.result for row in store.rows()]
    scores = [scored(learning_rate=rate) for rate in (1e-3, 6e-3)]
    chances = [cell.probability_diverged for cell in found]
    assert chances == [score.probability_diverged for score in scores] == sorted(set(chances))
    first = scored().levers[0]
    assert [(cell.lever, cell.lever_factor) for cell in found] == [(first.name, first.factor)] * 2


def test_a_part_that_the_model_of_the_edge_knows_is_sized_by_it(monkeypatch) -> None:
    known = lever_table(parallel=0.9)
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", lambda: known)
    (named,) = scored().levers
    assert named.factor != pytest.approx(10**0.9, rel=0.02)
    assert scored("gpt_neox").levers == []  # its blocks are parallel


def test_the_named_size_is_what_the_changed_recipe_shows() -> None:
    plain = scored()
    (named,) = (lever for lever in plain.levers if lever.name == "warmup")
    longer = scored(warmup_steps=300)
    assert longer.likely_edge / plain.likely_edge == pytest.approx(named.factor, rel=0.02)
    assert longer.probability_failed < plain.probability_failed


def test_every_page_says_what_would_raise_the_edge() -> None:
    report = scored().report
    page = words.levers(deciding(report).risk)
    first, *others = page.split("; ")
    assert first == "would raise the edge: QK-norm (in the model's code) by 3.2× [1.8, 5.6]"
    assert "300 steps of warm-up (--warmup-steps 300) by" in others[-1]
    for form in ("full", "markdown", "html"):
        assert "QK-norm" in render(report, form), form
    sarif = json.loads(printed(report, "sarif"))
    assert len(sarif["runs"][0]["properties"]["levers"]) == 3


def test_a_run_file_is_answered_in_its_own_words(tmp_path, capsys) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "model_type: gpt2\nlearning_rate: 6.0e-3\nmax_steps: 1000\nwarmup_steps: 100\n"
        "per_device_train_batch_size: 8\noutput_dir: out\nlr_scheduler_type: cosine\n"
    )
    asked = ["score", "gpt2", "--recipe", str(file), "--devices", "1", "--evidence", "config"]
    left_with([*asked, "--exit-zero", "--format", "json"])
    levers = json.loads(capsys.readouterr().out)["seeds"][0]["risk"]["levers"]
    (warmup,) = (lever for lever in levers if lever["name"] == "warmup")
    assert warmup["change"] == "(warmup_steps: 300)"


def test_a_lever_costs_its_price_in_words() -> None:
    one = scored().levers[0]
    assert "nats" not in words.lever(one)
    assert words.lever(one.model_copy(update={"loss": 0.04})).endswith("at +0.04 nats")


def test_a_dear_lever_is_not_named(monkeypatch) -> None:
    dear = lever_table(qk_norm=lever_size(0.5, loss=0.2))
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", lambda: dear)
    assert scored().levers == []


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr("rksp.assessment.levers.load_lever_table", load_lever_table)


SHORT_RUN = {"max_steps": 300, "warmup_steps": 30}


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(
    ("target", "change", "is_named"),
    [
        ("gpt2", {}, True),
        ("bert", {}, False),
        ("t5", {}, False),
        ("vit", {}, False),
        ("gpt2", {"optimizer": "muon"}, False),
        ("gpt2", {"max_steps": 1200}, False),
    ],
)
def test_step_clip_is_named_where_its_ladders_carry(target, change, is_named) -> None:
    levers = scored(target, **SHORT_RUN | change).levers
    assert ("step_clip" in [lever.name for lever in levers]) is is_named
    if is_named:
        assert levers[-1].arm == "step_clip" and len(levers) > 1  # what needs no rksp comes first
        assert levers[-1].factor > max(10, levers[0].factor)
