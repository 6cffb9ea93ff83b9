"""Ladders, their files, and plans that end the same however often they are interrupted."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from support.ladders import TINY, tiny_plan, tiny_spec, write_plan
from support.places import ROOT
from typer.testing import CliRunner

from lab import commands as cli
from lab.ladders import run as lab_run
from lab.ladders.ladder import LadderRun, run_ladder, run_once
from lab.ladders.pairs import LadderPairs
from lab.ladders.run import run_plan
from lab.ladders.store import read_ladder, write_ladder
from lab.tasks.tasks import make_task
from rksp.ground.errors import ArtifactError, Incomplete
from rksp.own_runs.outcome import Curves, Outcome

# Ladders


def test_a_ladder_is_its_runs_and_brackets_the_edge() -> None:
    spec = tiny_spec(
        family="zoo_no_norm", first_rate=1e-3, count=4, recipe={**tiny_spec().recipe.model_dump(),
        "max_steps": 12, "schedule": "constant"},
    )  # fmt: skip
    ladder = run_ladder(spec)
    assert list(ladder.rates) == sorted(ladder.rates)
    assert set(spec.rates) <= set(ladder.rates)
    judged = ladder.judge()
    low, high = judged.edge
    assert high is not None
    assert high / low <= 1.5
    batches = make_task(spec.task, **spec.task_options).batches(12, 2, seed=spec.seed)
    alone = run_once(spec, ladder.rates[1], batches)
    assert np.array_equal(alone.loss, ladder.curves[1].loss)
    starts = {float(curves.loss[0]) for curves in ladder.curves}
    assert len(starts) == 1  # one initialization, one first batch


def test_a_ladder_grows_upwards_while_nothing_fails() -> None:
    ladder = run_ladder(tiny_spec(first_rate=1e-7, count=2))
    assert len(ladder.rates) == 4
    assert max(ladder.rates) == pytest.approx(1e-4)
    assert not any(outcome.is_failure for outcome in ladder.judge().outcomes)


# Files


def _ladder(losses: list[list[float]]) -> LadderRun:
    spec = tiny_spec(count=len(losses))
    curves = tuple(
        Curves(
            loss=np.array(loss, dtype=np.float32),
            grad_norm=np.array(loss, dtype=np.float32) * 2,
            planned_steps=4,
        )
        for loss in losses
    )
    seconds = tuple(0.125 * (i + 1) for i in range(len(losses)))
    return LadderRun(spec=spec, rates=tuple(spec.rates), curves=curves, seconds=seconds)


def test_a_stored_ladder_comes_back_with_what_was_not_finite(tmp_path: Path) -> None:
    stored = _ladder(
        [[3.0, 2.5, 2.0, 1.23457], [3.0, math.inf, 1e30], [3.0, -math.inf], [3.0, math.nan]]
    )
    path = write_ladder(tmp_path, stored, {"torch": "x"})
    assert path.name == f"{stored.spec.id}.json"
    read = read_ladder(path)
    assert (read.spec, read.rates, read.seconds) == (stored.spec, stored.rates, stored.seconds)
    for ours, theirs in zip(read.curves, stored.curves, strict=True):
        assert ours.loss.dtype == ours.grad_norm.dtype == np.float32
        np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-5)
        np.testing.assert_allclose(ours.grad_norm, theirs.grad_norm, rtol=1e-5)
        assert ours.planned_steps == 4
    assert read.judge().outcomes[1:] == (Outcome.DIVERGED,) * 3
    assert json.loads(path.read_text())["provenance"] == {"torch": "x"}
    assert list(tmp_path.iterdir()) == [path]  # no partial file stays


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("rksp-ladder-1", "rksp-ladder-0"),
        lambda text: text.replace('"runs"', '"walks"'),
        lambda text: text.replace('"family"', '"famly"'),
        lambda text: "",
    ],
    ids=["cut", "schema", "no runs", "bad spec", "empty"],
)
def test_a_damaged_file_is_an_artifact_error(tmp_path: Path, damage) -> None:
    path = write_ladder(tmp_path, _ladder([[3.0, 2.0, 1.0, 1.0]] * 2), {})
    read_ladder(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ArtifactError, match=path.name):
        read_ladder(path)


# Running


def _rows(folder: Path) -> dict[str, object]:
    """Everything stored, less the seconds."""
    documents = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for document in documents.values():
        for run in document["runs"]:
            del run["seconds"]
    return documents


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny plan trained in this process, without any pool."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    for spec in tiny_plan().expand():
        lab_run._run(spec, folder)
    return folder


def test_a_plan_run_again_does_nothing(uninterrupted: Path, monkeypatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()}
    seen = []
    tally = run_plan(
        tiny_plan(),
        uninterrupted,
        workers=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (tally.planned, tally.already_stored, tally.newly_run) == (4, 4, 0)
    assert seen == [(4, 4)]
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()} == before


RUNNER = """
    import sys
    from pathlib import Path
    from lab.ladders.grid import read_ladder_plan
    from lab.ladders.run import run_plan
    if __name__ == "__main__":
        run_plan(read_ladder_plan(Path(sys.argv[1])), Path(sys.argv[2]), workers=2)
"""


@pytest.mark.slow
def test_kill_9_and_again_is_the_same_as_never(tmp_path: Path, uninterrupted: Path) -> None:
    """The parent and its workers are killed once a ladder is stored; then the plan runs again."""
    plan = write_plan(tmp_path, TINY)
    script = tmp_path / "runner.py"
    script.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{textwrap.dedent(RUNNER)}")
    folder = tmp_path / "stored"
    command = [sys.executable, "-P", str(script), str(plan), str(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 180
    while not list(folder.glob("*.json")) and time.monotonic() < deadline:
        assert process.poll() in (None, 0)
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    survived = len(list(folder.glob("*.json")))
    assert 1 <= survived <= 4
    (folder / ".4711-0123456789ab.partial").write_text('{"schema": "rksp-lad')
    tally = run_plan(tiny_plan(), folder, workers=1)
    assert tally.already_stored == survived
    assert tally.newly_run == 4 - survived
    assert _rows(folder) == _rows(uninterrupted)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the workers in /proc")
def test_workers_end_with_a_coordinator_that_was_killed(tmp_path: Path) -> None:
    """Alone, they would train their ladders to the end for nobody."""
    plan = write_plan(tmp_path, {**TINY, "steps": [50_000], "budgets": [1e15]})
    script = tmp_path / "runner.py"
    script.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{textwrap.dedent(RUNNER)}")
    command = [sys.executable, "-P", str(script), str(plan), str(tmp_path / "stored")]
    process = subprocess.Popen(command, start_new_session=True)

    def left() -> set[str]:
        """Processes of the session that are not zombies."""
        found = set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == process.pid and state != "Z":
                    found.add(stat.parent.name)
        return found

    def wait(until, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert until(), left()

    try:
        # The coordinator, multiprocessing's resource tracker, and two workers.
        wait(lambda: len(left()) >= 4, 180)
        time.sleep(3)  # past their imports
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait(lambda: not left(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_dead_worker_is_incomplete_and_names_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Doomed(lab_run.ProcessPoolExecutor):
        """Whatever is asked of its worker, the worker dies."""

        def submit(self, fn, *args):
            return super().submit(os._exit, 1)

    monkeypatch.setattr(lab_run, "ProcessPoolExecutor", Doomed)
    with pytest.raises(Incomplete, match="run the same command again") as caught:
        run_plan(tiny_plan(), tmp_path, workers=1)
    assert "0 of 4" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_ladder_that_its_model_does_not_allow_stops_no_other(tmp_path: Path) -> None:
    shape = tiny_spec().model_dump(mode="json", exclude={"seed", "interventions"})
    plan = LadderPairs.model_validate(
        {
            "name": "pairs",
            "base": {**shape, "family": "zoo_qk_norm"},
            "models": {"normalized": {}},
            "levers": {
                "qk_clip": {"interventions": ["qk_clip"]},
                "clip": {"recipe.max_grad_norm": 9},
            },
        }
    )
    with pytest.raises(Incomplete, match=r"1 of 3 ladders.*has QK-norm"):
        run_plan(plan, tmp_path, workers=1)
    assert {path.stem for path in tmp_path.glob("*.json")} == {
        plan.plain("normalized", 1).id,
        plan.changed("normalized", "clip", 1).id,
    }


def test_leftovers_of_a_crash_are_cleaned(tmp_path: Path) -> None:
    for spec in tiny_plan(ladders=1).expand():
        lab_run._run(spec, tmp_path)
    leftover, at_work = tmp_path / ".4711-ab.partial", tmp_path / ".4712-ab.partial"
    for partial in (leftover, at_work):
        partial.write_text("{")
    os.utime(leftover, (0, 0))
    run_plan(tiny_plan(ladders=1), tmp_path, workers=1)
    assert not leftover.exists()
    assert at_work.exists()  # of another run in the same folder
    assert len(list(tmp_path.glob("*.json"))) == 1


# The command line


def _invoke(*arguments: object):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_run_says_what_it_did(tmp_path: Path, uninterrupted: Path) -> None:
    result = _invoke("run", write_plan(tmp_path, TINY), "-o", uninterrupted)
    assert result.exit_code == 0
    assert "4 ladders planned, 4 already stored, 0 trained now" in result.stdout
    assert "4 of 4" in result.stderr


def test_an_interrupt_says_how_to_continue(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab_run, "run_plan", interrupted)
    result = _invoke("run", write_plan(tmp_path, TINY), "-o", uninterrupted)
    assert result.exit_code == 130
    assert result.stderr.strip().splitlines()[-1].startswith("Interrupted with 4 ladders stored")
    assert "run the same command to continue" in result.stderr
    assert result.stdout == ""
