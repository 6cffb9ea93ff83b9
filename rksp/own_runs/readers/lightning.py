"""`metrics.csv` of Lightning's CSVLogger (lightning 2), with `hparams.yaml` beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rksp.own_runs.readers.files import head_of, settings_beside
from rksp.own_runs.run import Curve, RawRun, RunReader, number_of
from rksp.recipe_files.rows import read_rows


def _matches(path: Path) -> bool:
    if path.name != "metrics.csv":
        return False
    columns = head_of(path).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    return "step" in columns and "epoch" in columns


def _read(path: Path) -> Iterator[RawRun]:
    points: dict[str, dict[int, float]] = {}
    for row in read_rows(path):
        step = number_of(row.get("step"))
        if step is None or not 0 <= step < 2**53:
            continue
        for name, value in row.items():
            known = number_of(value)
            if known is not None and name not in ("step", "epoch"):
                points.setdefault(_plain(name), {})[int(step)] = known
    folder = path.parent
    name = (
        f"{folder.parent.name}/{folder.name}" if folder.name.startswith("version_") else folder.name
    )
    yield RawRun(
        name=name,
        file=path,
        said=settings_beside(folder),
        curves={name: Curve.of(found) for name, found in points.items()},
    )


def _plain(name: str) -> str:
    """Return `learning_rate` for what LearningRateMonitor logs, such as lr-AdamW."""
    return "learning_rate" if name == "lr" or name.startswith("lr-") else name


READER = RunReader(name="Lightning's metrics", matches=_matches, read=_read)
