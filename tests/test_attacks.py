"""Attacks on a machine that checks a stranger's repository: each is refused, or has no effect."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import left_with
from reports import scored
from torch import nn

from rksp.datasets.probe import make_probe
from rksp.errors import ArtifactError, InputError
from rksp.grid.cell import Cell, Options
from rksp.grid.drive import drive
from rksp.grid.engines.base import End
from rksp.grid.engines.local import LocalEngine
from rksp.grid.engines.slurm import SlurmEngine
from rksp.grid.run import read_grid
from rksp.grid.store import GridStore
from rksp.models.config_guard import sanitize
from rksp.models.resolve import resolve
from rksp.models.streaming import memory, opening
from rksp.recipe import Recipe
from rksp.report.formats import FORMATS
from rksp.text import one_line, printable

SMALL = ["n_layer=2", "n_embd=32", "n_head=2", "vocab_size=512"]
SHADOW = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
raise ImportError("shadowed")
"""
INSTALLED = str(Path(sys.executable).with_name("rksp"))


def installed(*arguments: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a shell would: without a safe path of its own."""
    unset = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [INSTALLED, *arguments], cwd=cwd, env=unset, capture_output=True, text=True, **more
    )


# Files of the working folder with the name of a package


@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_workers_import_nothing_from_the_working_folder(tmp_path, monkeypatch, engine):
    if engine == "slurm":
        pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
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
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"absent" not in done.stderr  # it ended before it looked for its evaluator


# Exit codes that a CI reads


def test_a_closed_pipe_is_not_a_risk(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([INSTALLED, "checks"], stdout=closed, stderr=subprocess.PIPE)
    assert done.returncode == 141
    assert done.stderr == b""


# Files that name code


EVIL = """
import pathlib
pathlib.Path("imported").touch()
def run():
    pathlib.Path("called").touch()
    raise SystemExit(0)
"""
STEPS = "learning_rate: 1e-4\nmicro_batch_size: 1\nmax_steps: 10\nsequence_len: 64\n"
AXOLOTL = f'base_model: "evil:run"\n{STEPS}gradient_accumulation_steps: 1\n'
HUGGING_FACE = (
    'model_name_or_path: "evil:run"\nlearning_rate: 1e-4\nper_device_train_batch_size: 8\n'
    "max_steps: 10\n"
)
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
    """Run a command in this process, in a folder with a file that leaves marks when it runs."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    Path("t.yaml").write_text(AXOLOTL)

    def call(command: str) -> tuple[int, str, str]:
        code = left_with(command.split())
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    yield call
    sys.modules.pop("evil", None)


def refused(done: tuple[int, str, str], sentence: str = "") -> None:
    """Check exit code 2, one sentence on stderr and nothing on stdout."""
    code, out, err = done
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1, err
    assert sentence in err
    assert len(err) < 1200


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
    assert engine.options == [dataclasses.asdict(Options())]


class _Told:
    """An engine that notes the options of a group and does nothing."""

    slots = 1

    def __init__(self) -> None:
        self.options: list[dict] = []

    def start(self, task):
        self.options.append(task["options"])
        return self

    def poll(self) -> list:
        return []

    def end(self) -> End:
        return End(failure="timeout", message="nothing done")

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
    refused(run(f"score {target} --format json"), "tried to end the program")


def test_an_exit_at_import_is_a_failure(run):
    Path("evil2.py").write_text("raise SystemExit(0)")
    refused(run("score evil2:run"), "tried to end the program")


# A stranger's defaults


@pytest.mark.parametrize(
    "line", ["output = ['text=../outside']", "exit-zero = true", "fail-on = 'never'"]
)
def test_a_file_of_defaults_neither_writes_nor_opens_the_gate(run, tmp_path, line):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    Path(".git").mkdir()
    Path(".rksp.toml").write_text(f"[score]\n{line}\n")
    refused(run("score gpt2 --lr 1"), "cannot be")
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("text", ["tool = 3", "tool.rksp = 3", "[tool", "x = " + "[" * 5000])
def test_a_broken_pyproject_is_said(run, text):
    Path("pyproject.toml").write_text(text)
    Path(".git").mkdir()
    if text == "tool = 3":
        assert run("checks")[0] == 0
    else:
        refused(run("checks"))


# Input that asks for more work or memory than any configuration


def _doubling(steps: int, value: str) -> str:
    lines = [f"v{n}: {value.replace('NEXT', f'${{v{n + 1}}}')}" for n in range(steps)]
    return "\n".join(["learning_rate: ${v0}", "micro_batch_size: 1", "base_model: gpt2", *lines])


UNUSABLE = {
    "references.yaml": _doubling(38, '"NEXT NEXTa"'),
    "lists.yaml": _doubling(36, '["NEXT", "NEXT"]'),
    "squares.py": "a0 = 9.5\n" + "".join(f"a{n + 1} = a{n} * a{n}\n" for n in range(40)),
    "integers.py": "a0 = 99\n" + "".join(f"a{n + 1} = a{n} * a{n}\n" for n in range(40)),
    "sums.py": "a = " + "1 + " * 20_000 + "1\n",
    "digits.json": '{"learning_rate": ' + "9" * 5000 + "}",
    "digits.toml": "learning_rate = " + "9" * 5000,
    "nul.yaml": "learning_rate: 1e-4\nname: a\0b\n",
    "one.yaml": "learning_rate: 1e-4\nname: a\1b\n",
    "bool.yaml": "learning_rate: !!bool abc\nmicro_batch_size: 1\n",
    "stamp.yaml": "learning_rate: !!timestamp abc\nmicro_batch_size: 1\n",
    "deep.json": "[" * 100_000,
    "deep.yaml": "[" * 100_000,
    "dashes.yaml": "- " * 100_000,
    "many.yaml": "".join(f"k{n}: 1\n" for n in range(150_000)),
    "large.yaml": "#" * (3 * 2**20),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_recipe_that_unfolds_is_refused_in_a_sentence(run, name):
    Path(name).write_text(UNUSABLE[name])
    started = time.process_time()
    refused(run(f"explain-config {name}"))
    assert time.process_time() - started < 20


INFINITE = {
    "axolotl": AXOLOTL.replace("max_steps: 10", "num_epochs: .inf\nwarmup_ratio: .nan"),
    "hf": HUGGING_FACE.replace("max_steps: 10", "warmup_ratio: .inf\nmax_steps: 1e400"),
    "neox": '{"train_micro_batch_size_per_gpu": 1e400, "train_iters": 1e400, "optimizer": {}}',
    "olmo": "model:\n  max_sequence_length: 1e-3\nglobal_train_batch_size: 0\nmax_duration: .inf\n",
    "foundry": "max_duration: .infba\nglobal_train_batch_size: .nan\nmax_seq_len: .inf\n",
}


@pytest.mark.parametrize("trainer", INFINITE)
def test_a_number_that_nothing_can_count_with_is_no_crash(run, trainer):
    names = {"hf": "hugging-face", "neox": "gpt-neox", "foundry": "llm-foundry"}
    Path("run.yaml").write_text(INFINITE[trainer])
    done = run(f"explain-config run.yaml --devices 1 --as {names.get(trainer, trainer)}")
    assert done[0] in (0, 2), done
    assert "unexpected" not in done[2]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/full"])
@pytest.mark.parametrize("reader", ["report {}", "score gpt2 --baseline {}", "diff {} {}"])
def test_a_device_is_not_read(run, device, reader):
    if not Path(device).exists():
        pytest.skip(f"there is no {device}")
    refused(run(reader.format(device, device)), "not a regular file")


@pytest.mark.parametrize("name", ["pipe.yaml", "pipe.json", "pipe.py"])
@pytest.mark.parametrize("command", ["explain-config {}", "score {}", "grid {} -o g.db"])
def test_a_pipe_is_not_waited_for(run, name, command):
    os.mkfifo(name)
    code, _, err = run(command.format(name))
    assert code == 2
    assert "regular file" in err or "no file" in err


def test_a_probe_is_a_regular_file_of_bounded_size(tmp_path):
    with pytest.raises(InputError, match="regular file"):
        make_probe(nn.Linear(2, 2), text=Path("/dev/zero"))
    with pytest.raises(InputError, match="64 MiB"):
        large = tmp_path / "large"
        with large.open("wb") as file:
            file.truncate(65 * 2**20)
        make_probe(nn.Linear(2, 2), text=large)


HUGE = {
    "num_labels": {"model_type": "bert", "num_labels": 10**9},
    "head_dim": {"model_type": "llama", "head_dim": 10**7},
    "patches": {"model_type": "vit", "image_size": 4096, "patch_size": 1},
    "image": {"model_type": "vit", "image_size": 10**5},
    "channels": {"model_type": "vit", "num_channels": 10**6},
    "layers": {"model_type": "gpt2", "n_layer": 2048},
    "infinite": {"model_type": "gpt2", "n_head": float("inf")},
    "zero patch": {"model_type": "vit", "image_size": 32, "patch_size": 0},
}


@pytest.mark.parametrize("case", HUGE)
def test_a_configuration_beyond_any_model_is_refused(case):
    with pytest.raises(InputError, match="The configuration"):
        sanitize(HUGE[case])


TABLES = {"max_position_embeddings": 100_000, "num_layers": 2, "hidden_size": 8, "num_heads": 2}
TABLES |= {"attention_types": [[["global", "local"], 1]]}


def test_a_table_of_all_positions_is_counted_before_it_is_made():
    with pytest.raises(InputError, match="tables beside its parameters"):
        resolve("gpt_neo", overrides=TABLES)
    assert resolve("gpt_neo", overrides=TABLES | {"max_position_embeddings": 64})


def test_a_probe_beyond_the_memory_is_refused_before_the_model_is_built(run, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: memory.resident_memory() + 2**20)
    monkeypatch.setattr(opening, "free_memory", lambda: 10**12)
    refused_late = run("score gpt2 --set n_layer=1 --set n_embd=8 --set n_head=1")
    assert refused_late[0] == 2
    assert "logits), more than" in refused_late[2].splitlines()[-1]


@pytest.mark.parametrize("target", ["~nosuchuser/x", "x" * 300, "x" * 300 + ".yaml", "a\tb"])
@pytest.mark.parametrize("command", ["score", "grid"])
def test_a_name_that_no_system_takes_is_said(run, target, command):
    code = left_with([command, target, *(["lr=1e-4", "-o", "g.db"] if command == "grid" else [])])
    assert code == 2


# Text that would move a cursor or forge a log command


HOSTILE = "a\x1b[31m\n::error::forged\u202ex\x9b"


def test_a_file_name_writes_no_line_of_its_own(run, capsys):
    assert left_with(["score", HOSTILE]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert not set(err) & set("\x1b\x9b\u202e")
    assert "\\u001b[31m\\n::error::" in err


@pytest.mark.parametrize("option", [f"--{HOSTILE}", f"--lr={HOSTILE}", f"--format={HOSTILE}"])
def test_an_option_writes_no_line_of_its_own(run, capsys, option):
    assert left_with(["score", "gpt2", option]) == 2
    err = capsys.readouterr().err
    assert not set(err) & set("\x1b\x9b\u202e")
    assert not any(line.startswith("::error") for line in err.splitlines())


def test_a_value_of_a_file_is_printed_escaped(run, capsys):
    Path("x.yaml").write_text(AXOLOTL.replace("1e-4", '"\\x1b[31m\\n::error::x"'))
    left_with(["explain-config", "x.yaml", "--devices", "1"])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert not any(line.startswith("::") for line in (said.out + said.err).splitlines())


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_report_prints_no_control_character(run, capsys, name):
    report = scored(3.0)
    document = json.loads(report.to_json())
    document["target"]["name"] = HOSTILE
    Path("report.json").write_text(json.dumps(document))
    assert left_with(["report", "report.json", "--format", name]) == 0
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x9b\u202e")
    if name != "github":
        assert not any(line.startswith("::error::forged") for line in out.splitlines())


def test_text_of_the_world_stays_as_it_is():
    assert printable("modèle 模型 ρ\n") == "modèle 模型 ρ\n"
    assert json.loads(printable(json.dumps("a\x9b\u202e", ensure_ascii=False))) == "a\x9b\u202e"
    assert one_line("x" * 5000).count("x") == 1000
