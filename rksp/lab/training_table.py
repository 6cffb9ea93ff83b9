"""Ladders and their measurements, joined into the table that the classifier is fitted on."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from rksp.classifiers.table import Table
from rksp.errors import ArtifactError, Incomplete, InputError
from rksp.features import FEATURE_NAMES, FeatureVector, Tier
from rksp.files import atomic_write, check_writable, read_limited
from rksp.lab.collection import trivial_loss
from rksp.lab.ladder import LadderRun
from rksp.lab.measure import read_measurement
from rksp.outcome import Outcome, OutcomePolicy

_LARGEST, _MOST_UNPACKED = 64 * 2**20, 512 * 2**20  # bytes of packed measurements


def training_table(
    ladders: Iterable[LadderRun],
    measurements: Mapping[str, Mapping[str, object]],
    policy: OutcomePolicy | None = None,
) -> Table:
    """One row a run, sorted by ladder and rate.

    Args:
        ladders: With curves; labels are computed here, by `policy`.
        measurements: By ladder id, as `rksp.lab.measure.read_measurement` returns them.

    Raises:
        Incomplete: A ladder has not been measured.
    """
    rows: list[dict[str, object]] = []
    for run in sorted(ladders, key=lambda run: run.spec.id):
        if run.spec.id not in measurements:
            raise Incomplete(f"Ladder {run.spec.id} has no measurement; measure its folder first.")
        rows += _rows(run, measurements[run.spec.id], policy or OutcomePolicy())
    numeric = {
        name: np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("rate", "width", "depth", "parameters", "edge_low", "edge_high")
    }
    return Table(
        x=np.array([row["x"] for row in rows]),
        failed=np.array([row["outcome"].is_failure for row in rows]),
        diverged=np.array([row["outcome"] is Outcome.DIVERGED for row in rows]),
        ladder=np.array([row["ladder"] for row in rows]),
        family=np.array([row["family"] for row in rows]),
        task=np.array([row["task"] for row in rows]),
        one_step_change=np.array([row["one_step_change"] for row in rows]),
        learned=np.array([row["learned"] for row in rows]),
        **numeric,
    )


def _rows(
    run: LadderRun, measured: Mapping[str, object], policy: OutcomePolicy
) -> list[dict[str, object]]:
    judged = run.judge(policy)
    final = min(policy.final_loss(curves) for curves in run.curves)
    trivial = trivial_loss(run.spec)
    low, high = judged.edge or (None, None)
    stored = measured["features"]
    values = [math.nan if stored[name] is None else float(stored[name]) for name in FEATURE_NAMES]
    features = FeatureVector(values=np.array(values), tier=Tier.parse(measured["tier"]))
    points = [
        (float(rate), math.inf if change is None else float(change))
        for rate, change in measured["points"]
    ]
    shared = {
        "ladder": run.spec.id,
        "family": run.spec.family,
        "task": run.spec.task,
        "width": run.spec.shape["hidden_size"],
        "depth": run.spec.shape["num_hidden_layers"],
        "parameters": measured["parameters"],
        "learned": trivial is None or final < trivial - policy.margin or not math.isfinite(final),
        "edge_low": low if high is not None else math.nan,
        "edge_high": high if high is not None else math.nan,
    }
    return [
        shared
        | {
            "rate": rate,
            "outcome": outcome,
            "x": features.at(rate).values,
            "one_step_change": _at(points, rate),
        }
        for rate, outcome in zip(run.rates, judged.outcomes, strict=True)
    ]


def _at(points: Sequence[tuple[float, float]], rate: float) -> float:
    """The change of the loss at a rate, interpolated in its logarithm; held beyond the ends."""
    finite = [(math.log10(r), change) for r, change in points if math.isfinite(change)]
    if not finite:
        return math.nan
    return float(np.interp(math.log10(rate), *zip(*finite, strict=True)))


def shipped_measurements() -> Path:
    """Where the measurements beside the shipped collection lie: a JSON document a line."""
    return Path(str(files("rksp.datasets") / "runs" / "measurements.jsonl.xz"))


def pack_measurements(folder: Path, output: Path, *, base: Path | None = None) -> int:
    """Packs a folder of measurements, sorted by ladder, into one compressed file.

    Args:
        base: A packed file whose measurements are kept beside the folder's, which win.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(output)
    documents = unpack_measurements(base) if base is not None else {}
    for path in sorted(folder.glob("*.json")):
        document = read_measurement(path)
        documents[document["ladder"]] = document
    lines = [documents[key] for key in sorted(documents)]
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    atomic_write(output, lzma.compress(text.encode(), preset=9))
    return len(lines)


def unpack_measurements(path: Path | None = None) -> dict[str, dict[str, object]]:
    """Measurements by ladder id; `path` None reads the shipped ones.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    path = path or shipped_measurements()
    try:
        packed = lzma.LZMADecompressor()
        # To a limit: some kilobytes of zeros can unfold into gigabytes.
        content = packed.decompress(read_limited(path, _LARGEST), max_length=_MOST_UNPACKED)
        if not packed.eof:
            raise ValueError(f"it is cut off, or unpacks to more than {_MOST_UNPACKED >> 20} MiB")
        documents = [json.loads(line) for line in content.decode().splitlines()]
        return {document["ladder"]: document for document in documents}
    except (InputError, lzma.LZMAError, ValueError, LookupError, TypeError) as error:
        raise ArtifactError(f"{path.name} holds no measurements: {error}.") from error
