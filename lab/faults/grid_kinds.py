"""Kinds of input of a grid: grids, sweeps, rows, axes and stores."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from hypothesis import strategies as st

from lab.faults import originals
from lab.faults.answers import DRY, Case, each
from lab.faults.commands import JSON
from lab.faults.damage import damaged_bytes, damaged_json, damaged_text, file_of, words
from lab.faults.score_kinds import NAMES

_GRIDS = (
    "target: gpt2\nset: {n_layer: 1}\ngrid:\n  lr: [1e-4, 3e-4]\n  batch_size: [8, 16]\n",
    "target: gpt2\nseed: [0, 1]\nzip:\n  lr: [1e-4, 1e-3]\n  warmup_steps: [10, 20]\n",
    "method: grid\nparameters:\n  lr:\n    values: [0.1, 0.2]\n  target:\n    value: gpt2\n",
    "method: random\nparameters:\n  lr:\n    distribution: log_uniform_values\n    min: 1e-5\n"
    "    max: 1e-2\n  optimizer:\n    values: [adamw, sgd]\n    probabilities: [0.5, 0.5]\n"
    "  n_layer:\n    distribution: q_uniform\n    min: 1\n    max: 8\n    q: 1\n",
    "- {lr: [1e-4], n_layer: [1, 2]}\n- {lr: [1e-3], n_embd: [16, 32]}\n",
    "lr: [1e-4, 3e-4]\nn_layer: [1, 2, 3]\nadam_beta2: [0.95, 0.999]\n",
    "base: run.yaml\ngrid:\n  lr: [1e-4]\n",
)


def grids() -> st.SearchStrategy[Case]:
    """Return damaged grids and sweeps."""
    parsed = [yaml.safe_load(text) for text in _GRIDS]
    beside = st.just({"run.yaml": _GRIDS[0].encode()})
    files = st.one_of(
        file_of("grid.yaml", damaged_text(_GRIDS)),
        file_of("grid.json", damaged_json(parsed)),
        st.builds(lambda a, b: a | b, beside, file_of("grid.yaml", damaged_text(_GRIDS[-1:]))),
    )
    some = (("--samples", "5"), ("--target", "gpt2"), ("--samples", "3", "--target", "gpt2"), ())
    commands = [("grid", name, *more, *DRY) for name in ("grid.yaml", "grid.json") for more in some]
    return each(commands, files)


_TABLE = [
    {"target": "gpt2", "lr": 1e-4, "batch_size": 8, "optimizer": "adamw", "val_loss": 3.1},
    {"target": "gpt2", "lr": 3e-4, "batch_size": 16, "optimizer": "lion", "val_loss": None},
    {"target": "llama", "lr": 1e-3, "batch_size": 8, "optimizer": "sgd", "val_loss": 9.9},
]


def rows() -> st.SearchStrategy[Case]:
    """Return damaged rows of a grid."""
    csv = "\n".join([",".join(_TABLE[0]), *(",".join(map(str, r.values())) for r in _TABLE)])
    lines = "\n".join(json.dumps(row) for row in _TABLE)
    files = st.one_of(
        file_of("rows.csv", damaged_text([csv])),
        file_of("rows.jsonl", damaged_text([lines])),
        file_of(
            "rows.jsonl", damaged_json([_TABLE]).map(lambda t: t.strip("[]").replace("}, ", "}\n"))
        ),
        damaged_bytes([originals.parquet(_TABLE)]).map(lambda data: {"rows.parquet": data}),
        damaged_bytes([csv.encode()]).map(lambda data: {"rows.csv": data}),
    )
    return files.map(lambda f: Case(command=("grid", next(iter(f)), *DRY), files=f))


def axes() -> st.SearchStrategy[Case]:
    """Return axes of a grid, typed wrong."""
    whole = ("lr=1e-4,3e-4", "n_layer=range(2,9,2)", "lr=logspace(-4,-2,9)", "seed=0,1,2")
    whole += ("lr=interval(1e-5,1e-3)", "lr=tag(log,interval(1e-5,1e-3))", "optimizer=adamw,sgd")
    axis = st.one_of(damaged_text(whole), st.builds("{}={}".format, NAMES, words()))
    typed = st.lists(axis.filter(lambda text: "\0" not in text), min_size=1, max_size=3)
    more = st.sampled_from(((), ("--samples", "4"), ("--ignore", "x")))
    return st.builds(
        lambda axes, rest: Case(command=("grid", "gpt2", *DRY, *rest, "--", *axes), files={}),
        typed,
        more,
    )


def stores() -> st.SearchStrategy[Case]:
    """Return damaged databases of a sweep."""
    whole = originals.made()["grid.db"]
    columns = ("init", "target", "overrides", "seed", "recipe", "labels", "state", "tries")
    columns += ("failure", "message", "result", "position", "owner", "lease")
    with _opened(whole) as (base, _):
        cell = base.execute("SELECT result, recipe FROM cells").fetchone()
    result, recipe = (json.loads(text) for text in cell)
    values = st.one_of(
        damaged_json([result]), damaged_json([recipe]), words(), st.binary(max_size=4), st.none()
    )
    changed = st.builds(
        lambda changes: {"grid.db": _with(whole, [_value(*change) for change in changes])},
        st.lists(st.tuples(st.sampled_from(columns), values), min_size=1, max_size=2),
    )
    meta = st.builds(
        lambda *change: {"grid.db": _with(whole, [(_META, change)])},
        st.sampled_from(("schema", "made_by", "options", "plan")),
        st.one_of(words(), damaged_json([{"rksp": "0", "classifier": "x"}])),
    )
    files = st.one_of(damaged_bytes([whole]).map(lambda d: {"grid.db": d}), changed, changed, meta)
    commands = [("grid", "grid.db", "--format", f) for f in ("text", "json", "html", "markdown")]
    commands += [("grid", "grid.db", "--where", "lr<1", *JSON), ("grid", "grid.db", "--top", "1")]
    return each(commands, files)


_META = "UPDATE meta SET value = ?2 WHERE name = ?1"


def _value(column: str, value: object) -> tuple[str, tuple[object, ...]]:
    return f"UPDATE cells SET {column} = ? WHERE position = 1", (value,)


def _with(store: bytes, changes: Sequence[tuple[str, tuple[object, ...]]]) -> bytes:
    with _opened(store) as (base, path):
        for change in changes:
            with contextlib.suppress(sqlite3.Error, UnicodeError):  # what SQLite itself refuses
                base.execute(*change)
        base.commit()
        return path.read_bytes()


@contextlib.contextmanager
def _opened(store: bytes) -> Iterator[tuple[sqlite3.Connection, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        path.write_bytes(store)
        base = sqlite3.connect(path)
        try:
            yield base, path
        finally:
            base.close()
