"""Read data that the user has on disk: CIFAR-10's binary files, plain text, or Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rksp.ground.errors import ArtifactError, InputError

_RECORD = 1 + 3 * 32 * 32  # a label and the three planes of an image
_MOST_BYTES = 1 << 28  # of text to read: 256 MiB


def cifar10_images(folder: str, *, sha256: str | None = None) -> tuple[Tensor, Tensor]:
    """Read the training images of CIFAR-10 (Krizhevsky, 2009) from `data_batch_*.bin`.

    The binary version has five files of 10,000 records, each a label byte and 3,072 bytes of red,
    green and blue planes. Files that are missing are left out. Nothing is downloaded.

    Args:
        folder: Folder of the files (`cifar-10-batches-bin`).
        sha256: Expected hash of the files, joined in the order of their names.

    Returns:
        Images `[images, 3, 32, 32]` float32 of zero mean and unit variance in every channel, and
        labels `[images]` int64.

    Raises:
        InputError: There is no such file.
        ArtifactError: A file is truncated, holds labels outside of CIFAR-10, or the hash differs.
    """
    paths = sorted(Path(folder).glob("data_batch_*.bin"))
    if not paths:
        raise InputError(
            f"{folder} has no data_batch_*.bin; unpack the binary version of CIFAR-10 there."
        )
    data = _read(paths, sha256)
    if len(data) % _RECORD:
        raise ArtifactError(
            f"The files in {folder} hold {len(data)} bytes, which is not a multiple of {_RECORD}; "
            "one of them is truncated or not in the binary version of CIFAR-10."
        )
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, _RECORD)
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise ArtifactError(
            f"The files in {folder} hold the label {int(labels.max())}, but CIFAR-10 has 0 to 9; "
            "give the folder of CIFAR-10's binary version."
        )
    images = records[:, 1:].reshape(-1, 3, 32, 32).float()
    channels: dict[str, Any] = {"dim": (0, 2, 3), "keepdim": True}
    mean, deviation = images.mean(**channels), images.std(**channels)
    return (images - mean) / deviation.clamp(min=1e-6), labels


def text_bytes(path: str, *, column: str = "text", sha256: str | None = None) -> bytes:
    """Read at most 256 MiB of text from a UTF-8 file or from a column of a Parquet file.

    Args:
        path: A `.parquet` file; any other file is read as text.
        column: Column of the Parquet file; line breaks join its rows.
        sha256: Expected hash of the file.

    Returns:
        The text as bytes.

    Raises:
        InputError: There is no such file or column, or it holds no text.
        ArtifactError: The hash differs, or the Parquet file cannot be read.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"The text file {path} does not exist; give the path of a text file.")
    if sha256 is not None:
        _read([file], sha256)
    if file.suffix == ".parquet":
        data = _parquet(file, column)
    else:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    if not data.strip():
        raise InputError(f"{path} holds no text; give a file with text.")
    return data


def _read(paths: Sequence[Path], sha256: str | None) -> bytes:
    try:
        data = b"".join(path.read_bytes() for path in paths)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read ({error.strerror}).") from error
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise ArtifactError(
            f"{paths[0]} hashes to {found}, not to {sha256}; the data differ from those expected."
        )
    return data


def _parquet(file: Path, column: str) -> bytes:
    import pyarrow
    from pyarrow import parquet

    parts, size = [], 0
    try:
        table = parquet.ParquetFile(file)
        if column not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names[:10])
            raise InputError(f"{file} has no column {column!r}; it has {names}.")
        for batch in table.iter_batches(columns=[column]):
            rows = "\n".join(str(row) for row in batch.column(0).to_pylist() if row)
            parts.append(rows.encode())
            size += len(parts[-1])
            if size >= _MOST_BYTES:
                break
    except pyarrow.ArrowException as error:
        raise ArtifactError(f"{file} cannot be read as Parquet ({error}).") from error
    return b"\n".join(parts)[:_MOST_BYTES]
