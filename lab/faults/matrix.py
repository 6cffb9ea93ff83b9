"""Equal commands give equal bytes: over runs, threads, hash seeds, locales and working folders."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from lab.faults.commands import CONFIG, JSON, PLAN, RATE, gpt2, said, short
from lab.faults.equal import difference, steady
from lab.faults.processes import fork_workers

RUNS, THREADS, HASH_SEEDS = 3, (1, 2), (0, 4711)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SHAPE = ("n_layer=2", "n_embd=32", "n_head=2", "vocab_size=300")
_FEW = ("--snapshots", "256")
_SCORE = ("score", *gpt2(*_SHAPE), *RATE, *_FEW)
# Wide enough that libraries split its products over threads.
_WIDER = gpt2("n_layer=2", "n_embd=256", "n_head=4", "vocab_size=1000")
_RUN_FILE = """\
base_model: gpt2
learning_rate: 1e-4
micro_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 10
sequence_len: 64
"""
_FORMATS = ("html", "markdown", "sarif", "junit", "github", "gitlab", "text")
_GRID = ("lr=1e-4,1e-3,1e-2", "seed=0,1", *_FEW, "-o", "g.db", "--workers", "1")
# Every command of the matrix, in an order in which each finds its files.
COMMANDS: Mapping[str, Sequence[str]] = {
    "score": (*_SCORE, "-o", "a.json", "-o", "a.html", "-o", "a.sarif", "-o", "a.xml"),
    "score as text": (*_SCORE, "--lr", "10", "-o", "b.json", "-o", "b.md"),
    "score of a configuration": ("score", "gpt2", *RATE, *CONFIG),
    "wider score": ("score", *_WIDER, *RATE, *JSON),
    "streamed score": (*_SCORE, "--stream", "always", *JSON),
    "checks": ("explain",),
    "a word": ("explain", "RKSP201"),
    "a run file": ("explain", "run.yaml", "--devices", "8", *JSON),
    "transfer": ("transfer", "gpt2", "gpt2", *RATE, *JSON),
    "diff": ("diff", "a.json", "b.json", *JSON),
    **{f"report as {form}": ("report", "b.json", "--format", form) for form in _FORMATS},
    "schema": ("schema", "grid"),
    "grid": ("grid", "gpt2", *_SHAPE, *_GRID, *JSON, "--export", "g.csv"),
    "grid as html": ("grid", "g.db", "--format", "html"),
    "confirm": ("confirm", *gpt2(*_SHAPE), *RATE, *short(), "--evidence", "forward", "-o", "c.json",
                "--keep", "kept", *JSON),
    "lab run": ("lab", "run", "plan.yaml", "-o", "ladders", "--workers", "1"),
    "lab pack": ("lab", "pack", "ladders", "-o", "all.parquet"),
    "lab card": ("lab", "card", "all.parquet"),
    "lab measure": ("lab", "measure", "ladders", "-o", "measured", "--workers", "1"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One process that runs all commands.

    Attributes:
        run: Number of the repetition.
        threads: Threads of torch, and of workers.
        hash_seed: PYTHONHASHSEED.
        locale: LC_ALL.
        folder: Name of the working folder.
    """

    run: int
    threads: int
    hash_seed: int
    locale: str = "C.UTF-8"
    folder: str = "work"

    @property
    def name(self) -> str:
        """Return the cell in a line."""
        more = f" {self.locale}" if self.locale != "C.UTF-8" else ""
        more += f" in {self.folder!r}" if self.folder != "work" else ""
        return f"run {self.run}, {self.threads} threads, hash seed {self.hash_seed}{more}"


def cells() -> list[Cell]:
    """Return the full matrix, and two cells with another locale and another folder."""
    whole = itertools.product(range(RUNS), THREADS, HASH_SEEDS)
    return [
        *(Cell(run=run, threads=threads, hash_seed=seed) for run, threads, seed in whole),
        Cell(run=0, threads=1, hash_seed=0, locale="C"),
        Cell(run=0, threads=1, hash_seed=0, folder="wörk folder"),
    ]


def outcomes(chosen: Sequence[Cell], results: Path) -> dict[Cell, dict[str, bytes]]:
    """Run all commands in every cell; return each answer, without its timings.

    Args:
        chosen: Cells of the matrix.
        results: Folder of the answers; a cell that is there is not run again.
    """
    for cell in chosen:
        if not (results / cell.name).exists():
            _run(cell, results / cell.name)
    return {
        cell: {unquote(p.name): p.read_bytes() for p in sorted((results / cell.name).iterdir())}
        for cell in chosen
    }


def _run(cell: Cell, kept: Path) -> None:
    """Run all commands in a process of their own, whose libraries load with the cell's threads."""
    environment = {
        **os.environ,
        **dict.fromkeys(_THREADS, str(cell.threads)),
        "PYTHONHASHSEED": str(cell.hash_seed),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "LC_ALL": cell.locale,
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
    }
    with tempfile.TemporaryDirectory() as place:
        folder, answers = Path(place) / cell.folder, Path(place) / "answers"
        folder.mkdir()
        answers.mkdir()
        command = (sys.executable, "-W", "ignore", "-P", "-m", "lab.faults.matrix", str(answers))
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{cell.name} left with {done.returncode}: {done.stderr[-1000:]}")
        partial = kept.with_name(f"{kept.name}.partial")
        shutil.copytree(answers, partial, dirs_exist_ok=True)
        partial.rename(kept)
    print(cell.name, file=sys.stderr, flush=True)


def run_all(answers: Path) -> None:
    """Run all commands in this process and folder; write each answer without its timings."""
    fork_workers()  # as in the kills: a worker without imports of its own
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda name=None: fork
    Path("run.yaml").write_text(_RUN_FILE, encoding="utf-8")
    Path("plan.yaml").write_text(json.dumps(PLAN), encoding="utf-8")
    for name, words in COMMANDS.items():
        before = _files()
        code, out = said(words)
        new = [path for path, changed in _files().items() if before.get(path) != changed]
        parts = {"exit": str(code).encode(), "stdout": out.encode()}
        parts |= {str(path): path.read_bytes() for path in new if _counts(path)}
        for part, content in parts.items():
            (answers / quote(f"{name}: {part}", safe="")).write_bytes(steady(part, content))


def _files() -> dict[Path, int]:
    """Return the files below the working folder, each with the time of its last change."""
    return {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}


def _counts(path: Path) -> bool:
    """Say whether a file is an answer: a store of SQLite has leases and pages of its own."""
    return not path.name.startswith((".", "g.db")) and path.suffix not in (".lock", ".db")


def table(found: Mapping[Cell, Mapping[str, bytes]]) -> str:
    """Return which answers of each cell differ from those of the first, and by how much."""
    (first, expected), *rest = found.items()
    lines = [f"{len(expected)} answers of {len(COMMANDS)} commands; as in {first.name}?"]
    wrong = 0
    for cell, answers in rest:
        names = sorted(expected.keys() | answers.keys())
        different = [n for n in names if expected.get(n) != answers.get(n)]
        wrong += len(different)
        lines.append(f"  {cell.name}: {len(different) or 'none'} differ")
        lines += [f"    {n}: {difference(expected.get(n), answers.get(n))}" for n in different]
    lines.append(f"{wrong} of {len(rest) * len(expected)} answers differ.")
    return "\n".join(lines)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
