"""What rksp sees of each ladder before training, as files: one a ladder, or all packed in one."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

from lab.places import DATA
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import ResultFolder, atomic_write, check_writable, read_limited, read_text
from rksp.spectra.features import FEATURES, SCHEMA, Features

_LARGEST, _MOST_UNPACKED = 64 * 2**20, 512 * 2**20  # bytes of packed measurements


def write_measurement(folder: Path, ladder: str, features: Features) -> None:
    """Store the features of a ladder under its id, whole or not at all."""
    document = {
        "schema": SCHEMA,
        "ladder": ladder,
        "features": {name: _number(value) for name, value in features.values.items()},
        "tier": str(features.tier),
    }
    ResultFolder(folder).write(ladder, json.dumps(document, allow_nan=False))


def shipped_measurements() -> Path:
    """Return the path of the measurements of the shipped collection, one JSON document a line."""
    return DATA / "runs" / "measurements.jsonl.xz"


def pack_measurements(folder: Path, output: Path, *, base: Path | None = None) -> int:
    """Pack a folder of measurements into one compressed file, sorted by ladder.

    Args:
        folder: The folder of stored measurements.
        output: The file to write.
        base: A packed file whose measurements are kept too; the folder's replace them.

    Returns:
        The number of measurements in the file.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(output)
    documents = unpack_measurements(base) if base is not None else {}
    for path in sorted(folder.glob("*.json")):
        document = _read(path)
        documents[document["ladder"]] = document
    lines = [documents[key] for key in sorted(documents)]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    atomic_write(output, lzma.compress(text.encode(), preset=9))
    return len(lines)


def unpack_measurements(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Read packed measurements by ladder id; `path` None reads the shipped ones.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    path = path or shipped_measurements()
    try:
        packed = lzma.LZMADecompressor()
        # Some kilobytes of zeros can unpack to gigabytes.
        content = packed.decompress(read_limited(path, _LARGEST), max_length=_MOST_UNPACKED)
        if not packed.eof:
            raise ValueError(f"it is truncated, or unpacks to more than {_MOST_UNPACKED} bytes")
        documents = [json.loads(line) for line in content.decode().splitlines()]
        return {document["ladder"]: document for document in documents}
    except (InputError, lzma.LZMAError, ValueError, LookupError, TypeError) as error:
        raise ArtifactError(f"{path.name} holds no measurements: {error}.") from error


def _read(path: Path) -> dict[str, Any]:
    """Read a stored measurement; names that this version does not know are kept."""
    try:
        document = json.loads(read_text(path, _LARGEST))
        found, names = document.get("schema"), set(document["features"])
        document["ladder"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path.name} is not a measurement: {error!r:.200}.") from error
    if found != SCHEMA or not set(FEATURES) <= names:
        raise ArtifactError(
            f"{path.name} holds features of {found!r}, not {SCHEMA!r}; measure the folder again."
        )
    return document


def _number(value: float) -> float | None:
    """Return seven digits; what was not measured is null."""
    return None if math.isnan(value) else float(f"{value:.7g}")
