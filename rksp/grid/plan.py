"""From a sweep file, overrides or rows to the cells of a grid."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rksp.errors import InputError
from rksp.grid.axes import Axis, Choice, Range, canonical, read_override, sweep_axis
from rksp.grid.cell import Cell
from rksp.grid.rows import ROWS, read_rows
from rksp.recipe import Recipe
from rksp.recipe_files.document import Document, Unresolved, load_document, parse_file
from rksp.recipe_files.names import optimizer_of, precision_of
from rksp.recipe_files.origin import Draft, RecipeFile
from rksp.recipe_files.registry import recognize

MAX_CELLS = 10_000
Point = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What every cell starts from: a target, settings of it, and recipe fields or a run file."""

    target: str | None = None
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict)
    recipe: Mapping[str, object] = dataclasses.field(default_factory=dict)
    document: Document | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlan:
    """The cells of a grid in order, without repetitions, and what the reader should know."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def read_plan(
    source: str,
    assignments: Sequence[str] = (),
    *,
    target: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    ignore: Sequence[str] = (),
    max_cells: int = MAX_CELLS,
) -> GridPlan:
    """Reads a grid.

    Args:
        source: A sweep (W&B YAML), a grid (`grid:` or a mapping of lists, YAML or JSON), rows
            (CSV, JSON Lines, Parquet), a trainer's run file to vary, or a target by name.
        assignments: Hydra-style overrides that add axes or replace the file's.
        target: The model, where the file has none.
        samples: Draw this many cells; needed where a range is given.
        seed: Of the drawing.
        ignore: Names of the file that are neither recipe nor model.
        max_cells: More are refused.

    Raises:
        InputError: Something cannot be read; one sentence.
    """
    path = Path(source)
    base, blocks, points, notes = Base(), [{}], None, []
    if path.suffix.lower() in ROWS:
        points, notes = read_rows(path)
    elif path.is_file():
        base, blocks, notes, samples = _file(path, samples)
    elif path.suffix in (".yaml", ".yml", ".toml"):
        raise InputError(f"There is no file {source}.")
    else:
        base = Base(target=source)
    extra = dict(read_override(text) for text in assignments)
    if points is None:
        blocks = [dict(block) | extra for block in blocks]
        points = _points(blocks, samples=samples, seed=seed, max_cells=max_cells)
    else:
        points = [p | q for p in points for q in _product(extra, max_cells)]
    if len(points) > max_cells:
        raise InputError(f"The grid has {len(points)} cells; raise --max-cells from {max_cells}.")
    if target is not None:
        base = dataclasses.replace(base, target=target)
    points = [{k: v for k, v in point.items() if k not in ignore} for point in points]
    cells = [make_cell(base, point, source) for point in points]
    unique = {_identity(cell): cell for cell in reversed(cells)}
    kept = [cell for cell in cells if unique[_identity(cell)] is cell]
    if len(kept) < len(cells):
        notes.append(f"{len(cells) - len(kept)} cells repeat others and are left out.")
    return GridPlan(cells=tuple(kept), notes=tuple(notes))


def _identity(cell: Cell) -> tuple[object, ...]:
    return cell.model, cell.seed, cell.recipe


def _file(
    path: Path, samples: int | None
) -> tuple[Base, list[Mapping[str, Axis]], list[str], int | None]:
    """A sweep, a grid or a run file: the base, blocks of axes, notes, cells to draw."""
    document = _load(path)
    if document.has("parameters"):
        return _sweep(document, samples)
    if document.has("grid") or document.has("zip"):
        base = _stated_base(document)
        blocks = _blocks(document.data.get("grid") or {}, path)
        zipped = document.data.get("zip")
        return base, [b | _zip(zipped, path) for b in blocks], [], samples
    if document.has("model_type"):
        return Base(target=str(path)), [{}], [], samples
    if any(isinstance(value, list) for value in document.data.values()):
        try:
            recognize(document)
        except InputError:
            return Base(), _blocks(document.data, path), [], samples
    recognize(document)
    return Base(document=document), [{}], [], samples


def _load(path: Path) -> Document:
    """A document; a list of mappings at the top is a union of grids."""
    syntax, data, lines = parse_file(path)
    if isinstance(data, list):
        return Document(path=path, syntax=syntax, data={"grid": data})
    if not isinstance(data, Mapping):
        raise InputError(f"{path} holds a {type(data).__name__}, no grid.")
    return Document(path=path, syntax=syntax, data=data, lines=lines)


def _stated_base(document: Document) -> Base:
    data = document.data
    known = {"grid", "zip", "base", "target", "set", "recipe", "seed"}
    unknown = set(data) - known
    if unknown:
        raise InputError(
            f"{document.path}: {sorted(unknown)[0]!r} is no part of a grid; there are "
            f"{', '.join(sorted(known))}."
        )
    run = data.get("base")
    there = load_document(document.path.parent / str(run)) if run else None
    return Base(
        target=data.get("target"),
        overrides=data.get("set") or {},
        recipe=data.get("recipe") or {},
        document=there,
        seed=int(data.get("seed") or 0),
    )


def _sweep(
    document: Document, samples: int | None
) -> tuple[Base, list[Mapping[str, Axis]], list[str], int | None]:
    axes: dict[str, Axis] = {}
    _sweep_axes(document.data["parameters"], "", axes)
    method = str(document.data.get("method", "grid"))
    notes = []
    if method == "bayes":
        notes.append("The sweep is adaptive (bayes); its cells are drawn at random here.")
    if method in ("random", "bayes") and samples is None:
        if any(isinstance(axis, Range) for axis in axes.values()):
            raise InputError(f"{document.path} draws its cells ({method}); give --samples N.")
        notes.append("The sweep draws its cells, and all of its choices can be listed: they are.")
    return Base(), [axes], notes, None if method == "grid" else samples


def _sweep_axes(parameters: object, prefix: str, axes: dict[str, Axis]) -> None:
    if not isinstance(parameters, Mapping):
        raise InputError(f"Sweep parameters {prefix or 'of the file'} are no mapping.")
    for name, definition in parameters.items():
        if not isinstance(definition, Mapping):
            raise InputError(f"Sweep parameter {prefix}{name} has neither values nor a range.")
        if "parameters" in definition:
            _sweep_axes(definition["parameters"], f"{prefix}{name}.", axes)
        else:
            axes[f"{prefix}{name}"] = sweep_axis(f"{prefix}{name}", definition)


def _blocks(grid: object, path: Path) -> list[Mapping[str, Axis]]:
    """A mapping of lists is a product; a list of mappings is the union of theirs."""
    parts = grid if isinstance(grid, list) else [grid]
    if not all(isinstance(part, Mapping) for part in parts):
        raise InputError(f"{path}: a grid is a mapping of lists, or a list of such mappings.")
    return [{str(name): _axis(str(name), value) for name, value in p.items()} for p in parts]


def _axis(name: str, value: object) -> Axis:
    if isinstance(value, Mapping):
        return sweep_axis(name, value)
    return Choice(values=tuple(value) if isinstance(value, list) else (value,))


def _zip(zipped: object, path: Path) -> dict[str, Axis]:
    """Axes that move together become one axis of tuples."""
    if zipped is None:
        return {}
    if not isinstance(zipped, Mapping) or len({len(v) for v in zipped.values()}) != 1:
        raise InputError(f"{path}: the lists under 'zip' must be equally long.")
    names = tuple(str(name) for name in zipped)
    return {"\0".join(names): Choice(values=tuple(zip(*zipped.values(), strict=True)))}


def _points(
    blocks: Iterable[Mapping[str, Axis]], *, samples: int | None, seed: int, max_cells: int
) -> list[Point]:
    points: list[Point] = []
    source = random.Random(seed)
    for block in blocks:
        if samples is not None:
            points += [
                _unzipped({name: axis.draw(source) for name, axis in block.items()})
                for _ in range(samples)
            ]
        else:
            points += _product(block, max_cells)
    return points


def _product(block: Mapping[str, Axis], max_cells: int) -> list[Point]:
    for name, axis in block.items():
        if isinstance(axis, Range):
            raise InputError(f"{name} is a range, which a grid cannot list; give --samples N.")
    size = math.prod(len(axis.values) for axis in block.values())
    if size > max_cells:
        raise InputError(f"The grid has {size} cells; raise --max-cells from {max_cells}.")
    values = itertools.product(*(axis.values for axis in block.values()))
    return [_unzipped(dict(zip(block, row, strict=True))) for row in values]


def _unzipped(point: Point) -> Point:
    flat: dict[str, object] = {}
    for name, value in point.items():
        names = name.split("\0")
        flat |= dict(zip(names, value, strict=True)) if len(names) > 1 else {name: value}
    return flat


def make_cell(base: Base, point: Point, source: str) -> Cell:
    """One cell: the base with a point's values in place.

    Args:
        base: What does not vary.
        point: Values by the names that the user gave.
        source: Of the grid, for messages.

    Raises:
        InputError: There is no model, or a value cannot be used.
    """
    target, seed = base.target, base.seed
    overrides = dict(base.overrides)
    fields = {canonical(name)[1] or name: value for name, value in base.recipe.items()}
    data = base.document.data if base.document is not None else None
    for name, value in point.items():
        kind, key = canonical(name)
        if data is not None and base.document.has(name):
            data = _placed(data, name, value)
        elif kind == "target":
            target = str(value)
        elif kind == "seed":
            seed = int(value)
        elif kind == "recipe":
            fields[key] = _in_our_words(key, value)
        else:
            overrides[key] = value
    if fields.get("max_grad_norm") == 0:
        fields["max_grad_norm"] = None
    if data is not None:
        read = _read(dataclasses.replace(base.document, data=data))
        if target is None and read.target is not None:
            target, overrides = read.target.name, dict(read.target.overrides) | overrides
        if target is None:
            raise InputError(f"{source}: {read.target_missing}")
        recipe = read.recipe(fields)
    else:
        recipe = Recipe.parse(fields)
    if target is None:
        raise InputError(f"{source} names no model; give --target, or an axis called target.")
    return Cell(target=target, overrides=overrides, seed=seed, recipe=recipe, labels=dict(point))


def _in_our_words(field: str, value: object) -> object:
    """Names of optimizers and precisions as sweeps write them; what is unknown stays as it is."""
    if field == "optimizer":
        return optimizer_of(str(value))[0] or value
    if field == "precision":
        return precision_of(str(value)) or value
    return value


def _read(document: Document) -> RecipeFile:
    reader = recognize(document)
    draft = Draft(document, reader.title)
    reader.read(draft)
    return draft.finish()


def _placed(data: Mapping[str, object], name: str, value: object) -> Mapping[str, object]:
    """The settings with one replaced, by its dotted name."""
    first, _, rest = name.partition(".")
    actual = next(k for k in data if str(k).replace("-", "_") == first.replace("-", "_"))
    if not rest:
        return {**data, actual: value}
    inner = data[actual]
    assert isinstance(inner, Mapping) and not isinstance(inner, Unresolved)
    return {**data, actual: _placed(inner, rest, value)}
