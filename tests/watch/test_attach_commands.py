"""`rksp watch` of a command: a process that knows nothing of it, and what it leaves."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT
from support.watching import read_losses

from rksp.confirm.watched import watched_run
from rksp.own_runs.record import read_record
from rksp.watch.attach.session import STOPPED

SCRIPTS = ROOT / "tests" / "support" / "attached"


def watch(*command: str, cwd: Path, **more: object) -> subprocess.CompletedProcess[str]:
    """Run `rksp watch` with its options and a command of this Python."""
    place = command.index("--")
    line = [sys.executable, "-m", "rksp", "watch", *command[:place], "--", sys.executable]
    run = [*line, *command[place + 1 :]]
    return subprocess.run(run, cwd=cwd, capture_output=True, text=True, **more)


def run(*command: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, **more
    )


def test_a_script_that_is_killed_leaves_all_its_steps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plain.py"])
    runpy.run_path(str(SCRIPTS / "plain.py"))
    alone = capsys.readouterr().out
    killed = watch("--", str(SCRIPTS / "plain.py"), "kill", cwd=tmp_path)
    assert killed.returncode == 128 + signal.SIGKILL
    assert killed.stdout.splitlines() == alone.splitlines()[:9]
    log = tmp_path / "watch.jsonl"
    assert log.read_bytes().endswith(b"\n")
    assert watched_run(log).ended == "the run was killed by SIGKILL"
    printed = [float(line) for line in killed.stdout.splitlines()]
    assert read_losses(log) == pytest.approx(printed, rel=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["watch.jsonl"]


def test_without_torch_the_exit_code_and_the_own_start_are_kept(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('own start')")
    (tmp_path / "script.py").write_text(
        "import sys; print([p for p in sys.path if p.endswith('start')]); sys.exit(7)"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = watch("--", "script.py", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (7, 2 * "own start\n" + "[]\n")  # of rksp too
    assert done.stderr == "rksp watch: nothing was watched: the command never imported torch\n"
    done = watch("--", "-I", "script.py", cwd=tmp_path, env=environment)
    assert done.returncode == 7 and "no Python ran with the hook" in done.stderr


def test_a_python_without_rksp_runs_the_command(tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "rksp").mkdir()
    (tmp_path / "rksp" / "__init__.py").write_text("raise ImportError('not here')")
    asks_first = "import importlib.util; importlib.util.find_spec('torch')\n"  # as transformers
    (tmp_path / "script.py").write_text(asks_first + "import torch; print(torch.__name__)")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from rksp.cli import main; main()"
    line = [sys.executable, "-I", "-c", program, "watch", "--", sys.executable, "script.py"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}  # of the lab's
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "torch\n")
    assert "cannot import rksp (ImportError: not here), so nothing is watched" in done.stderr


def test_signals_reach_the_command(tmp_path):
    script = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    (tmp_path / "script.py").write_text(script + "print('ready', flush=True)\ntime.sleep(60)\n")
    line = [sys.executable, "-m", "rksp", "watch", "--", sys.executable, "script.py"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 9


def test_what_cannot_be_started_or_written_is_refused(tmp_path):
    done = watch("--on-alarm", "shout", "--", "script.py", cwd=tmp_path)
    assert done.returncode == 2 and "shout" in done.stderr
    done = watch("--log", "no/watch.jsonl", "--", "script.py", cwd=tmp_path)
    assert done.returncode == 2 and "no/watch.jsonl" in done.stderr


REAL = {
    "nanogpt": ("nano.py", ()),
    "compiled": ("nano.py", ("compile",)),
    "transformers": ("trainer.py", ()),
    "trl": ("trainer.py", ("trl",)),
    "accelerate": ("with_accelerate.py", ()),
    "lightning": ("with_lightning.py", ()),
    "torchtune": ("with_torchtune.py", ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_script_is_watched_and_prints_the_same(name, tmp_path):
    for library in {"trl", "accelerate", "lightning", "torchtune"} & {name}:
        pytest.importorskip(library)
    script, words = REAL[name]
    line = (str(SCRIPTS / script), *words)
    told = ("--record", "runs.jsonl", "--status", "0.001", "--", *line)
    alone, watched = run(*line, cwd=tmp_path), watch(*told, cwd=tmp_path)
    assert alone.returncode == watched.returncode == 0, watched.stderr
    kept = [
        [row for row in out.splitlines() if "runtime" not in row]
        for out in (alone.stdout, watched.stdout)
    ]
    assert kept[0] == kept[1] and len(kept[0]) >= 12
    assert "detached" not in watched.stderr and "rksp watch: step " in watched.stderr
    report = watched_run(tmp_path / "watch.jsonl")
    printed = [float(row.split()[0]) for row in kept[1] if row[0].isdigit()]
    assert [loss for _, loss in report.trial.loss] == pytest.approx(printed, rel=1e-4)
    (row,) = read_record(tmp_path / "runs.jsonl")
    assert row["state"] == "finished" and row["optimizer"] == "adamw"
    has_config = script not in ("nano.py", "with_torchtune.py")
    assert (report.forecast is not None) == has_config
    if name == "transformers":
        known = (row["batch_size"], row["warmup_steps"], row["max_steps"], row["schedule"])
        assert known == (4, 3, 12, "cosine")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "flat", "flat-named", "titan"])
def test_two_ranks_are_watched_and_train_the_same(kind, tmp_path):
    script = "titan.py" if kind == "titan" else "ranks.py"
    line = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPTS / script), kind)
    assert run(*line, cwd=tmp_path).returncode == 0
    ranks = [tmp_path / f"losses.{rank}" for rank in range(2)]
    expected = [file.read_text() for file in ranks]
    done = watch("--", *line, cwd=tmp_path)
    assert done.returncode == 0 and "detached" not in done.stderr, done.stderr
    assert [file.read_text() for file in ranks] == expected
    each = [[float(row) for row in rows.splitlines()] for rows in expected]
    mean = [sum(pair) / 2 for pair in zip(*each, strict=True)]
    for own, log in zip(each, ("watch.jsonl", "watch.rank1.jsonl"), strict=True):
        is_apart = kind.startswith("flat")  # ranks of FSDP with flat parameters exchange nothing
        assert read_losses(tmp_path / log) == pytest.approx(own if is_apart else mean, rel=1e-6)
        report = watched_run(tmp_path / log)
        assert (report.ranks, report.model[:4]) == (2, "Llam" if kind == "titan" else "GPT2")


@pytest.mark.slow
def test_a_stop_below_a_launcher_has_the_exit_code_of_a_stop(tmp_path):
    (tmp_path / "script.sh").write_text(f"{sys.executable} diverges.py || exit 3\n")
    source = (SCRIPTS / "plain.py").read_text()
    (tmp_path / "diverges.py").write_text(source.replace("lr=1e-2", "lr=1e30"))
    program = [sys.executable, "-m", "rksp", "watch", "--on-alarm", "stop", "--", "sh", "script.sh"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == STOPPED
    assert "rksp watch: stopped at step 1" in done.stderr
