"""A file of runs that rksp itself writes, one JSON object a line, and reads as a table of runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import check_link, read_text, write_failure
from rksp.own_runs.shape import Shape
from rksp.recipe import Recipe

Row = dict[str, object]


def row_of(
    name: str,
    recipe: Recipe,
    shape: Shape | None,
    *,
    final_loss: float,
    state: Literal["finished", "unfinished", "diverged"],
    seed: int | None,
    **more: object,
) -> Row:
    """Return the record of one run.

    Args:
        name: For people.
        recipe: As trained, with its rate.
        shape: Of its model; without one a reader must know the model.
        final_loss: Mean over its last tenth, in nats; not finite where it has none.
        state: How it ended.
        seed: Of its initialization and data; None where nobody knows it.
        **more: Further columns.
    """
    fields = recipe.model_dump(mode="json", exclude={"rows"})
    return {
        "name": name,
        "state": state,
        "final_loss": final_loss if math.isfinite(final_loss) else "nan",
        **({} if seed is None else {"seed": seed}),
        **{field: value for field, value in fields.items() if value not in (None, [])},
        **({} if shape is None else shape.columns()),
        **more,
    }


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Add a line to a file of runs, whole: a run that ended is never lost with the process.

    Raises:
        InputError: The file cannot be written at this path.
        Incomplete: The disk is full or failed.
    """
    check_link(path)
    line = json.dumps(row, allow_nan=False) + "\n"
    try:
        with path.open("ab+") as file:
            if file.tell() and not _ends_line(file):
                line = "\n" + line  # a line that a killed process began
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_failure(path, error) from error


def _ends_line(file) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_record(path: Path) -> list[Row]:
    """Read the whole lines of a file of runs; none if there is no file yet.

    Raises:
        InputError: It cannot be read.
    """
    if not path.exists():
        return []
    rows = []
    for line in read_text(path, PAST_RUN).splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that a killed process began
        if isinstance(row, dict):
            rows.append(row)
    if not rows and path.stat().st_size:
        raise InputError(f"{path} is no file of runs; give another name for the record.")
    return rows
