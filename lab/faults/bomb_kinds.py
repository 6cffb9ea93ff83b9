"""Kinds of input that ask for a machine, or whose names do harm: small files, of any size."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hypothesis import strategies as st

from lab.faults import originals
from lab.faults.answers import DRY, Case, each
from lab.faults.commands import CONFIG, JSON, SCORE

_EXPLAIN, _RUNS = ("explain", "{}", "--devices", "8"), ("runs", "{}")
_GRID = ("grid", "{}", *DRY)
_SEEDS = (*SCORE, *CONFIG)
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def _calls(size: int, times: int) -> str:
    lines = ["def f0():\n    return C(a=1, b=2, c=3)\n"]
    for n in range(1, size % 60 + 2):
        parts = ", ".join(f"a{i}=f{n - 1}()" for i in range(times))
        lines.append(f"def f{n}():\n    return C({parts}, z=1, y=2)\n")
    return "".join(lines)


def _long_key(size: int, times: int) -> str:
    return json.dumps({"k" * size: {f"a{n}": 1 for n in range(times * 2000)}})


# Name of a file → what makes its text of a size and a number, and the command that reads it.
_TEXTS: Mapping[str, tuple[str, Callable[[int, int], str], tuple[str, ...]]] = {
    "dotted": (".rksp.toml", lambda n, k: "a" + ".a" * n + " = 1\n", ("checks",)),
    "tables": (".rksp.toml", lambda n, k: f"[{'a.' * k}b]\nx = 1\n" * (n // 10), ("checks",)),
    "quoted": ("run.toml", lambda n, k: "'a'" + ' . "\\""' * n + " = 1\n", _EXPLAIN),
    "quotes": ("run.toml", lambda n, k: 'a = "' + '\\"' * n, _EXPLAIN),
    "digits": (".rksp.toml", lambda n, k: f"[score]\nseed = 0x{'f' * n}\n", _SEEDS),
    "seeds": (".rksp.toml", lambda n, k: f"[score]\nseeds = {n**k + 101}\n", _SEEDS),
    "calls": ("run.py", _calls, _EXPLAIN),
    "assignments": ("run.py", lambda n, k: "".join(f"a{i}={k}\n" for i in range(n)), _EXPLAIN),
    "sums": ("run.py", lambda n, k: f"a = x{' + 1' * (n % 900)}\n" * k * 20, _EXPLAIN),
    "chains": ("run.py", lambda n, k: f"a = x{'.f()' * (n % 900)}\n" * k * 20, _EXPLAIN),
    "additions": ("run.sh", lambda n, k: "A+=(x y)\n" * n, _EXPLAIN),
    "expansions": ("run.sh", lambda n, k: f"A={'x' * n}\npython train.py {'$A' * n}\n", _EXPLAIN),
    "long key": ("run.json", _long_key, _EXPLAIN),
    "long key of YAML": ("run.yaml", _long_key, _EXPLAIN),
    "columns": ("a.csv", lambda n, k: "a," * n + "b\n" + "1\n" * n, _GRID),
    "names": ("a.csv", lambda n, k: ",".join(map(str, range(n))) + "\n" + "1\n" * n, _GRID),
    "rows": ("a.csv", lambda n, k: "a\n" + "1\n" * n * k, _GRID),
    "lines": ("a.log", lambda n, k: "step 1 loss 2.0\n" + "\n" * n * k, _RUNS),
    "spaces": ("a.log", lambda n, k: "step 1 loss 2\n" + ("step" + " " * n) * k + "\n", _RUNS),
    "arguments": ("a.log", lambda n, k: "megatron\n" + ("a ... x" + " " * n + "y\n") * k, _RUNS),
    "points": ("a.log", lambda n, k: "".join(f"step {i} loss 1\n" for i in range(n * k)), _RUNS),
}


def _case(name: str, size: int, times: int) -> Case:
    file, make, command = _TEXTS[name]
    words = tuple(word.format(file) for word in command)
    return Case(command=words, files={file: make(size, times).encode(), ".git/HEAD": b""})


def bombs() -> st.SearchStrategy[Case]:
    """Return files that unfold, of up to some hundred kilobytes, and stores that never end."""
    texts = st.builds(
        _case, st.sampled_from(sorted(_TEXTS)), st.integers(1, 60_000), st.integers(1, 9)
    )
    return st.one_of(texts, texts, texts, texts, _parquet(), _stores())


def _parquet() -> st.SearchStrategy[Case]:
    import pyarrow as pa

    def rows(size: int, count: int, is_list: bool) -> Case:
        shared = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * size])
        column = pa.ListArray.from_arrays([0, count], shared) if is_list else shared
        content = originals.parquet_of(pa.table({"lr": column}))
        return Case(command=("grid", "a.parquet", *DRY), files={"a.parquet": content})

    return st.builds(rows, st.integers(1, 10**6), st.integers(1, 50_000), st.booleans())


def _stores() -> st.SearchStrategy[Case]:
    columns = ("key", "position", "init", "target", "name", "value", "state", "result")

    def store(name: str, given: list[str]) -> Case:
        selected = ", ".join(f"i AS {column}" for column in dict.fromkeys(given))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "g.db"
            with contextlib.closing(sqlite3.connect(path)) as base:
                base.execute(f"CREATE VIEW {name} AS {_ENDLESS} {selected} FROM n")
                base.commit()
            return Case(command=("grid", "g.db", *JSON), files={"g.db": path.read_bytes()})

    some = st.lists(st.sampled_from(columns), min_size=1, max_size=8)
    return st.builds(store, st.sampled_from(("meta", "cells", "profiles")), some)


_NAMES = (
    *("a?mode=rwc&x=", "a%2f..%2fb?mode=rwc&x=", "a#b", "a%00b", "a b", "-o", "--help", "~", "a:b"),
    *("##[error]x", "##[set-output name=verdict]ok", "::error::x", "a\nb", "a\x1b[31m", "a\u202eb"),
    *(
        "a\u200bb",
        "a\u2060b",
        "=HYPERLINK(1)",
        "@a",
        "`a`",
        "[a](b)",
        "<img src=x>",
        "'; DROP",
        "é",
    ),
    *("gpt2", "nan", "null", "a" * 200, "${HOME}", "$(id)", "%s%n", "{0}", "\\", "a\tb"),
)


def poisoned_names() -> st.SearchStrategy[Case]:
    """Return whole files under names that a shell, a terminal, a database or CI would obey."""
    made, recipes = originals.made(), originals.recipes()
    some = sorted(recipes)[0]
    suffix, texts = next(iter(recipes[some].items()))
    kinds = {
        ".db": (made["grid.db"], (("grid", "{}"), ("runs", "{}"), ("runs", "."))),
        ".json": (
            made["score.json"],
            (("report", "{}", "--format", "markdown"), ("diff", "{}", "{}")),
        ),
        ".csv": (b"target,lr\ngpt2,1e-4\n", (_GRID, ("runs", "{}"), ("runs", "."))),
        suffix: (texts[0].encode(), (_EXPLAIN, ("score", "{}", *CONFIG, "--devices", "8"))),
    }  # fmt: skip

    def named(name: str, kind: str) -> st.SearchStrategy[Case]:
        content, commands = kinds[kind]
        file = f"{name}{kind}".replace("\0", "")
        filled = [tuple(word.replace("{}", f"./{file}") for word in words) for words in commands]
        return each(filled, st.just({file: content}))

    pairs = st.tuples(st.sampled_from(_NAMES), st.sampled_from(sorted(kinds)))
    return pairs.flatmap(lambda pair: named(*pair))
