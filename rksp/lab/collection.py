"""Pack stored ladders into one compact, reproducible Parquet file, and read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from rksp.datasets.tasks import make_task
from rksp.errors import ArtifactError, InputError
from rksp.files import check_writable, read_text, replacing
from rksp.lab.ladder import LadderRun
from rksp.lab.plan import LadderSpec
from rksp.lab.store import MOST_BYTES, read_ladder
from rksp.outcome import Curves, OutcomePolicy

SCHEMA = "rksp-collection-1"
_MOST_UNPACKED = 4 * 2**30  # bytes; ours has 30 MB
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, OSError, NotImplementedError)
_DROPPED_BITS = 8  # of 23: keeps 1 part in 65,536; the zero byte compresses to nothing
_CURVES = ("loss", "grad_norm", "planned_steps")
_READ = ("ladder", "spec", "learning_rate", "seconds", *_CURVES)


def shipped_collection() -> Path:
    """Return the path of the bundled collection."""
    return Path(str(files("rksp.datasets") / "runs" / "collection.parquet"))


def rows(
    ladders: Iterable[LadderRun], policy: OutcomePolicy | None = None
) -> list[dict[str, object]]:
    """Return one labelled row per run, including the curves.

    `excess` is infinite if a run has no final loss. `best_rate`, `edge_low` and `edge_high` are
    None if the ladder has none (`rksp.outcome.Ladder`). `trivial_loss` is None if the task's data
    are not available.
    """
    policy = policy or OutcomePolicy()
    table = []
    for ladder in ladders:
        judged = ladder.judge(policy)
        low, high = judged.edge or (None, None)
        shared = {
            "ladder": ladder.spec.id,
            "family": ladder.spec.family,
            "task": ladder.spec.task,
            "optimizer": ladder.spec.recipe.optimizer,
            "spec": json.dumps(ladder.spec.model_dump(mode="json"), sort_keys=True),
            "seed": ladder.spec.seed,
            "policy": judged.policy,
            "best_rate": judged.best_rate,
            "edge_low": low,
            "edge_high": high,
            "trivial_loss": trivial_loss(ladder.spec),
        }
        for index, rate in enumerate(ladder.rates):
            table.append(
                shared
                | {
                    "learning_rate": rate,
                    "planned_steps": ladder.curves[index].planned_steps,
                    "outcome": str(judged.outcomes[index]),
                    "excess": judged.excess[index],
                    "seconds": ladder.seconds[index],
                    "loss": ladder.curves[index].loss,
                    "grad_norm": ladder.curves[index].grad_norm,
                }
            )
    return table


def trivial_loss(spec: LadderSpec) -> float | None:
    """Return the loss, in nats, of answering the task's label frequencies; None without data."""
    try:
        return make_task(spec.task, **spec.task_options).trivial_loss
    except InputError:
        return None


def build_collection(sources: Sequence[Path], output: Path) -> int:
    """Pack stored ladders into one Parquet file, one row per run.

    The same input gives the same bytes. Curves keep 16 significant bits. The labels are those of
    the kept curves, so they can be recomputed from the file. A ladder that is found twice is taken
    from the first source.

    Args:
        sources: Folders of a plan, single ladder files, or collections to extend.
        output: The file, which is replaced atomically.

    Returns:
        The number of runs written.

    Raises:
        InputError: pyarrow is missing, or the sources hold no ladder.
        ArtifactError: A file is not a stored ladder.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(output)
    pa, parquet = _pyarrow()
    ladders: dict[str, LadderRun] = {}
    provenance: dict[str, str] = {}
    for ladder, stored in stored_ladders(sources):
        if ladder.spec.id not in ladders:
            ladders[ladder.spec.id] = _shortened(ladder)
            provenance[ladder.spec.id] = stored
    table = rows(ladders[key] for key in sorted(ladders))
    for row in table:
        row["provenance"] = provenance[row["ladder"]]
    schema = _schema(pa)
    columns = {name: [row[name] for row in table] for name in schema.names}
    try:
        packed = pa.table(columns, schema=schema)
    except (TypeError, ValueError) as error:  # pyarrow's errors are among these
        raise ArtifactError(
            f"A stored ladder holds a value of another kind; train it again ({error!s:.200})."
        ) from error
    with replacing(output) as partial:
        parquet.write_table(
            packed,
            partial,
            compression="zstd",
            compression_level=19,
            # This puts bytes of equal significance side by side; the dropped byte compresses away.
            use_dictionary=[f.name for f in schema if pa.types.is_string(f.type)],
            use_byte_stream_split=["loss.list.element", "grad_norm.list.element"],
            row_group_size=len(table),
        )
    return len(table)


def read_collection(path: Path | None = None) -> list[LadderRun]:
    """Read the ladders of a collection, sorted by id; `path` None reads the bundled one.

    Raises:
        InputError: pyarrow is missing, or there is no such file.
        ArtifactError: The file is not a collection of this schema.
    """
    _, parquet = _pyarrow()
    path = path or shipped_collection()
    if not path.is_file():
        raise InputError(
            f"There is no collection at {path}; make one with rksp lab run and rksp lab pack."
        )
    try:
        stored = parquet.ParquetFile(path)
        found = (stored.schema_arrow.metadata or {}).get(b"rksp")
        if found != SCHEMA.encode():
            raise ArtifactError(f"{path.name} has schema {found!r}, not {SCHEMA!r}.")
        unpacked = sum(
            stored.metadata.row_group(n).total_byte_size for n in range(stored.num_row_groups)
        )
        if unpacked > _MOST_UNPACKED:
            raise ArtifactError(f"{path.name} unpacks to more than {_MOST_UNPACKED >> 30} GiB.")
        table = stored.read(columns=list(_READ))
        return _ladders({name: _column(table, name) for name in _READ})
    except _UNREADABLE as error:  # pyarrow's errors are among these
        raise ArtifactError(f"{path.name} is not a collection: {error!s:.200}") from error


def _column(table, name: str) -> list:
    values = table.column(name).combine_chunks()
    if name not in ("loss", "grad_norm"):
        return values.to_pylist()
    flat = values.values.to_numpy(zero_copy_only=False)
    return np.split(flat, values.offsets.to_numpy()[1:-1])


def _ladders(columns: dict[str, list]) -> list[LadderRun]:
    ids = columns["ladder"]
    starts = [i for i, name in enumerate(ids) if i == 0 or name != ids[i - 1]]
    ladders = []
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        spec = LadderSpec.model_validate_json(columns["spec"][start])
        ladders.append(
            LadderRun(
                spec=spec,
                rates=tuple(columns["learning_rate"][start:end]),
                seconds=tuple(columns["seconds"][start:end]),
                curves=tuple(
                    Curves(loss=loss, grad_norm=norm, planned_steps=planned)
                    for loss, norm, planned in zip(
                        *(columns[name][start:end] for name in _CURVES), strict=True
                    )
                ),
            )
        )
    return ladders


def stored_ladders(sources: Sequence[Path]) -> Iterator[tuple[LadderRun, str]]:
    """Yield each ladder of every source with its provenance as JSON."""
    for source in sources:
        if not source.exists():
            raise InputError(f"There is no folder or file {source}; give a folder of rksp lab run.")
        if source.suffix == ".parquet":
            kept = _provenance(source)
            yield from ((ladder, kept[ladder.spec.id]) for ladder in read_collection(source))
            continue
        paths = sorted(source.glob("*.json")) if source.is_dir() else [source]
        if not paths:
            raise InputError(f"No stored ladder in {source}; run rksp lab run first.")
        for path in paths:
            ladder = read_ladder(path)
            stored = json.loads(read_text(path, MOST_BYTES)).get("provenance", {})
            yield ladder, json.dumps(stored, sort_keys=True)


def collection_ids(path: Path | None = None) -> frozenset[str]:
    """Return the ids of the ladders of a collection; `path` None reads the bundled one."""
    return frozenset(_provenance(path or shipped_collection()))


def _provenance(path: Path) -> dict[str, str]:
    _, parquet = _pyarrow()
    try:
        table = parquet.read_table(path, columns=["ladder", "provenance"]).to_pydict()
    except _UNREADABLE as error:
        raise ArtifactError(f"{path.name} is not a collection: {error!s:.200}") from error
    return dict(zip(table["ladder"], table["provenance"], strict=True))


def _shortened(ladder: LadderRun) -> LadderRun:
    curves = tuple(
        Curves(
            loss=_rounded(c.loss), grad_norm=_rounded(c.grad_norm), planned_steps=c.planned_steps
        )
        for c in ladder.curves
    )
    return LadderRun(spec=ladder.spec, rates=ladder.rates, curves=curves, seconds=ladder.seconds)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to float32 with 16 significant bits (relative error ≤ 2⁻¹⁶); NaN and ±inf stay."""
    bits = values.astype(np.float32).view(np.uint32)
    half, mask = (
        np.uint32(1 << (_DROPPED_BITS - 1)),
        np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF),
    )
    rounded = ((bits + half) & mask).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def _schema(pa):
    text, number, curve = pa.string(), pa.float64(), pa.list_(pa.field("element", pa.float32()))
    fields = {
        "ladder": text,
        "family": text,
        "task": text,
        "optimizer": text,
        "spec": text,
        "provenance": text,
        "policy": text,
        "seed": pa.int64(),
        "planned_steps": pa.int32(),
        "learning_rate": number,
        "outcome": text,
        "excess": number,
        "best_rate": number,
        "edge_low": number,
        "edge_high": number,
        "trivial_loss": number,
        "seconds": number,
        "loss": curve,
        "grad_norm": curve,
    }
    return pa.schema(list(fields.items()), metadata={"rksp": SCHEMA})


def _pyarrow():
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "The collection is Parquet, which needs pyarrow; pip install 'rksp[lab]'."
        ) from None
    return pyarrow, parquet
