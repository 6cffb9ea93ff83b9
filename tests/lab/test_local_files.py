"""Data from the user's disk: read as the formats say, or refused in one sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lab.tasks.local_files import cifar10_images, text_bytes
from lab.tasks.tasks import make_task
from rksp.ground.errors import ArtifactError, InputError

COUNT = 20


@pytest.fixture
def batches(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Two files in CIFAR-10's binary form: `[20, 3, 32, 32]` pixels and their labels."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 10, COUNT, dtype=np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(COUNT, -1)], 1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:12].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(records[12:].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[:1].tobytes())
    return tmp_path, pixels, labels


def test_cifar_is_read_plane_by_plane_and_standardized(batches) -> None:
    folder, pixels, labels = batches
    images, found = cifar10_images(str(folder))
    assert found.tolist() == labels.tolist()
    wide = pixels.astype(np.float64)
    expected = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-3)


def test_cifar_is_a_task_with_its_checksum(batches) -> None:
    folder, _, _ = batches
    names = ("data_batch_1.bin", "data_batch_2.bin")
    digest = hashlib.sha256(b"".join((folder / n).read_bytes() for n in names)).hexdigest()
    task = make_task("cifar10", path=str(folder), sha256=digest)
    batch = task.draw(torch.Generator().manual_seed(0), 4)
    assert batch.inputs.shape == (4, 3, 32, 32) and task.num_classes == 10
    with pytest.raises(ArtifactError, match="hashes to"):
        cifar10_images(str(folder), sha256="0" * 64)


def test_what_is_no_cifar_is_refused(batches, tmp_path_factory) -> None:
    folder, _, _ = batches
    with pytest.raises(InputError, match=r"no data_batch_\*\.bin"):
        cifar10_images(str(tmp_path_factory.mktemp("empty")))
    first = folder / "data_batch_1.bin"
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(ArtifactError, match="truncated"):
        cifar10_images(str(folder))
    first.write_bytes(b"\x63" + whole[1:])
    with pytest.raises(ArtifactError, match="label 99"):
        cifar10_images(str(folder))


def test_text_comes_from_plain_files_and_from_parquet(tmp_path: Path) -> None:
    plain, table = tmp_path / "a.txt", tmp_path / "a.parquet"
    plain.write_text("to be\nor not", encoding="utf-8")
    pq.write_table(pa.table({"text": ["to be", None, "or not"], "n": [1, 2, 3]}), table)
    assert text_bytes(str(plain)) == text_bytes(str(table)) == b"to be\nor not"
    task = make_task("text", path=str(plain), length=4)
    batch = task.draw(torch.Generator().manual_seed(0), 2)
    assert bytes(batch.inputs[0].tolist()) in plain.read_bytes()


def test_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    table, empty, broken = (tmp_path / n for n in ("a.parquet", "b.txt", "c.parquet"))
    pq.write_table(pa.table({"n": [1]}), table)
    empty.write_text(" \n")
    broken.write_bytes(b"PAR1 and no more")
    for path, kind, message in (
        (table, InputError, "no column 'text'; it has n"),
        (empty, InputError, "holds no text"),
        (broken, ArtifactError, "as Parquet"),
        (tmp_path / "absent.txt", InputError, "does not exist"),
    ):
        with pytest.raises(kind, match=message):
            text_bytes(str(path))
    empty.write_text("abc")
    with pytest.raises(InputError, match="too few for sequences of 64"):
        make_task("text", path=str(empty))
    with pytest.raises(ArtifactError, match="hashes to"):
        text_bytes(str(empty), sha256="0" * 64)
