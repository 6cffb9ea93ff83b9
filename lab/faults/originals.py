"""Whole files of every kind, which the harness damages: real ones, and some made on the spot."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sqlite3
import tempfile
from pathlib import Path

from lab.faults.commands import JSON, RATE, SCORE, SHAPE, TINY, said, short
from rksp.grid.store import GridStore
from rksp.models.resolve import resolve_tiny
from rksp.recipe_files.parse.content import parse_file

ROOT = Path(__file__).parents[2]
RUNS, CONFIGS = (ROOT / "tests" / name for name in ("run_configs", "configs"))


def recipes() -> dict[str, dict[str, list[str]]]:
    """Return the run files by trainer and suffix; YAML also as JSON."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(RUNS.rglob("*.*")):
        name, *below = [part for part in path.relative_to(RUNS).parts if part != "restated"]
        if not below or not path.is_file():
            continue
        texts = found.setdefault(name, {})
        texts.setdefault(path.suffix, []).append(path.read_text(encoding="utf-8"))
        if path.suffix in (".yaml", ".yml"):
            with contextlib.suppress(Exception):  # some of the real files are not YAML
                document = json.dumps(parse_file(path).data, default=str, indent=1)
                texts.setdefault(".json", []).append(document)
    return found


def configurations() -> list[object]:
    """Return the configurations of real models, and small ones of other kinds."""
    read = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))]
    small = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 300}
    vision = {"model_type": "vit", "hidden_size": 16, "num_attention_heads": 2, "image_size": 32}
    speech = {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    return [*read, small, vision | {"patch_size": 8}, speech, {"model_type": "t5", "d_model": 16}]


@functools.cache
def checkpoint(family: str) -> dict[str, bytes]:
    """Return the files of a tiny checkpoint in some shards."""
    with tempfile.TemporaryDirectory() as folder:
        resolve_tiny(family).build(0).save_pretrained(folder, max_shard_size="300KB")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def made() -> dict[str, bytes]:
    """Return reports of every command, a store with results, and rows as Parquet."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        few = ("--snapshots", "256")
        said((*SCORE, *few, "-o", "score.json"))
        said((*SCORE, *few, "--lr", "10", "--seeds", "2", "-o", "risky.json"))
        _, text = said(("diff", "score.json", "risky.json", *JSON))
        Path("diff.json").write_text(text, encoding="utf-8")
        grid = ("grid", "gpt2", *SHAPE, "lr=1e-4,1e-3", "seed=0,1", *few)
        _, text = said((*grid, "-o", "grid.db", "--workers", "1", *JSON))
        Path("grid.json").write_text(text, encoding="utf-8")
        one = ("--evidence", "forward", "--monitor", "loss")
        said(("confirm", *TINY, *RATE, *short(), *one, "-o", "confirm.json"))
        with GridStore(Path("grid.db")) as store:
            assert store.counts()["done"] == 4, store.counts()
        base = sqlite3.connect("grid.db")
        base.execute("PRAGMA journal_mode=DELETE")
        base.close()
        return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def parquet(rows: list[dict[str, object]]) -> bytes:
    """Return rows as a Parquet file."""
    import pyarrow

    return parquet_of(pyarrow.Table.from_pylist(rows))


def parquet_of(table: object) -> bytes:
    """Return a table of Arrow as a Parquet file."""
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()
