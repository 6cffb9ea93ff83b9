"""Equal commands give equal bytes: over runs, threads, hash seeds, locales and working folders."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from faults.processes import exit_code, fork_workers, forked
from rksp.cli import main as rksp

RUNS, THREADS, HASH_SEEDS = 3, (1, 2), (0, 4711)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SHAPE = ("n_layer=2", "n_embd=32", "n_head=2", "vocab_size=300")
_SET = tuple(word for setting in _SHAPE for word in ("--set", setting))
_SCORE = ("score", "gpt2", *_SET, "--lr", "1e-3", "--snapshots", "256")
# Wide enough that libraries split its products over threads.
_WIDER = ("score", "gpt2", "--set", "n_layer=2", "--set", "n_embd=256", "--set", "n_head=4")
_WIDER += ("--set", "vocab_size=1000", "--lr", "1e-3")
_RUN_FILE = """\
base_model: gpt2
learning_rate: 1e-4
micro_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 10
sequence_len: 64
"""
_PLAN = """\
name: tiny
seed: 3
ladders: 2
families: {zoo_pre_ln: 1.0, zoo_no_norm: 1.0}
tasks: {recall: 1.0}
widths: [32]
depths: [2]
batch_sizes: [4]
sequence_lengths: [16]
steps: [4]
"""
# Times of JUnit, of a table, of the report inside an HTML page.
_TIME = re.compile(rb' time="[\d.]+"|(?<=\| )[\d.]+ s(?= \|)|"timings":\{[^}]*\}')
# What differs between equal runs and says so: times, and what names the machine's state.
_VARIES = ("seconds", "timings", "overhead", "threads", "created", "command", "progress")


def commands() -> tuple[tuple[str, Sequence[str]], ...]:
    """Return every command of the matrix, in an order in which each finds its files."""
    short = ("--steps", "4", "--seeds", "1", "--batch-size", "2", "--sequence-length", "16")
    json_ = ("--format", "json")
    every = ("html", "markdown", "sarif", "junit", "github", "gitlab", "text")
    return (
        ("score", (*_SCORE, "-o", "a.json", "-o", "a.html", "-o", "a.sarif", "-o", "a.xml")),
        ("score as text", (*_SCORE, "--lr", "10", "-o", "b.json", "-o", "b.md")),
        ("score of a configuration", ("score", "gpt2", "--lr", "1e-3", "--evidence", "config")),
        ("wider score", (*_WIDER, *json_)),
        ("streamed score", (*_SCORE, "--stream", "always", *json_)),
        ("checks", ("checks",)),
        ("explain", ("explain", "RKSP201")),
        ("explain-config", ("explain-config", "run.yaml", "--devices", "8", *json_)),
        ("transfer", ("transfer", "gpt2", "gpt2", "--lr", "1e-3", *json_)),
        ("diff", ("diff", "a.json", "b.json", *json_)),
        *((f"report as {form}", ("report", "b.json", "--format", form)) for form in every),
        ("schema", ("schema", "grid")),
        (
            "grid",
            (
                *("grid", "gpt2", *_SHAPE, "lr=1e-4,1e-3,1e-2", "seed=0,1", "--snapshots", "256"),
                *("-o", "g.db", "--workers", "1", *json_, "--export", "g.csv"),
            ),
        ),
        ("grid as html", ("grid", "g.db", "--format", "html")),
        (
            "confirm",
            (
                *("confirm", "gpt2", *_SET, "--lr", "1e-3", *short, "--evidence", "forward"),
                *("-o", "c.json", "--keep", "kept", *json_),
            ),
        ),
        ("reproduce", ("reproduce", "kss", "--stored")),
        ("lab run", ("lab", "run", "plan.yaml", "-o", "ladders", "--workers", "1")),
        ("lab pack", ("lab", "pack", "ladders", "-o", "all.parquet")),
        ("lab card", ("lab", "card", "all.parquet")),
        ("lab measure", ("lab", "measure", "ladders", "-o", "measured", "--workers", "1")),
    )


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
    found = [Cell(run=run, threads=threads, hash_seed=seed) for run, threads, seed in whole]
    return [
        *found,
        Cell(run=0, threads=1, hash_seed=0, locale="C"),
        Cell(run=0, threads=1, hash_seed=0, folder="wörk folder"),
    ]


def outcomes(chosen: Sequence[Cell], results: Path) -> dict[Cell, dict[str, bytes]]:
    """Run all commands in every cell; return each answer, without its timings.

    Cells of one hash seed and locale are forked from one interpreter, which has imported all.

    Args:
        chosen: Cells of the matrix.
        results: Folder of the answers; a cell that is there is not run again.
    """
    missing = [cell for cell in chosen if not (results / cell.name).exists()]
    for _, group in itertools.groupby(sorted(missing, key=_interpreter), key=_interpreter):
        _run_cells(list(group), results)
    return {
        cell: {unquote(p.name): p.read_bytes() for p in sorted((results / cell.name).iterdir())}
        for cell in chosen
    }


def _interpreter(cell: Cell) -> tuple[int, str]:
    return cell.hash_seed, cell.locale


def _run_cells(chosen: Sequence[Cell], results: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(chosen[0].hash_seed),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "LC_ALL": chosen[0].locale,
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
    }
    for name in _THREADS:  # libraries size their pools when they are loaded
        environment[name] = str(max(THREADS))
    results.mkdir(parents=True, exist_ok=True)
    told = json.dumps([dataclasses.asdict(cell) for cell in chosen])
    command = (sys.executable, "-W", "ignore", "-P", "-m", "faults.matrix", str(results), told)
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])


def fork_cells(results: Path, chosen: Sequence[Cell]) -> None:
    """Import once what the commands need, with one thread, then run each cell in a fork."""
    import torch

    torch.set_num_threads(1)  # a fork after a parallel region would hang in its first one
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _answers("score", (*_SCORE, "--threads", "1"))
    for cell in chosen:
        kept = (results / cell.name).resolve()
        with tempfile.TemporaryDirectory() as place:
            folder, answers = Path(place) / cell.folder, Path(place) / "answers"
            folder.mkdir()
            answers.mkdir()
            trace = Path(place) / "trace"
            os.environ["RKSP_FAULTS_TRACE"] = str(trace)
            code = exit_code(forked(partial(_in_cell, cell, folder, answers)), 1800)
            if code:
                said = trace.read_text() if trace.exists() else ""
                raise RuntimeError(f"{cell.name} left with {code}: {said[-1000:]}")
            shutil.copytree(answers, kept.with_suffix(".partial"))
        kept.with_suffix(".partial").rename(kept)
        print(cell.name, file=sys.stderr, flush=True)


def _in_cell(cell: Cell, folder: Path, answers: Path) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(_THREADS, str(cell.threads)))
    threadpool_limits(cell.threads)
    torch.set_num_threads(cell.threads)
    os.chdir(folder)
    run_all(answers)


def run_all(answers: Path) -> None:
    """Run all commands in this process and folder; write each answer without its timings."""
    fork_workers()  # as in the kills: a worker without imports of its own
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda name=None: fork
    Path("run.yaml").write_text(_RUN_FILE, encoding="utf-8")
    Path("plan.yaml").write_text(_PLAN, encoding="utf-8")
    for name, words in commands():
        before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
        code, out = _answers(name, words)
        new = sorted(
            path
            for path in Path().rglob("*")
            if path.is_file() and before.get(path) != path.stat().st_mtime_ns
        )
        parts = {"exit": str(code).encode(), "stdout": out.encode()}
        parts |= {str(path): path.read_bytes() for path in new if _counts(path)}
        for part, content in parts.items():
            (answers / quote(f"{name}: {part}", safe="")).write_bytes(steady(part, content))


def _answers(name: str, words: Sequence[str]) -> tuple[object, str]:
    """Run a command; return its exit code and its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            rksp(list(words))
        except SystemExit as left:
            code = left.code
    if code not in (0, 1):
        raise RuntimeError(f"{name} left with {code}: {err.getvalue()[-500:]}")
    return code, out.getvalue()


def _counts(path: Path) -> bool:
    """Say whether a file is an answer: a store of SQLite has leases and pages of its own."""
    return not path.name.startswith((".", "g.db")) and path.suffix not in (".lock", ".db")


def steady(name: str, content: bytes) -> bytes:
    """Return an answer without its timings."""
    if name.endswith(".parquet"):
        return _without_times_parquet(content)
    try:
        document = json.loads(content)
    except ValueError:
        return b"\n".join(
            _TIME.sub(b"", line)
            for line in content.splitlines()
            if not any(
                word in line
                for word in (b"seconds", b"timings/", b"overhead", b" s/step", b"took ")
            )
        )
    return json.dumps(_steady(document), sort_keys=True).encode()


def _steady(value: object) -> object:
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if not any(word in k for word in _VARIES)}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def _without_times_parquet(content: bytes) -> bytes:
    import pyarrow.parquet as parquet

    rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    return repr([{k: v for k, v in row.items() if k != "seconds"} for row in rows]).encode()


def table(found: Mapping[Cell, Mapping[str, bytes]]) -> str:
    """Return which answers of each cell differ from those of the first, and by how much."""
    (first, expected), *rest = found.items()
    lines = [f"{len(expected)} answers of {len(commands())} commands; as in {first.name}?"]
    wrong = 0
    for cell, answers in rest:
        names = sorted(expected.keys() | answers.keys())
        different = [n for n in names if expected.get(n) != answers.get(n)]
        wrong += len(different)
        lines.append(f"  {cell.name}: {len(different) or 'none'} differ")
        lines += [f"    {n}: {difference(expected.get(n), answers.get(n))}" for n in different]
    lines.append(f"{wrong} of {len(rest) * len(expected)} answers differ.")
    return "\n".join(lines)


def difference(one: bytes | None, other: bytes | None) -> str:
    """Say in one line how two answers differ: JSON by its largest relative difference."""
    if one is None or other is None:
        return "in one of the two only"
    try:
        gaps = sorted(_gaps(json.loads(one), json.loads(other), ""), reverse=True)
        return f"{len(gaps)} values, the worst by {gaps[0][0]:.1e} of itself at {gaps[0][1]}"
    except ValueError:
        pairs = itertools.zip_longest(one.split(b"\n"), other.split(b"\n"))
        return next(f"{a!s:.150} is {b!s:.150}" for a, b in pairs if a != b)


def _gaps(one: object, other: object, place: str) -> Iterator[tuple[float, str]]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from _gaps(one[name], other[name], f"{place}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _gaps(a, b, f"{place}[{number}]")
    elif one != other:
        are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
        gap = abs(one - other) / max(abs(one), abs(other)) if are_numbers else float("inf")
        yield gap, place


if __name__ == "__main__":
    fork_cells(Path(sys.argv[1]), [Cell(**cell) for cell in json.loads(sys.argv[2])])
