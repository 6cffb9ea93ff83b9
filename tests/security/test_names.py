"""Names: a committed file or folder does not stand in for a type, a factory or a Hub model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.commands import left_with

from rksp.grid.cell import Cell
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore
from rksp.ground.errors import InputError
from rksp.ground.files import with_home
from rksp.models import names
from rksp.models.names import identity
from rksp.models.resolve import resolve, resolve_tiny, settings_of
from rksp.recipe import Recipe

TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 64}
FACTORY = "import torch\n\ndef run():\n    return torch.nn.Linear(2, 3)\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def committed(name: str) -> Path:
    """Put a small model where a typed name leads."""
    folder = Path(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def test_a_folder_does_not_stand_in_for_a_model_type():
    bare = resolve("gpt2", counts=False)
    committed("gpt2")
    typed, path = resolve("gpt2", counts=False), resolve("./gpt2", counts=False)
    assert (typed.kind, typed.config_hash) == (bare.kind, bare.config_hash)
    assert (path.kind, path.config.n_embd) == ("config", 8)
    assert "gpt2 is read as the model type; write ./gpt2" in typed.notes[0]
    assert resolve("gpt2/", counts=False).config.n_embd == 8
    assert path.notes == bare.notes
    assert identity("gpt2") is None and identity("./gpt2") is not None
    assert settings_of("gpt2").known != settings_of("./gpt2").known
    assert resolve_tiny("gpt2").config.model_type == "gpt2"


def test_a_folder_turns_no_risk_into_a_pass(capsys):
    command = ["score", "gpt2", "--lr", "6e-3", "--evidence", "config", "--format", "json"]
    assert left_with(command) == 1
    before = json.loads(capsys.readouterr().out)["seeds"]
    committed("gpt2")
    assert left_with(command) == 1
    assert json.loads(capsys.readouterr().out)["seeds"] == before


def test_a_name_that_is_no_type_is_the_folder_and_the_page_says_so(capsys):
    committed("mine")
    assert left_with(["score", "mine", "--lr", "1e-3", "--evidence", "config", "-v"]) == 0
    said = capsys.readouterr()
    assert "mine is read as the path ./mine" in said.out.replace("\n", " ")
    assert "mine is read as the path ./mine" in said.err


def test_a_file_does_not_stand_in_for_a_factory(monkeypatch):
    Path("fact.py").write_text(FACTORY)
    committed("fact:run")
    monkeypatch.delitem(sys.modules, "fact", raising=False)
    assert resolve("fact:run").kind == "factory"
    assert resolve("./fact:run", counts=False).kind == "config"


@pytest.mark.parametrize("way", ["allowed", "cached"])
def test_a_folder_does_not_stand_in_for_a_hub_model(way, tmp_path, monkeypatch):
    committed("org/name")
    assert "read as the path ./org/name" in resolve("org/name", counts=False).notes[0]
    if way == "cached":
        import huggingface_hub.constants

        (tmp_path / "hub" / "models--org--name").mkdir(parents=True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for target in ("org/name", "./org/name"):
        if target[0] == ".":
            assert resolve(target, counts=False, allow_hub=way == "allowed").config.n_embd == 8
        else:
            with pytest.raises(InputError, match=r"write \./org/name for the folder"):
                resolve(target, counts=False, allow_hub=way == "allowed")


def test_a_store_does_not_stand_in_for_the_target_of_a_grid(capsys):
    with GridStore(Path("gpt2")) as store:
        store.fill([Cell(target="gpt2", recipe=Recipe(learning_rate=1e-5))], Options())
    assert left_with(["grid", "gpt2", "lr=1e-4,1e-3", "--dry-run"]) == 0
    assert capsys.readouterr().out.count('"target": "gpt2"') == 2
    assert {cell.target for cell in read_plan("gpt2", ["lr=1e-4"]).cells} == {"gpt2"}
    assert names.path_of("./gpt2") == Path("gpt2")


def test_a_file_that_begins_as_a_home_folder_does_is_a_file():
    Path("~.csv").write_text("target,lr\ngpt2,1e-3\n")
    assert [cell.target for cell in read_plan("./~.csv").cells] == ["gpt2"]
    assert names.path_of("./~.csv") == Path("~.csv")
    assert with_home("~") == Path.home()
