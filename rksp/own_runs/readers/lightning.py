"""`metrics.csv` of Lightning's CSVLogger (lightning 2), with `hparams.yaml` beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rksp.own_runs.readers.files import head_of, settings_beside
from rksp.own_runs.run import Points, RawRun, RunReader
from rksp.recipe_files.rows import read_rows

_PLACES = ("step", "epoch")  # columns that say when the others were logged


def _matches(path: Path) -> bool:
    if path.name != "metrics.csv":
        return False
    columns = head_of(path).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    return "step" in columns and "epoch" in columns


def _read(path: Path) -> Iterator[RawRun]:
    points = Points()
    for row in read_rows(path):
        logged = {_plain(name): value for name, value in row.items() if name not in _PLACES}
        points.add(row.get("step"), logged)
    folder = path.parent
    name = (
        f"{folder.parent.name}/{folder.name}" if folder.name.startswith("version_") else folder.name
    )
    yield RawRun(
        name=name,
        file=path,
        said=settings_beside(folder),
        curves=points.curves(),
    )


def _plain(name: str) -> str:
    """Return `learning_rate` for what LearningRateMonitor logs, such as lr-AdamW."""
    return "learning_rate" if name == "lr" or name.startswith("lr-") else name


READER = RunReader(name="Lightning's metrics", matches=_matches, read=_read)
