"""Write tables of runs as compact, reproducible Parquet, and read them with suspicion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import replacing

CURVES = ("loss", "grad_norm")  # columns of lists
_MOST_UNPACKED = 4 * 2**30  # bytes; ours has 30 MB
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, OSError, NotImplementedError)
_DROPPED_BITS = 8  # of 23: keeps 1 part in 65,536; the zero byte compresses to nothing


def write_rows(
    rows: Sequence[Mapping[str, object]], fields: Mapping[str, str], schema: str, output: Path
) -> None:
    """Write rows as one Parquet file; the same rows give the same bytes.

    Args:
        rows: One mapping a row.
        fields: Types by column: `text`, `number`, `count`, `small` (32 bits), `flag` or `curve`.
        schema: Name under which `read_columns` knows the file.
        output: The file, which is replaced atomically.

    Raises:
        InputError: pyarrow is missing.
        ArtifactError: A row holds a value of another kind.
    """
    pa, parquet = pyarrow_modules()
    types = {
        "text": pa.string(),
        "number": pa.float64(),
        "count": pa.int64(),
        "small": pa.int32(),
        "flag": pa.bool_(),
        "curve": pa.list_(pa.field("element", pa.float32())),
    }
    described = pa.schema(
        [(name, types[kind]) for name, kind in fields.items()], metadata={"rksp": schema}
    )
    try:
        packed = pa.table({name: [row[name] for row in rows] for name in fields}, schema=described)
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
            use_dictionary=[name for name, kind in fields.items() if kind == "text"],
            use_byte_stream_split=[f"{name}.list.element" for name in CURVES],
            row_group_size=len(rows),
        )


def by_ladder(columns: Mapping[str, list]) -> Iterator[dict[str, list]]:
    """Yield the columns of each ladder, whose rows stand side by side."""
    ids = columns["ladder"]
    starts = [i for i, name in enumerate(ids) if i == 0 or name != ids[i - 1]]
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield {name: values[start:end] for name, values in columns.items()}


def read_columns(path: Path, schema: str, names: Sequence[str]) -> dict[str, list]:
    """Read columns of a file that `write_rows` wrote.

    Raises:
        InputError: pyarrow is missing, or there is no such file.
        ArtifactError: The file has another schema, is damaged, or unpacks to too much.
    """
    _, parquet = pyarrow_modules()
    if not path.is_file():
        raise InputError(
            f"There is no collection at {path}; make one with python -m lab run and "
            "python -m lab pack."
        )
    try:
        stored = parquet.ParquetFile(path)
        found = (stored.schema_arrow.metadata or {}).get(b"rksp")
        if found != schema.encode():
            raise ArtifactError(f"{path.name} has schema {found!r}, not {schema!r}.")
        unpacked = sum(
            stored.metadata.row_group(n).total_byte_size for n in range(stored.num_row_groups)
        )
        if unpacked > _MOST_UNPACKED:
            raise ArtifactError(f"{path.name} unpacks to more than {_MOST_UNPACKED >> 30} GiB.")
        table = stored.read(columns=list(names))
        return {name: _column(table, name) for name in names}
    except _UNREADABLE as error:  # pyarrow's errors are among these
        raise ArtifactError(f"{path.name} is not a collection: {error!s:.200}") from error


def _column(table, name: str) -> list:
    values = table.column(name).combine_chunks()
    if name not in CURVES:
        return values.to_pylist()
    flat = values.values.to_numpy(zero_copy_only=False)
    return np.split(flat, values.offsets.to_numpy()[1:-1])


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to float32 with 16 significant bits (relative error ≤ 2⁻¹⁶); NaN and ±inf stay."""
    bits = values.astype(np.float32).view(np.uint32)
    half, mask = (
        np.uint32(1 << (_DROPPED_BITS - 1)),
        np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF),
    )
    found = ((bits + half) & mask).view(np.float32)
    return np.where(np.isfinite(values), found, values).astype(np.float32)


def pyarrow_modules():
    """Return pyarrow and its Parquet module, or say what to install."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "The collection is Parquet, which needs pyarrow; pip install 'rksp[lab]'."
        ) from None
    return pyarrow, parquet
