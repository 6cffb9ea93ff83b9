"""Attacks on a machine that checks a stranger's repository: each is refused, or has no effect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.attacks import AXOLOTL, HUGGING_FACE, commands_in, refused
from support.places import SUPPORT

from rksp.grid.cell import Cell
from rksp.grid.engines.base import End
from rksp.grid.engines.local import LocalEngine
from rksp.grid.engines.remote import SlurmEngine
from rksp.grid.group import Options
from rksp.grid.run import drive, read_grid
from rksp.grid.store import GridStore
from rksp.ground.errors import ArtifactError
from rksp.recipe import Recipe

SMALL = ["n_layer=2", "n_embd=32", "n_head=2", "vocab_size=512"]
SHADOW = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
raise ImportError("shadowed")
"""
_SCRIPT = Path(sys.executable).with_name("rksp")
# Without an installation there is no such command, and Python is told what a command does.
INSTALLED = [str(_SCRIPT)] if _SCRIPT.exists() else [sys.executable, "-P", "-m", "rksp"]


def installed(*arguments: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a shell would: without a safe path of its own."""
    unset = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [*INSTALLED, *arguments], cwd=cwd, env=unset, capture_output=True, text=True, **more
    )


# Files of the working folder with the name of a package


@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_workers_import_nothing_from_the_working_folder(tmp_path, monkeypatch, engine):
    if engine == "slurm":
        pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    for module in ("json", "threadpoolctl", "torch"):
        Path(f"{module}.py").write_text(SHADOW)
    with GridStore(tmp_path / "grid.db") as store:
        store.fill([Cell(target="good", recipe=Recipe(learning_rate=1e-3))], Options())
        faults = "grid_faults:evaluate"
        if engine == "slurm":
            drive(store, SlurmEngine(tmp_path / "jobs", 1, cluster="local", evaluator=faults))
        else:
            drive(store, LocalEngine(1, evaluator=faults))
        assert [row.state for row in store.rows()] == ["done"]
    assert not Path("executed").exists()


def test_that_shadow_can_be_executed(tmp_path):
    (tmp_path / "threadpoolctl.py").write_text(SHADOW)
    command = [sys.executable, "-c", "import threadpoolctl"]
    unset = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    assert subprocess.run(command, cwd=tmp_path, env=unset, capture_output=True).returncode == 1
    assert (tmp_path / "executed").exists()


def test_a_grid_runs_beside_a_file_that_is_named_like_a_dependency(tmp_path):
    (tmp_path / "threadpoolctl.py").write_text(SHADOW)
    options = ["lr=1e-4", "--snapshots", "256", "--workers", "1", "-o", "g.db"]
    done = installed("grid", "gpt2", *SMALL, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_worker_whose_coordinator_is_gone_ends_at_once():
    command = [sys.executable, "-P", "-m", "rksp.grid.engines.child", "1", "absent:evaluate"]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=300)
    assert done.returncode == 1
    assert b"absent" not in done.stderr  # it ended before it looked for its evaluator


# Exit codes that a CI reads


def test_a_closed_pipe_is_not_a_risk(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([*INSTALLED, "explain"], stdout=closed, stderr=subprocess.PIPE)
    assert done.returncode == 141
    assert done.stderr == b""


# Files that name code


GRID_ROWS = "target,lr\nevil:run,1e-4\n"
NAMED_IN_A_FILE = {
    "axolotl": ("train.yaml", AXOLOTL, "score {} --devices 1"),
    "hf": ("hf.yaml", HUGGING_FACE, "score {} --devices 1 --sequence-length 64"),
    "confirm": ("train.yaml", AXOLOTL, "confirm {} --devices 1 --steps 1"),
    "grid": ("g.yaml", 'target: "evil:run"\ngrid:\n  lr: [1e-4]\n', "grid {} -o g.db"),
    "axis": ("g.yaml", 'grid:\n  target: ["evil:run"]\n  lr: [1e-4]\n', "grid {} -o g.db"),
    "rows": ("g.csv", GRID_ROWS, "grid {} -o g.db"),
    "base": ("g.yaml", "base: t.yaml\ngrid:\n  lr: [1e-4]\n", "grid {} --devices 1 -o g.db"),
}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    yield from commands_in(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("case", NAMED_IN_A_FILE)
def test_a_file_runs_no_code(run, case):
    name, text, command = NAMED_IN_A_FILE[case]
    Path(name).write_text(text)
    refused(run(command.format(name)), "a factory must be typed")
    assert not Path("imported").exists()


def test_a_store_runs_no_code(tmp_path, run):
    with GridStore(tmp_path / "g.db") as store:
        store.fill([Cell(target="evil:run", recipe=Recipe(learning_rate=1e-3))], Options())
        drive(store, LocalEngine(1), typed=["gpt2"])
        assert [row.failure for row in store.rows()] == ["invalid"]
    assert not Path("imported").exists()


def test_a_store_cannot_allow_what_was_not_typed(tmp_path):
    with GridStore(tmp_path / "g.db") as store:
        hostile = Options(trust_remote_code=True, allow_hub=True)
        store.fill([Cell(target="gpt2", recipe=Recipe(learning_rate=1e-3))], hostile)
        engine = _Told()
        drive(store, engine, options=Options())
    assert engine.options == [Options()]


class _Told:
    """An engine that notes the options of a group and does nothing."""

    slots = 1

    def __init__(self) -> None:
        self.options: list[Options] = []

    def submit(self, task):
        self.options.append(task.options)
        return self

    def poll(self) -> tuple[list, End]:
        return [], End(failure="timeout", message="nothing done")

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_store_that_cannot_be_written_can_be_looked_at(tmp_path):
    path = tmp_path / "g.db"
    with GridStore(path) as store:
        store.fill([Cell(target="a\x1bb", recipe=Recipe(learning_rate=1e-3))], Options())
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        (row,) = read_grid(path).rows
    finally:
        tmp_path.chmod(0o755)
    assert row.target == "a\\u001bb"


@pytest.mark.parametrize("damage", [b"", b"SQLite format 3\0" + b"x" * 5000, "cut", "result"])
def test_a_damaged_store_is_said(tmp_path, damage):
    path = tmp_path / "g.db"
    with GridStore(path) as store:
        store.fill([Cell(target="gpt2", recipe=Recipe(learning_rate=1e-3))], Options())
        if damage == "result":
            store._base.execute("UPDATE cells SET result = '{'")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-4096])
    elif damage != "result":
        path.write_bytes(damage)
    with pytest.raises(ArtifactError, match=r"damaged|not a grid store"):
        read_grid(path)


def test_a_typed_factory_runs_and_its_exit_is_a_failure(run):
    refused(run("score evil:run"), "tried to end the program")
    assert Path("called").exists()


@pytest.mark.parametrize("target", ["sys:exit", "builtins:exit"])
def test_foreign_code_cannot_choose_the_exit_code(run, target):
    assert "tried to end the program" in refused(run(f"score {target} --format json"))


def test_an_exit_at_import_is_a_failure(run):
    Path("evil2.py").write_text("raise SystemExit(0)")
    assert "tried to end the program" in refused(run("score evil2:run"))


# A stranger's defaults


@pytest.mark.parametrize(
    "line",
    [
        "output = ['text=../outside']",
        "exit-zero = true",
        "fail-on = 'never'",
        "ignore = ['RKSP205']",
        "select = ['RKSP9']",
        "level = ['RKSP205=note']",
        "set = ['n_layer=1']",
        "help-all = true",
    ],
)
def test_a_file_of_defaults_neither_writes_nor_opens_the_gate(run, tmp_path, line):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    Path(".git").mkdir()
    Path(".rksp.toml").write_text(f"[score]\n{line}\n")
    refused(run("score gpt2 --lr 1"), "cannot ")
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("text", ["tool = 3", "tool.rksp = 3", "[tool", "x = " + "[" * 5000])
def test_a_broken_pyproject_is_said(run, text):
    Path("pyproject.toml").write_text(text)
    Path(".git").mkdir()
    if text == "tool = 3":
        assert run("explain")[0] == 0
    else:
        refused(run("explain"))
