"""Jobs that can be killed and taken up again: a grid, a lab, a confirmation, a streamed score."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from faults import cheap
from faults.originals import TINY
from faults.processes import fork_workers
from rksp.cli import main as rksp
from rksp.grid.cell import Options
from rksp.grid.drive import drive
from rksp.grid.engines.base import Engine
from rksp.grid.engines.local import LocalEngine
from rksp.grid.engines.ray import RayEngine
from rksp.grid.evaluate import load_evaluator
from rksp.grid.plan import make_plan
from rksp.grid.store import GridStore
from rksp.lab import run as lab_run
from rksp.lab.ladder import run_ladder
from rksp.lab.plan import Plan

CHEAP, MEASURED = "faults.cheap:evaluate", "faults.cheap:measure"
_SHAPE = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridScene:
    """A grid in worker processes of this machine.

    Attributes:
        name: In the table.
        evaluator: What judges a cell.
        cells: By axis.
        workers: Processes.
        is_forked: Fork the workers instead of starting them, which costs no imports.
        services: Names of processes below the coordinator that do no work of rksp.
    """

    name: str = "cheap grid"
    evaluator: str = CHEAP
    cells: dict[str, list] = field(
        default_factory=lambda: {
            "seed": [0, 1, 2, 3],
            "lr": [10 ** (-5 + i / 4) for i in range(12)],
        }
    )
    workers: int = 2
    size: int = 48
    is_forked: bool = True
    services: tuple[str, ...] = ()

    def warm(self) -> None:
        """Import here what forked workers need."""
        if self.is_forked and self.evaluator != CHEAP:
            with tempfile.TemporaryDirectory() as folder:
                cheap.log_to(Path(folder) / "judged")
                few = dataclasses.replace(self, cells={"seed": [0], "lr": [1e-3]})
                with few.filled(Path(folder)) as store:
                    list(load_evaluator(self.evaluator)(store.claim(60.0)))

    def filled(self, folder: Path) -> GridStore:
        """Return the store with all cells."""
        plan = make_plan(self.cells, target="gpt2", overrides=_SHAPE)
        store = GridStore(folder / "grid.db")
        store.fill(plan.cells, Options(states=256))
        return store

    def engine(self) -> Engine:
        """Return where the cells are judged."""
        return LocalEngine(self.workers, evaluator=self.evaluator)

    def work(self, folder: Path) -> None:
        """Work the grid off, or what is left of it."""
        cheap.log_to(folder / "judged")
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        if self.is_forked:
            fork_workers()
        with self.filled(folder) as store:
            (folder / "judged").touch()
            drive(store, self.engine())

    def done(self, folder: Path) -> set[str]:
        """Return the names of the results that are stored."""
        if not (folder / "judged").exists():  # before the first result it may have no tables
            return set()
        with GridStore(folder / "grid.db", read_only=True) as store:
            return {row.key for row in store.rows() if row.state == "done"}

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        with GridStore(folder / "grid.db", read_only=True) as store:
            return [(r.key, r.state, json.dumps(r.result, sort_keys=True)) for r in store.rows()]

    def doubled(self, folder: Path, kept: set[str], before: int) -> int:
        """Return how many stored results were computed again since `before` were computed."""
        return len(kept & set(cheap.judged(folder / "judged")[before:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RayScene(GridScene):
    """A grid whose coordinator starts a Ray of its own on this machine."""

    name: str = "Ray grid"
    is_forked: bool = False
    services: tuple[str, ...] = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")

    def engine(self) -> Engine:
        """Return where the cells are judged."""
        return RayEngine(self.workers, evaluator=self.evaluator)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabScene:
    """A plan of tiny ladders; workers are forked and not spawned, so that a kill costs little."""

    name: str = "lab run"
    ladders: int = 12
    workers: int = 2

    @property
    def size(self) -> int:
        """Return how many results there are."""
        return self.ladders

    def warm(self) -> None:
        """Import here what forked workers need."""
        run_ladder(self.plan().expand()[0])

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan.model_validate(
            {
                "name": "tiny",
                "seed": 3,
                "ladders": self.ladders,
                "families": {"zoo_pre_ln": 1.0, "zoo_no_norm": 1.0},
                "tasks": {"recall": 1.0},
                "widths": [32],
                "depths": [2],
                "batch_sizes": [4],
                "sequence_lengths": [16],
                "steps": [4],
            }
        )

    def work(self, folder: Path) -> None:
        """Train what the folder does not hold."""
        fork = multiprocessing.get_context("fork")
        lab_run.multiprocessing.get_context = lambda name: fork
        lab_run.run_plan(self.plan(), folder / "stored", workers=self.workers)

    def done(self, folder: Path) -> set[str]:
        """Return the names of the results that are stored."""
        return {f"{p.name} {p.stat().st_mtime_ns}" for p in (folder / "stored").glob("*.json")}

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        found = {}
        for path in sorted((folder / "stored").glob("*.json")):
            document = json.loads(path.read_text())
            for run in document["runs"]:
                del run["seconds"]
            found[path.name] = document
        return found

    def doubled(self, folder: Path, kept: set[str], before: int) -> int:
        """Return how many stored results were written again."""
        return len(kept - self.done(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmScene:
    """A confirmation of two arms at three seeds, with its folder."""

    name: str = "confirm"
    size: int = 6

    def warm(self) -> None:
        """Import here what forked processes need."""
        _work_here(self)

    def work(self, folder: Path) -> None:
        """Train what the folder does not hold, and write the report."""
        short = ("--steps", "8", "--seeds", "3", "--batch-size", "2", "--sequence-length", "16")
        told = ("--lr", "1e-3", "--evidence", "forward", "--monitor", "loss", "--exit-zero")
        keep = ("--keep", str(folder / "kept"), "-o", str(folder / "report.json"))
        rksp(["confirm", "gpt2", *TINY, *short, *told, *keep])

    def done(self, folder: Path) -> set[str]:
        """Return the names of the results that are stored."""
        paths = (folder / "kept").glob("*seed*.json")
        return {f"{path.name} {path.stat().st_mtime_ns}" for path in paths}

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        logs = {p.name: p.read_bytes() for p in sorted((folder / "kept").glob("*.jsonl"))}
        return untimed(json.loads((folder / "report.json").read_text())), logs

    def doubled(self, folder: Path, kept: set[str], before: int) -> int:
        """Return how many stored results were written again."""
        return len(kept - self.done(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScene:
    """A streamed score with its response, which writes a report over an older one."""

    name: str = "streamed score"
    size: int = 1

    def warm(self) -> None:
        """Import here what forked processes need."""
        _work_here(self)

    def work(self, folder: Path) -> None:
        """Score, and replace the report."""
        model = ("score", "gpt2", "--set", "n_layer=6", "--set", "n_embd=64", "--set", "n_head=2")
        told = ("--set", "vocab_size=300", "--lr", "1e-3", "--stream", "always", "--exit-zero")
        rksp([*model, *told, "--snapshots", "256", "-o", str(folder / "report.json")])

    def done(self, folder: Path) -> set[str]:
        """Return the names of the results that are stored."""
        return {"report.json"} if (folder / "report.json").exists() else set()

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        return untimed(json.loads((folder / "report.json").read_text()))

    def doubled(self, folder: Path, kept: set[str], before: int) -> int:
        """Return nothing: a score has one result."""
        return 0


def _work_here(scene: ConfirmScene | StreamScene) -> None:
    """Do the work of a scene in this process, in silence, for its imports."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        scene.work(Path(folder))


Scene = GridScene | LabScene | ConfirmScene | StreamScene


def real_grid() -> GridScene:
    """Return a grid whose cells are measured on a model."""
    return GridScene(
        name="model grid",
        evaluator=MEASURED,
        cells={"seed": [0, 1], "lr": [10 ** (-5 + i / 4) for i in range(12)]},
        size=24,
    )


def started_grid() -> GridScene:
    """Return such a grid whose workers are started, as a user's are."""
    return dataclasses.replace(real_grid(), name="started grid", is_forked=False, workers=1)


def shares() -> tuple[tuple[Scene, float], ...]:
    """Return the jobs, and which share of the kills meets each."""
    return (
        (GridScene(), 0.5),
        (real_grid(), 0.15),
        (started_grid(), 0.01),
        (StreamScene(), 0.1),
        (ConfirmScene(), 0.115),
        (LabScene(), 0.1),
        (RayScene(), 0.025),
    )


def untimed(document: object) -> object:
    """Return a report without what differs between equal runs: times, and names of the folder."""
    if isinstance(document, dict):
        return {
            name: untimed(value)
            for name, value in document.items()
            if name not in ("timings", "overhead", "command") and "seconds" not in name
        }
    if isinstance(document, list):
        return [untimed(value) for value in document]
    return document
