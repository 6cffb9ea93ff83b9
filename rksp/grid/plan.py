"""Make the cells of a grid from a sweep file, overrides or rows."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rksp.grid.axes import (
    Axis,
    Choice,
    Columns,
    Range,
    axis_of,
    flat_parameters,
    read_override,
    sweep_axis,
)
from rksp.grid.cell import Base, Cell, Point, make_cell, seed_of
from rksp.ground.errors import InputError
from rksp.ground.factory import refuse_factory
from rksp.ground.files import absent
from rksp.ground.flags import checked, flags_of
from rksp.ground.model import Strict
from rksp.models.names import path_of
from rksp.recipe import Recipe
from rksp.recipe_files.columns import ROWS, canonical, read_rows
from rksp.recipe_files.parse.content import parse_file
from rksp.recipe_files.parse.document import Document, load_document
from rksp.recipe_files.said.origin import RecipeFile

MAX_CELLS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlan:
    """The cells of a grid in order, without repetitions, and what a reader should know.

    Attributes:
        cells: The cells.
        notes: What was left out or read otherwise, a sentence each.
        typed: The targets that came from the command line or from Python; a factory is run only if
            it is one of these.
        read: The run file that the cells vary, as it stands.
    """

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    typed: frozenset[str] = frozenset()
    read: RecipeFile | None = None

    @property
    def assumed(self) -> dict[str, str]:
        """What nobody decided about the cells' recipes, in words by field."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            for name, words in cell.assumed.items():
                if words not in found.setdefault(name, []):
                    found[name].append(words)
        return {name: " or ".join(words) for name, words in found.items()}


def read_plan(
    source: str | Mapping[str, object] | Sequence[Mapping[str, object]],
    assignments: Sequence[str] = (),
    *,
    target: str | None = None,
    overrides: Mapping[str, object] | None = None,
    recipe: Mapping[str, object] | None = None,
    samples: int | None = None,
    seed: int = 0,
    ignore: Sequence[str] = (),
    devices: int | None = None,
    trainer: str | None = None,
    allow_hub: bool = False,
) -> GridPlan:
    """Read a grid, such as `read_plan({"lr": [1e-4, 1e-3], "n_layer": [2, 4]}, target="gpt2")`.

    Args:
        source: A sweep (W&B YAML), a grid (`grid:` or a mapping of lists, YAML or JSON), rows
            (CSV, JSON Lines, Parquet), a trainer's run file to vary, or a target by name. In
            Python also a mapping of lists (or of distributions of W&B), or a list of such
            mappings: the union of their products, so that axes may depend on each other.
        assignments: Hydra-style overrides that add axes or replace the file's.
        target: The model, if the file names none.
        overrides: Settings of the model that no cell varies; they replace those of the file.
        recipe: Fields that no cell varies; they replace those of the file.
        samples: The number of cells to draw; required if an axis is a range.
        seed: The seed of the drawing.
        ignore: Names in the file that are neither recipe nor model.
        devices: The number of devices of the run, for batch sizes given per device.
        trainer: The trainer whose format the run file has; recognized by default.
        allow_hub: Fetch the configuration of a Hub model, to know the settings among the columns.

    Raises:
        InputError: Something cannot be read.
    """
    base, rows, notes = Base(), None, list[str]()
    blocks: list[Mapping[str, Axis]] = [{}]
    typed = {target} if target else set()
    named, path = ("The grid", Path()) if not isinstance(source, str) else (source, Path(source))
    if not isinstance(source, str):
        blocks = _blocks(source, named)
        for block in blocks:
            typed.update(_targets(block))
    elif path.suffix.lower() in ROWS:
        rows = read_rows(path)
    elif path.is_file() and path_of(source, allow_hub=allow_hub) is not None:
        base, blocks, notes = _file(path, samples, trainer)
    elif path.suffix in (".yaml", ".yml", ".toml"):
        raise InputError(absent(source))
    elif "=" in source and not target:
        raise InputError(f"{source!r} is an axis, and the target is missing: grid gpt2 {source}.")
    else:
        base = Base(target=source)
        typed.add(source)
    base = dataclasses.replace(
        base,
        target=target or base.target,
        overrides={**base.overrides, **(overrides or {})},
        devices=devices,
        trainer=trainer,
        recipe={**base.recipe, **(recipe or {})},
    )
    extra = _extra(assignments)
    typed.update(_targets(extra))
    if rows is None:
        blocks = [dict(block) | extra for block in blocks]
        points = _points(blocks, samples=samples, seed=seed)
    else:
        columns = Columns(allow_hub=allow_hub)
        points = [
            columns.chosen(row, cast(Any, added.get("target", base.target))) | dict(added)
            for row in rows
            for added in _product(extra)
        ]
        notes = columns.notes()
    points = [{k: v for k, v in point.items() if k not in ignore} for point in points]
    _check_fixed(recipe or {}, overrides or {}, points)
    return _plan(base, points, named, typed=typed, notes=notes)


def _extra(assignments: Sequence[str]) -> dict[str, Axis]:
    found: dict[str, Axis] = {}
    for name, axis in map(read_override, assignments):
        twin = next((one for one in found if canonical(one) == canonical(name)), None)
        if twin is not None:
            raise InputError(f"The axes {twin} and {name} set the same; leave one out.")
        found[name] = axis
    return found


def _targets(axes: Mapping[str, Axis]) -> list[str]:
    return [str(value) for value in getattr(axes.get("target"), "values", ())]


def _check_fixed(
    recipe: Mapping[str, object], overrides: Mapping[str, object], points: Sequence[Point]
) -> None:
    for name in dict.fromkeys(name for point in points for name in point):
        kind, field = canonical(name)
        if kind == "recipe" and field in recipe:
            flag = flags_of(Recipe)[field].name
            raise InputError(f"{flag} and the axis {name} set the same field; leave one out.")
        if kind == "set" and field in overrides:
            raise InputError(f"--set {field} and the axis {name} set the same; leave one out.")


def _plan(
    base: Base,
    points: Sequence[Point],
    source: str,
    *,
    typed: Collection[str],
    notes: Sequence[str] = (),
) -> GridPlan:
    _check_count(len(points))
    cells: dict[tuple[object, ...], Cell] = {}
    for point in points:
        cell = make_cell(base, point, source)
        if cell.target not in typed:
            refuse_factory(cell.target, source)
        cells.setdefault((cell.model, cell.seed, cell.has_weights, cell.recipe), cell)
    read = base.read()
    said = [*notes, *base.notes(read)]
    if len(cells) < len(points):
        said.append(f"{len(points) - len(cells)} cells are left out because they repeat others.")
    return GridPlan(
        cells=tuple(cells.values()), notes=tuple(said), typed=frozenset(typed), read=read
    )


def _check_count(count: int) -> None:
    if count > MAX_CELLS:
        raise InputError(
            f"The grid has {count:,} cells, above the {MAX_CELLS:,} of a grid; draw some with "
            "--samples N."
        )


def _file(
    path: Path, samples: int | None, trainer: str | None
) -> tuple[Base, list[Mapping[str, Axis]], list[str]]:
    """Read a sweep, a grid or a run file.

    Returns:
        The base, the blocks of axes, and the notes.
    """
    from rksp.recipe_files.registry import matches_any, reader_for, recognize

    document = load_grid_file(path)
    if document.has("parameters"):
        axes, notes = _sweep(document, samples)
        return Base(), [axes], notes
    sweep = document.find("hydra.sweeper.params")
    if sweep is not None and isinstance(sweep.value, Mapping):  # the rest is one run
        axes = dict(read_override(f"{name}={value}") for name, value in sweep.value.items())
        rest = {key: value for key, value in document.data.items() if key != "hydra"}
        run = dataclasses.replace(document, data=rest)
        return Base(document=run if matches_any(run) else None), [axes], []
    if document.has("grid") or document.has("zip"):
        base = _stated_base(document)
        blocks = _blocks(document.data.get("grid") or {}, path)
        zipped = document.data.get("zip")
        return base, [{**block, **_zip(zipped, path)} for block in blocks], []
    if document.has("model_type"):
        return Base(target=str(path)), [{}], []
    if trainer is not None:
        return Base(document=document), [{}], []
    if any(isinstance(value, list) for value in document.data.values()):
        try:
            recognize(document)
        except InputError:
            return Base(), _blocks(document.data, path), []
    reader_for(document)
    return Base(document=document), [{}], []


def load_grid_file(path: Path) -> Document:
    """Load a document; a list of mappings at the top level is a union of grids.

    Raises:
        InputError: The file cannot be read, or holds no grid.
    """
    if path.suffix.lower() not in (".yaml", ".yml", ".json", ".toml", ".py"):
        return load_document(path)
    syntax, data, lines, *_ = parse_file(path)
    if isinstance(data, list):
        return Document(path=path, syntax=syntax, data={"grid": data})
    if not isinstance(data, Mapping):
        raise InputError(f"{path} holds a {type(data).__name__}, which is not a grid.")
    return Document(path=path, syntax=syntax, data=data, lines=lines)


class _Stated(Strict):
    grid: object = None
    zip: object = None
    base: object = None
    target: str | None = None
    set: Mapping[str, object] | None = None
    recipe: Mapping[str, object] | None = None
    seed: object = None


def _stated_base(document: Document) -> Base:
    known = {str(name): value for name, value in document.data.items()}
    said = {name: f"{document.path}: {name!r}" for name in known}
    stated = checked(_Stated, known, noun=f"grid in {document.path}", sources=said)
    there = load_document(document.path.parent / str(stated.base)) if stated.base else None
    return Base(
        target=stated.target,
        overrides=stated.set or {},
        recipe=stated.recipe or {},
        document=there,
        seed=seed_of(stated.seed or 0),
    )


def _sweep(document: Document, samples: int | None) -> tuple[Mapping[str, Axis], list[str]]:
    parameters = flat_parameters(document.data["parameters"])
    axes = {name: sweep_axis(name, definition) for name, definition in parameters.items()}
    method = str(document.data.get("method", "grid"))
    notes = []
    if method == "bayes":
        notes.append("The sweep is adaptive (bayes); rksp draws its cells at random.")
    if method in ("random", "bayes") and samples is None:
        if any(isinstance(axis, Range) for axis in axes.values()):
            raise InputError(f"{document.path} draws its cells ({method}); give --samples N.")
        notes = ["The sweep draws its cells; rksp lists all of its choices instead."]
    return axes, notes


def _blocks(grid: object, source: object) -> list[Mapping[str, Axis]]:
    """Convert a mapping of lists to one block of axes, or a list of mappings to one block each."""
    parts = grid if isinstance(grid, list) else [grid]
    grids = [part for part in parts if isinstance(part, Mapping)]
    if len(grids) < len(parts):
        raise InputError(f"{source}: a grid is a mapping of lists, or a list of such mappings.")
    return [{str(name): axis_of(str(name), value) for name, value in p.items()} for p in grids]


def _zip(zipped: object, path: Path) -> dict[str, Axis]:
    if zipped is None:
        return {}
    named = zipped if isinstance(zipped, Mapping) else {}
    lists = list(named.values())
    if not all(isinstance(part, list) for part in lists) or len(set(map(len, lists))) != 1:
        raise InputError(f"{path}: 'zip' must hold lists by name, all of the same length.")
    return {"\0".join(map(str, named)): Choice(values=tuple(zip(*lists, strict=True)))}


def _points(blocks: Sequence[Mapping[str, Axis]], *, samples: int | None, seed: int) -> list[Point]:
    """Return all points of every block, or `samples` of them, each drawn from a random block."""
    if samples is None:
        return [point for block in blocks for point in _product(block)]
    _check_count(samples)
    source = random.Random(seed)
    drawn = []
    for _ in range(samples):
        block = blocks[source.randrange(len(blocks))] if len(blocks) > 1 else blocks[0]
        drawn.append(_unzipped({name: axis.draw(source) for name, axis in block.items()}))
    return drawn


def _product(block: Mapping[str, Axis]) -> list[Point]:
    for name, axis in block.items():
        if isinstance(axis, Range):
            raise InputError(f"{name} is a range, and a grid cannot list it; give --samples N.")
    lists = [axis.values for axis in block.values() if isinstance(axis, Choice)]
    _check_count(math.prod(map(len, lists)))
    values = itertools.product(*lists)
    return [_unzipped(dict(zip(block, row, strict=True))) for row in values]


def _unzipped(point: Point) -> Point:
    flat: dict[str, object] = {}
    for name, value in point.items():
        names = name.split("\0")
        flat |= dict(zip(names, cast(Any, value), strict=True)) if len(names) > 1 else {name: value}
    return flat
