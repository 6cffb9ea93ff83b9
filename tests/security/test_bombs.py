"""Small files that ask for a machine: refused before the work, within 1 GB and 20 CPU seconds.

Each is what a review, or we, found to fill the memory or to take minutes (`D1` to `D9` are the
review's names). Each runs in a process of its own, whose limits make a failure cheap.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.limited import limited
from support.places import ROOT

resource = pytest.importorskip("resource")  # Windows has no limits


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with limited(tmp_path_factory.mktemp("warm")) as found:
        yield found


def dotted(path: Path) -> None:
    """50,000 parts in one key, whose prefixes tomllib keeps."""
    path.write_text("a" + ".a" * 50_000 + " = 1\n")


def quoted(path: Path) -> None:
    path.write_text("'a'" + ' . "\\"b"' * 15_000 + " = 1\n")


def project(path: Path) -> None:
    path.write_text("[tool.rksp]\n[tool." + "a." * 20_000 + "b]\nx = 1\n")


def hexadecimal(path: Path) -> None:
    """A number that Python reads and does not write."""
    path.write_text(f"[score]\nseed = 0x{'f' * 900_000}\n")


def _parquet(path: Path, make: Callable) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"lr": make(pa)}), path, compression="zstd")


def _repeated(pa):
    return pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), ["x" * 10**6])


def one_text(path: Path) -> None:
    """One text of a megabyte in 50,000 rows: 607 bytes."""
    _parquet(path, _repeated)


def one_list(path: Path) -> None:
    _parquet(path, lambda pa: pa.ListArray.from_arrays([0, 20_000_000], pa.repeat(1.0, 20_000_000)))


def one_text_in_a_list(path: Path) -> None:
    _parquet(path, lambda pa: pa.ListArray.from_arrays([0, 50_000], _repeated(pa)))


def one_text_in_a_field(path: Path) -> None:
    _parquet(path, lambda pa: pa.StructArray.from_arrays([_repeated(pa)], ["a"]))


def wide_values(path: Path) -> None:
    _parquet(path, lambda pa: pa.array([b"y" * 10**6] * 300, pa.binary(10**6)))


def wide_rows(path: Path) -> None:
    """A header of 400,000 names, each of which is in each of 10,000 rows."""
    path.write_text("a," * 400_000 + "b\n" + "1\n" * 10_000)


def many_rows(path: Path) -> None:
    path.write_text("a\n" + "1\n" * 5_000_000)


def calls(path: Path) -> None:
    """Each of 40 functions holds the one before three times."""
    lines = ["def f0():\n    return C(a=1, b=2, c=3)\n"]
    lines += [
        f"def f{n}():\n    return C(a=f{n - 1}(), b=f{n - 1}(), c=f{n - 1}())\n"
        for n in range(1, 41)
    ]
    path.write_text("".join(lines))


def names(path: Path) -> None:
    """The same by names within one function, which share their parts in memory."""
    lines = ["def f():", "    a0 = C(a=1, b=2, c=3)"]
    lines += [f"    a{n} = C(a=a{n - 1}, b=a{n - 1}, c=a{n - 1})" for n in range(1, 41)]
    path.write_text("\n".join([*lines, "    return a40\n"]))


def long_names(path: Path) -> None:
    """A class with a name of 100 kB, which stands before the key of each setting."""
    path.write_text(f"class {'A' * 100_000}:\n" + "".join(f" a{n}=1\n" for n in range(18_000)))


def deep_sums(path: Path) -> None:
    """Sums of 400 unknown terms, each part of which is written out."""
    path.write_text(f"a = x{' + 1' * 400}\n" * 150)


def assignments(path: Path) -> None:
    path.write_text("".join(f"a{n}=1\n" for n in range(60_000)))


def fewer_assignments(path: Path) -> None:
    path.write_text("".join(f"a{n}=1\n" for n in range(25_000)))


def optimizers(path: Path) -> None:
    path.write_text("AdamW(lr=1e-3)\n" * 30_000)


def fewer_optimizers(path: Path) -> None:
    path.write_text("AdamW(lr=1e-3)\n" * 16_000)


def additions(path: Path) -> None:
    path.write_text("A+=(x)\n" * 60_000)


def fewer_additions(path: Path) -> None:
    path.write_text("A+=(x)\n" * 36_000)


def expansions(path: Path) -> None:
    """A word that names a variable of 100 kB 70,000 times."""
    path.write_text(f"A={'x' * 100_000}\npython train.py --name {'$A' * 70_000}\n")


def long_keys(path: Path) -> None:
    """A key of a megabyte, which stands before each key below it."""
    path.write_text(json.dumps({"k" * 10**6: {f"a{n}": 1 for n in range(80_000)}}))


def long_keys_of_yaml(path: Path) -> None:
    below = "".join(f"  a{n}: 1\n" for n in range(9_000))
    path.write_text(f"? {'k' * 10**6}\n:\n{below}")


def newlines(path: Path) -> None:
    path.write_text("step 1 loss 2.0\n" + "\n" * 300_000)


def argument(path: Path) -> None:
    path.write_text("megatron\na ... x" + " " * 1_000_000 + "y\nstep 1 loss 2.0\n")


def step(path: Path) -> None:
    path.write_text("step 1 loss 2.0\n" + ("step" + " " * 200_000) * 5 + "\n")


def digits(path: Path) -> None:
    path.write_text("step 1 loss 2.0\nstep: " + "9" * 5000 + " loss 1.0\n")


def points(path: Path) -> None:
    path.write_text("".join(f"step {n} loss 1\n" for n in range(1_000_100)))


_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def _base(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as base:
        base.executescript(script)


def view_of_meta(path: Path) -> None:
    _base(path, f"CREATE VIEW meta AS {_ENDLESS} 'x' AS name, 'y' AS value FROM n")


def view_of_cells(path: Path) -> None:
    rest = "init target overrides seed recipe labels state tries failure message result"
    columns = ", ".join(f"'' AS {name}" for name in rest.split())
    _base(
        path,
        "CREATE TABLE meta (name, value); INSERT INTO meta VALUES ('schema', 'rksp-grid-3');"
        "CREATE TABLE profiles (init, owner, seconds);"
        f"CREATE VIEW cells AS {_ENDLESS} i AS key, i AS position, {columns} FROM n",
    )


def generated_column(path: Path) -> None:
    rest = "init target overrides seed recipe labels state tries failure message"
    _base(
        path,
        "CREATE TABLE meta (name, value); INSERT INTO meta VALUES ('schema', 'rksp-grid-3');"
        "CREATE TABLE profiles (init, owner, seconds);"
        f"CREATE TABLE cells (key, position, {', '.join(rest.split())}, "
        "result AS ('\"' || printf('%.*c', 60000000, 'x') || '\"') VIRTUAL);"
        "INSERT INTO cells (key, position) VALUES (1, 1), (2, 2);",
    )


def seeds(path: Path) -> None:
    path.write_text("[score]\nseeds = 100000000\n")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def _tokenizer(path: Path, **changes: object) -> None:
    whole = json.loads((ROOT / "datasets/tokenizers/shakespeare-bpe-1k.json").read_text())
    path.write_text(json.dumps(whole | changes))


def growing(path: Path) -> None:
    """Each "e" becomes 60 of them, four times."""
    each = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 60}
    _tokenizer(path, normalizer={"type": "Sequence", "normalizers": [each] * 4})


def searching(path: Path) -> None:
    split = {"Regex": r"([a-zA-Z\s,.;:']+)+\d$"}
    _tokenizer(
        path,
        pre_tokenizer={"type": "Split", "pattern": split, "behavior": "Isolated", "invert": False},
    )


PROBE = (
    "python from pathlib import Path; from rksp.datasets.probe import encoded; "
    "encoded('Eee e e the tree. ' * 2000, Path('tokenizer.json'))"
)
EXPLAIN, GRID = "explain {}", "grid {} --dry-run"
SCORE = "score gpt2 --lr 1e-3 --evidence config"
BOMBS = {
    "D1 defaults": (dotted, ".rksp.toml", "explain", "one dotted key"),
    "D1 quoted": (quoted, ".rksp.toml", "explain", "one dotted key"),
    "D1 project": (project, "pyproject.toml", "explain", "one dotted key"),
    "D1 run file": (dotted, "run.toml", EXPLAIN, "one dotted key"),
    "D1 hexadecimal": (hexadecimal, ".rksp.toml", SCORE, "digits"),
    "D2 text": (one_text, "a.parquet", GRID, "unpacked"),
    "D2 text of runs": (one_text, "a.parquet", "runs {}", "unpacked"),
    "D2 list": (one_list, "a.parquet", GRID, "values"),
    "D2 text in a list": (one_text_in_a_list, "a.parquet", GRID, "unpacked"),
    "D2 text in a field": (one_text_in_a_field, "a.parquet", GRID, "unpacked"),
    "D2 wide values": (wide_values, "a.parquet", GRID, "unpacked"),
    "D2 wide rows": (wide_rows, "a.csv", GRID, "columns"),
    "D2 many rows": (many_rows, "a.csv", GRID, "rows"),
    "D3 calls": (calls, "run.py", EXPLAIN, "20,000 settings"),
    "D3 names": (names, "run.py", EXPLAIN, "20,000 settings"),
    "D3 long names": (long_names, "run.py", EXPLAIN, "characters"),
    "D3 long keys": (long_keys, "run.json", EXPLAIN, "characters"),
    "D3 long keys of YAML": (long_keys_of_yaml, "run.yaml", EXPLAIN, "characters"),
    "D4 seeds": (seeds, ".rksp.toml", SCORE, "seeds"),
    "D4 seeds typed": (seeds, "x.toml", f"{SCORE} --seeds 1e8", "at most"),
    "D5 points": (points, "a.log", "runs {}", "logged values"),
    "D6 meta": (view_of_meta, "g.db", "grid {}", "view"),
    "D6 cells": (view_of_cells, "g.db", "grid {}", "view"),
    "generated": (generated_column, "g.db", "grid {}", "generated column"),
    "D8 pipe": (pipe, "a.log", "runs {}", "nothing in a format"),
    "D9 assignments": (assignments, "run.py", EXPLAIN, "characters of Python"),
    "D9 optimizers": (optimizers, "run.py", EXPLAIN, "characters of Python"),
    "D9 additions": (additions, "run.sh", EXPLAIN, "characters of Python or shell"),
}
# What is within the limits is read, or refused for what it says, and in time.
WITHIN = {
    "D5 newlines": (newlines, "a.log", "runs {}"),
    "D5 argument": (argument, "a.log", "runs {}"),
    "D5 step": (step, "a.log", "runs {}"),
    "D5 digits": (digits, "a.log", "runs {}"),
    "D9 deep sums": (deep_sums, "run.py", EXPLAIN),
    "D9 fewer assignments": (fewer_assignments, "run.py", EXPLAIN),
    "D9 fewer optimizers": (fewer_optimizers, "run.py", EXPLAIN),
    "D9 fewer additions": (fewer_additions, "run.sh", EXPLAIN),
    "D9 expansions": (expansions, "run.sh", EXPLAIN),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "D5 points" else ()) for n in BOMBS]
)
def test_it_is_refused_before_the_work(machine, tmp_path, name):
    make, file, command, sentence = BOMBS[name]
    make(tmp_path / file)
    done = machine.run(command.format(file), tmp_path)
    assert (done.code, done.out) == (2, ""), done
    *passing, said = done.err.splitlines()
    assert sentence in said
    assert len(said) < 500
    assert not any("Traceback" in line for line in passing)


@pytest.mark.parametrize("name", WITHIN)
def test_it_is_read_or_refused_in_time(machine, tmp_path, name):
    make, file, command = WITHIN[name]
    make(tmp_path / file)
    done = machine.run(command.format(file), tmp_path)
    assert done.code in (0, 2), done
    assert "Traceback" not in done.err
    assert "processor seconds" not in done.err


@pytest.mark.parametrize("make", [growing, searching])
def test_a_tokenizer_takes_only_so_much(machine, tmp_path, make):
    make(tmp_path / "tokenizer.json")
    done = machine.run(PROBE, tmp_path)
    assert "InputError" in done.err.splitlines()[-1], done


def test_a_folder_with_pipes_is_read(machine, tmp_path):
    for name in ("a.log", "b.csv", "c.json", "metrics.csv", "d.db", "e.wandb"):
        os.mkfifo(tmp_path / name)
    done = machine.run("runs .", tmp_path)
    assert done.code == 2
    assert "holds nothing in a format of runs" in done.err


def test_memory_that_runs_out_is_said_with_what_was_read(machine, tmp_path):
    (tmp_path / "run.json").write_text('{"a": [' + "[1]," * 500_000 + "1]}")
    done = machine.run("explain run.json", tmp_path, memory=1)
    assert done.code == 3, done
    assert "run.json" in done.err
    assert "memory" in done.err


def test_the_limits_end_what_is_not_refused(machine, tmp_path):
    assert "MemoryError" in machine.run("python x = bytearray(10**10)", tmp_path).err
