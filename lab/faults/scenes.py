"""Jobs that can be killed and taken up again: a grid, a lab, a confirmation, a streamed score."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.faults import cheap
from lab.faults.commands import PLAN, RATE, TINY, gpt2, rksp, short
from lab.faults.equal import untimed
from lab.faults.processes import fork_workers
from lab.ladders import run as lab_run
from lab.ladders.ladder import run_ladder
from lab.ladders.plan import Plan
from rksp.grid.engines.base import Engine, load_evaluator
from rksp.grid.engines.local import LocalEngine
from rksp.grid.engines.remote import RayEngine
from rksp.grid.group import Options
from rksp.grid.plan import read_plan
from rksp.grid.run import drive
from rksp.grid.store import GridStore

CHEAP, MEASURED = "lab.faults.cheap:evaluate", "lab.faults.cheap:measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene(ABC):
    """A job whose results are files that are never written twice.

    Attributes:
        name: In the table.
        size: How many results there are.
        stored: Pattern of their files.
        services: Names of processes below the coordinator that do no work of rksp.
    """

    name: str
    size: int
    stored: str = ""
    services: tuple[str, ...] = ()

    def warm(self) -> None:
        """Do the work once in this process, in silence, for its imports."""
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.suppress(SystemExit),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            self.work(Path(folder))

    @abstractmethod
    def work(self, folder: Path) -> None:
        """Do the work, or what is left of it."""

    def done(self, folder: Path) -> set[str]:
        """Return the names of the results that are stored, each with the time of its file."""
        return {f"{path.name} {path.stat().st_mtime_ns}" for path in folder.glob(self.stored)}

    @abstractmethod
    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""

    def doubled(self, folder: Path, kept: set[str], before: int) -> int:
        """Return how many stored results were computed again since `before` were computed."""
        return len(kept - self.done(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class GridScene(Scene):
    """A grid in worker processes of this machine.

    Attributes:
        evaluator: What judges a cell.
        seeds: Of the cells, each at twelve rates.
        workers: Processes.
        is_forked: Fork the workers instead of starting them, which costs no imports.
    """

    name: str = "cheap grid"
    size: int = 48
    evaluator: str = CHEAP
    seeds: Sequence[int] = (0, 1, 2, 3)
    workers: int = 2
    is_forked: bool = True

    def warm(self) -> None:
        """Import here what forked workers need."""
        if self.is_forked and self.evaluator != CHEAP:
            with tempfile.TemporaryDirectory() as folder:
                cheap.log_to(Path(folder) / "judged")
                with self.filled(Path(folder)) as store:
                    list(load_evaluator(self.evaluator)(store.claim(60.0)))

    def filled(self, folder: Path) -> GridStore:
        """Return the store with all cells."""
        axes = {"seed": list(self.seeds), "lr": [10 ** (-5 + i / 4) for i in range(12)]}
        shape = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 300}
        store = GridStore(folder / "grid.db")
        store.fill(read_plan(axes, target="gpt2", overrides=shape).cells, Options(states=256))
        return store

    def engine(self) -> Engine:
        """Return where the cells are judged."""
        return LocalEngine(self.workers, evaluator=self.evaluator)

    def work(self, folder: Path) -> None:
        """Work the grid off, or what is left of it."""
        cheap.log_to(folder / "judged")
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
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
            return [(r.key, r.state, str(r.result)) for r in store.rows()]

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
class LabScene(Scene):
    """A plan of tiny ladders; workers are forked and not spawned, so that a kill costs little."""

    name: str = "lab run"
    size: int = 12
    stored: str = "stored/*.json"
    plan: Mapping[str, object] = field(default_factory=lambda: PLAN | {"ladders": 12})
    workers: int = 2

    def warm(self) -> None:
        """Import here what forked workers need."""
        run_ladder(Plan.model_validate(self.plan).expand()[0])

    def work(self, folder: Path) -> None:
        """Train what the folder does not hold."""
        fork = multiprocessing.get_context("fork")
        lab_run.multiprocessing.get_context = lambda name: fork
        lab_run.run_plan(Plan.model_validate(self.plan), folder / "stored", workers=self.workers)

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        paths = sorted(folder.glob(self.stored))
        return {path.name: untimed(json.loads(path.read_text())) for path in paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmScene(Scene):
    """A confirmation of two arms at three seeds, with its folder."""

    name: str = "confirm"
    size: int = 6
    stored: str = "kept/*seed*.json"

    def work(self, folder: Path) -> None:
        """Train what the folder does not hold, and write the report."""
        told = (*RATE, "--evidence", "forward", "--monitor", "loss", "--exit-zero")
        keep = ("--keep", str(folder / "kept"), "-o", str(folder / "report.json"))
        rksp(["confirm", *TINY, *short(steps=8, seeds=3), *told, *keep])

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        logs = {p.name: p.read_bytes() for p in sorted((folder / "kept").glob("*.jsonl"))}
        return untimed(json.loads((folder / "report.json").read_text())), logs


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScene(Scene):
    """A streamed score with its gradient, which writes a report over an older one."""

    name: str = "streamed score"
    size: int = 1

    def work(self, folder: Path) -> None:
        """Score, and replace the report."""
        model = gpt2("n_layer=6", "n_embd=64", "n_head=2", "vocab_size=300")
        told = (*RATE, "--stream", "always", "--exit-zero", "--snapshots", "256")
        rksp(["score", *model, *told, "-o", str(folder / "report.json")])

    def done(self, folder: Path) -> set[str]:
        """Return the name of the report, which is written anew each time."""
        return {path.name for path in folder.glob("report.json")}

    def rows(self, folder: Path) -> object:
        """Return what must be the same however often the job was killed."""
        return untimed(json.loads((folder / "report.json").read_text()))


MODEL_GRID = GridScene(name="model grid", evaluator=MEASURED, seeds=(0, 1), size=24)
# Its workers are started, as a user's are.
STARTED_GRID = dataclasses.replace(MODEL_GRID, name="started grid", is_forked=False, workers=1)
# The jobs, and which share of the kills meets each.
SHARES: tuple[tuple[Scene, float], ...] = (
    (GridScene(), 0.5),
    (MODEL_GRID, 0.15),
    (STARTED_GRID, 0.01),
    (StreamScene(), 0.1),
    (ConfirmScene(), 0.115),
    (LabScene(), 0.1),
    (RayScene(), 0.025),
)
