"""Axes that no model has are found before the work, and each failure is told once."""

from __future__ import annotations

import json
import re

import pytest
from support.commands import run_rksp
from support.grid_runs import fill_done

from rksp.grid.axes import check_names
from rksp.grid.engines.base import End
from rksp.grid.group import Event, Options
from rksp.grid.plan import read_plan
from rksp.grid.run import drive, run_grid
from rksp.grid.store import GridStore
from rksp.ground.errors import InputError
from rksp.models.resolve import resolve, settings_of

DROPOUTS = {"attn_pdrop", "embd_pdrop", "resid_pdrop"}


def test_a_dry_run_finds_an_axis_that_no_model_has():
    said = run_rksp("grid", "gpt2", "dropot=0.1,0.2", "lr=1e-3", "--dry-run")
    assert said.returncode == 2
    assert said.stdout == ""
    assert (
        "dropot is neither a field of the recipe nor a setting of gpt2; did you mean" in said.stderr
    )
    assert "dropout" in said.stderr.partition("did you mean")[2]
    assert "--ignore dropot" in said.stderr


def test_a_grid_that_cannot_run_stops_before_its_store_is_made(tmp_path):
    plan = read_plan({"colour": [1, 2], "lr": [1e-3]}, target="gpt2")
    with pytest.raises(InputError, match="colour is neither"):
        run_grid(plan, tmp_path / "g.db", engine=object())
    assert list(tmp_path.iterdir()) == []


def test_cells_that_cannot_run_are_counted_beside_others():
    plan = read_plan({"target": ["gpt2", "llama"], "n_embd": [32, 64], "lr": [1, 2]})
    [note] = check_names(plan.cells)
    assert note.startswith("4 cells cannot run: n_embd is neither")
    assert "of llama" in note
    assert check_names(read_plan({"hidden_size": [32]}, target="gpt2").cells) == ()
    assert check_names(read_plan({"x": [1]}, target="own:factory").cells) == ()


def test_dropout_means_every_dropout_of_the_type():
    [note] = check_names(read_plan({"dropout": [0.3]}, target="gpt2").cells)
    assert note == "dropout sets attn_pdrop, embd_pdrop, resid_pdrop of gpt2."
    source = resolve("gpt2", overrides={"dropout": "0.3", "embd_pdrop": "0.2"}, counts=False)
    assert source.config.attn_pdrop == source.config.resid_pdrop == 0.3
    assert source.config.embd_pdrop == 0.2
    assert source.config.summary_first_dropout == 0.1  # only a classification head has it
    assert any("dropout sets attn_pdrop" in note for note in source.notes)
    assert settings_of("bart").dropouts == ()  # a setting of its own
    assert "dropout" in settings_of("bart")
    assert "dropout" not in settings_of("mamba")


def test_set_holds_for_every_cell_of_a_grid():
    arguments = ["grid", "gpt2", "lr=1e-3,1e-2", "--set", "n_layer=2", "--dry-run"]
    listed = run_rksp(*arguments)
    assert listed.returncode == 0, listed.stderr
    assert [json.loads(line)["set.n_layer"] for line in listed.stdout.splitlines()] == [2, 2]
    assert run_rksp(*arguments, "n_layer=3").returncode == 2


class Refusing:
    """An engine whose groups all fail with one sentence."""

    slots = 1

    def submit(self, group):
        return self

    def poll(self) -> tuple[list[Event], End]:
        return [Event(kind="failed", failure="invalid", message="It cannot be built.")], End()

    def stop(self) -> None:
        """Nothing runs."""

    close = stop


def test_a_failure_of_many_cells_is_told_twice_at_most(tmp_path):
    plan = read_plan({"n_layer": list(range(1, 41)), "lr": [1e-3]}, target="gpt2")
    said: list[str] = []
    with GridStore(tmp_path / "g.db") as store:
        store.fill(plan.cells, Options())
        drive(store, Refusing(), progress=lambda what, *counts: said.append(what))
    told = [line for line in said if "cannot be built" in line]
    assert told == ["gpt2 n_layer=1: It cannot be built.", "40 cells failed: It cannot be built."]


def test_the_page_folds_failures_of_one_kind(tmp_path):
    plan = read_plan({"n_layer": list(range(1, 41)), "lr": [1e-3, 1e-2]}, target="gpt2")
    lost = lambda recipe: "It cannot be built." if recipe["learning_rate"] > 5e-3 else {}
    fill_done(tmp_path / "g.db", plan, lost)
    said = run_rksp("grid", str(tmp_path / "g.db"))
    assert said.returncode == 3
    assert said.stdout.count("It cannot be built.") == 1
    assert re.search(r"40 cells\W+It cannot be built\.", said.stdout)
