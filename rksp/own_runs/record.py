"""Records of rksp's own runs, and what they say of the model, to be read without it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr, TypeAdapter, ValidationError

from rksp.assessment.fine_tuning import tuned_facts, tuned_inputs
from rksp.assessment.risk import declared_inputs, edge_inputs
from rksp.classifiers.edge_inputs import EdgeInputs, Norm
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.files import check_link, read_text, write_failure
from rksp.ground.reading import parse_json
from rksp.ground.versions import version
from rksp.models.declared import Declared
from rksp.models.families import lineage_of
from rksp.recipe import Recipe
from rksp.recipe.start import SCRATCH, Start

PREFIX = "rksp."  # of the columns of a record that hold the shape
Size = Annotated[int, Field(gt=0, lt=2**40, strict=True)]
# What is asked of trained weights alone, and is no fact of `EdgeInputs`.
_OF_TUNING = ("is_of_tuning", "task", "kind", "parameters", "entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The facts of a model that its rates depend on; see `EdgeInputs` and `FineTuningInputs`.

    Attributes:
        family: The model type; empty for an own module.
        is_of_tuning: The run started from trained weights.
        task: What the model predicts; empty where nobody says.
        kind: Such as decoder; empty where nobody says.
        parameters: Without the embeddings; None where the configuration does not tell.
        entropy: Of the labels of a classifier, in nats; None where nobody says.
    """

    width: Size
    depth: Size
    vocabulary: Size
    norm: Norm = "pre"
    family: StrictStr = ""
    is_parallel: StrictBool = False
    normalizes_branches: StrictBool = False
    normalizes_qk: StrictBool = False
    masks: StrictBool = False
    init_std: Annotated[float, Field(gt=0, lt=1e6, strict=True)] | None = None
    is_of_tuning: StrictBool = False
    task: StrictStr = ""
    kind: StrictStr = ""
    parameters: Size | None = None
    entropy: Annotated[float, Field(ge=0, lt=20, strict=True)] | None = None

    @property
    def start(self) -> Start:
        """How the run started."""
        kind = "elsewhere" if self.is_of_tuning else "scratch"
        return Start(kind=kind, because="its record says so")

    @classmethod
    def of(cls, inputs: EdgeInputs) -> Shape:
        """Return the shape of a model from random weights."""
        return cls(**_facts(inputs))

    @classmethod
    def read(cls, said: Mapping[str, object]) -> Shape | None:
        """Return the shape in a record; None if it holds none.

        Raises:
            InputError: It is damaged.
        """
        if f"{PREFIX}width" not in said:
            return None
        names = {f"{PREFIX}{field.name}": field.name for field in fields(cls)}
        names[f"{PREFIX}is_trained"] = "is_of_tuning"  # as it was written up to 0.11
        found = {name: said[column] for column, name in names.items() if column in said}
        try:
            return TypeAdapter(cls).validate_python(found)
        except ValidationError:
            raise InputError("its columns rksp.* do not describe a model") from None

    def columns(self) -> dict[str, object]:
        """Return the columns of a record."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f"{PREFIX}{name}": value for name, value in known.items() if value is not None}

    def inputs(self, recipe: Recipe) -> EdgeInputs:
        """Return the inputs of the model of the edge."""
        return edge_inputs(recipe, **_facts(self))

    def tuned(self, recipe: Recipe) -> FineTuningInputs | None:
        """Return the inputs of the model of fine-tuning; None where the kind is not known."""
        if not self.kind:
            return None
        return tuned_inputs(
            recipe,
            self.task,
            kind=self.kind,
            family=lineage_of(self.family),
            parameters=self.parameters,
        )


def _facts(known: Shape | EdgeInputs) -> dict[str, Any]:
    names = (field.name for field in fields(Shape) if field.name not in _OF_TUNING)
    return {name: getattr(known, name) for name in names}


def shape_of(
    config: object, task: str | None, recipe: Recipe, start: Start = SCRATCH
) -> Shape | None:
    """Return the shape that a configuration declares; None where it does not."""
    declared = Declared(config, task)
    try:
        found = Shape.of(declared_inputs(declared, recipe))
    except NotCovered:
        return None
    tuned = tuned_facts(declared, None)
    return replace(
        found,
        is_of_tuning=not start.is_scratch,
        task=task or "",
        kind=tuned["kind"],
        parameters=tuned["parameters"],
    )


Row = dict[str, object]
VERSION = f"{PREFIX}version"  # of the rksp that wrote a row, from 0.12 on
# What the watch of 0.11 wrote of every run without having seen it: the defaults of a recipe.
UNSEEN = frozenset(
    ("schedule", "warmup_steps", "min_lr_ratio", "max_grad_norm", "decay_steps", "decay_shape")
)


def is_of_old_watch(row: Mapping[str, object]) -> bool:
    """Tell whether the watch of rksp 0.11 wrote a row: it knew no seed, and named no version."""
    own = {"name", "state", "final_loss", "min_lr_ratio"}
    return own <= row.keys() and "seed" not in row and VERSION not in row


def row_of(
    name: str,
    recipe: Recipe,
    shape: Shape | None,
    *,
    final_loss: float,
    state: Literal["finished", "unfinished", "diverged"],
    seed: int | None,
    seen: Collection[str] | None = None,
) -> Row:
    """Return the record of one run.

    Args:
        name: For people.
        recipe: As trained, with its rate.
        shape: Of its model; without one a reader must know the model.
        final_loss: Mean over its last tenth, in nats; not finite where it has none.
        state: How it ended.
        seed: Of its initialization and data; None where nobody knows it.
        seen: Names of the fields of the recipe that are known to be so; None for all.
    """
    fields = recipe.model_dump(mode="json", exclude={"rows"})
    if seen is not None:
        fields = {name: value for name, value in fields.items() if name in seen}
    return {
        "name": name,
        VERSION: version("rksp"),
        "state": state,
        "final_loss": final_loss if math.isfinite(final_loss) else "nan",
        **({} if seed is None else {"seed": seed}),
        **{field: value for field, value in fields.items() if value not in (None, [])},
        **({} if shape is None else shape.columns()),
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
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = "\n" + line  # a line that a killed process began
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_failure(path, error) from error


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
            row = parse_json(line, path)
        except InputError:
            continue  # a line that a killed process began
        if isinstance(row, dict):
            rows.append(row)
    if not rows and path.stat().st_size:
        raise InputError(f"{path} is no file of runs; give another name for the record.")
    return rows
