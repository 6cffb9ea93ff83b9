"""A store knows the weights that its answers are about."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rksp.confirm.arms import parse_arms
from rksp.confirm.confirm import _Runs
from rksp.confirm.options import TrialOptions
from rksp.confirm.trial import Trainee
from rksp.grid.cell import Cell
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.store import GridStore
from rksp.ground.errors import InputError
from rksp.models.names import identity
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

SETTINGS = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16,
    "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint of one tensor: what resolves and is not built."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SETTINGS))
    save_file({"w": torch.zeros(4)}, tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


def rewrite(file: Path, tensor: torch.Tensor) -> None:
    """Write other weights of the same size and times, as a copy that keeps times does."""
    before = file.stat()
    save_file({"w": tensor}, file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_other_weights_are_another_target_though_size_and_time_stay(folder):
    before = identity(folder)
    rewrite(folder / "model.safetensors", torch.ones(4))
    assert identity(folder) != before
    rewrite(folder / "model.safetensors", torch.zeros(4))
    assert identity(folder) == before


def test_a_copy_is_the_same_target(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "training_args.bin").write_bytes(b"not read")
    assert identity(tmp_path / "copy") == identity(folder)
    assert identity(folder / "model.safetensors") == identity(folder)
    assert identity(folder / "config.json") != identity(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-2.safetensors"])
def test_every_file_that_is_read_counts(folder, name):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    before = identity(folder)
    if name.endswith(".json"):
        (folder / name).write_text(json.dumps(SETTINGS | {"n_layer": 2}))
    else:
        save_file({"v": torch.ones(2)}, folder / name)
    assert identity(folder) != before


def test_code_counts_where_it_is_run(folder):
    plain, coded = identity(folder), identity(folder, with_code=True)
    (folder / "own.py").write_text("x = 1\n")
    assert identity(folder) == plain
    assert identity(folder, with_code=True) != coded


def test_a_factory_is_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('imported')\n")
    file = tmp_path / "package" / "own.py"
    file.write_text("def make(): ...\n")
    before = identity("package.own:make")
    file.write_text("def make(): return 1\n")
    assert None is not before != identity("package.own:make")
    assert identity("package.absent:make") is identity("gpt2") is identity("a/b") is None


def test_a_hub_model_is_its_files_in_the_cache(folder, monkeypatch):
    monkeypatch.setattr("rksp.models.names.hub_folder", lambda name, allow: folder)
    assert identity("someone/model") == identity(folder)


def test_a_resumed_grid_sees_other_weights(folder, tmp_path):
    cells = read_plan({"lr": [1e-3]}, target=str(folder)).cells
    with GridStore(tmp_path / "grid.db") as store:
        assert [store.fill(cells, Options()) for _ in range(2)] == [0, 1]
        rewrite(folder / "model.safetensors", torch.ones(4))
        with pytest.raises(InputError, match="holds another grid"):
            store.fill(cells, Options())


def test_a_resumed_confirmation_sees_other_weights(folder):
    def settings() -> dict:
        runs = _Runs(
            trainee=Trainee(source=resolve(str(folder)), recipe=Recipe(learning_rate=1e-3)),
            arms=parse_arms([]), seeds=[0], options=TrialOptions(),
            progress=lambda *told: None,
        )  # fmt: skip
        return runs.settings()

    before = settings()
    assert settings() == before
    rewrite(folder / "model.safetensors", torch.ones(4))
    assert settings() != before


def test_weights_are_read_once_a_process(folder, monkeypatch):
    before = identity(folder)
    monkeypatch.setattr("hashlib.file_digest", None)
    assert identity(folder) == before
    cell = Cell(target=str(folder), recipe=Recipe())
    assert cell.key(Options()) == cell.key(Options())
