"""`rksp grid`: judge a whole sweep, with one profile per distinct initialization."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli import shared_options as shared
from rksp.cli.mistakes import is_store, refuse_other
from rksp.cli.options import (
    Given,
    NoCache,
    Panel,
    brief,
    flag_names,
    refuse_unused,
    with_options,
)
from rksp.cli.process import goes_on_from, live_progress, told_if_interrupted
from rksp.cli.rendering import conclude, emit, intact, outputs
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Software
from rksp.ground.allocator import collector_paused, loading
from rksp.ground.budgets import reading
from rksp.ground.errors import InputError
from rksp.ground.files import absent
from rksp.ground.flags import assignments
from rksp.ground.text import one_line
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.documents.terms import Gate
    from rksp.grid.engines.base import Engine
    from rksp.grid.group import Options
    from rksp.grid.plan import GridPlan
    from rksp.grid.run import GridResult
    from rksp.report.formats import Output

_STORES = (".db", ".sqlite", ".sqlite3")
_FILES = (*_STORES, ".yaml", ".yml", ".json", ".jsonl", ".csv", ".parquet", ".toml", ".html")
_MOST_SHOWN, _FIRST = 50, 20  # cells of a terminal page; beyond the first, the second
_COUNT = re.compile(r"\d+ of \d+ cells")  # a passing line; all others stay
_MEASURE = Panel(
    title="Measurement",
    leave_out=("seed", "probe", "blocks", "variant", "rank", "spectra"),
    defaults={"threads": 1},
    helps={"threads": "Threads of each worker."},
)
_VIEW = Panel(
    title="Output",
    helps={
        "fail_on": "A cell is a risk from this P(failed) on; or give error, warning or never. With "
        "unknown, exit with 4 where rksp cannot tell of one. Repeatable."
    },
)


@with_options
@brief(
    "source axes target warmup_steps max_steps batch_size optimizer overrides samples top where "
    "output export fail_on"
)
def grid(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A W&B sweep, a grid (YAML, JSON), rows (CSV, JSON Lines, Parquet), a trainer's "
            "run file to vary, a target, or a store to show."
        ),
    ],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[
        shared.RunOptions,
        Panel(title="Recipe", leave_out=("recipe_file", "is_pretrained", "is_strict")),
    ],
    measure: Annotated[MeasureOptions, _MEASURE],
    model: Annotated[shared.ModelOptions, Panel(title="Model", leave_out=("task",))],
    risk: Annotated[shared.RiskOptions, Panel(title="Measurement")],
    cells: Annotated[shared.PlanOptions, Panel(title="Cells")],
    work: Annotated[shared.EngineOptions, Panel(title="Workers")],
    view: Annotated[shared.ViewOptions, _VIEW],
    axes: Annotated[
        list[str] | None,
        typer.Argument(help="Axes: lr=1e-4,3e-4 n_layer=range(2,9,2) lr=logspace(-4,-2,9)."),
    ] = None,
    *,
    software: Annotated[Software, Panel(title="Recipe")],
    no_cache: NoCache = False,
) -> int:
    """Rank all settings of a grid by risk; exit with 1 if one is at or above the bar."""
    with loading():
        from rksp.cli.run_files import known_faults
        from rksp.documents.terms import Gate
        from rksp.grid.group import Options
        from rksp.grid.run import read_grid
        from rksp.grid.table import check_export, read_condition

    for condition in view.where:  # before the work starts
        read_condition(condition)
    for path in view.export:
        check_export(path)
    store, files = _files(view.output)
    gate = Gate.parse(view.fail_on)
    is_table = Path(source).suffix.lower() in _FILES
    refuse_other(source, "grid", "score", "report", *["why"] * is_table)
    for engine, option in (("ray", "address"), ("slurm", "slurm")):
        if work.engine != engine:
            refuse_unused(context, option, f"it is of --engine {engine}")
    if _is_store(source, model.allow_hub):
        with intact(Path(source)):
            with reading(f"the store {one_line(source, 200)}"), collector_paused():
                stored = read_grid(Path(source))
            return _shown(stored, gate, view, files)
    with reading(f"the grid {one_line(source, 200)}"), collector_paused():
        plan = _plan(source, axes or [], recipe, cells, model, of)
    faults, said = known_faults(plan.read, software)
    shared.say([*(f"{one.level} {one.code}: {one.text}" for one in faults), *said])
    options = Options(
        **measure.model_dump(),
        **model.model_dump(exclude={"overrides", "task", "offline"}),
        **risk.model_dump(),
        is_cached=not no_cache,
    )
    if cells.dry_run:
        _list(plan, options)
        return 0
    if work.engine == "slurm" and store is None:
        raise InputError("--engine slurm keeps its jobs beside the store; give -o STORE.db.")
    groups = _announce(plan, options)
    with (
        told_if_interrupted(goes_on_from(store, "-o STORE.db", "cells")),
        TemporaryDirectory() as folder,
    ):
        result = _worked(plan, options, work, groups, store or Path(folder) / "grid.db")
    is_faulty = any(gate.reaches(one.level) for one in faults)
    return _shown(result, gate, view, files) or int(is_faulty)


def _plan(
    source: str,
    axes: list[str],
    recipe: Given[Recipe],
    options: shared.PlanOptions,
    model: shared.ModelOptions,
    of: shared.RunOptions,
) -> GridPlan:
    from rksp.grid.plan import read_plan
    from rksp.models.configuration import parse_value

    overrides = {name: parse_value(text) for name, text in assignments(model.overrides).items()}
    Recipe.parse(recipe.values, flag_names(Recipe))  # each flag by itself, by its own name
    return read_plan(
        source,
        axes,
        target=options.target,
        overrides=overrides,
        recipe={name: recipe.values[name] for name in recipe.typed},
        samples=options.samples,
        ignore=options.ignore,
        devices=of.devices,
        trainer=of.as_format,
        allow_hub=model.allow_hub,
    )


def _files(typed: list[str]) -> tuple[Path | None, list[Output]]:
    stores = [text for text in typed if Path(text).suffix in _STORES]
    if len(stores) > 1:
        raise InputError(f"-o names two stores, {stores[0]} and {stores[1]}; give one.")
    reports = outputs("text", [text for text in typed if text not in stores], "grid")
    return Path(stores[0]) if stores else None, reports


def _worked(
    plan: GridPlan, options: Options, work: shared.EngineOptions, groups: int, store: Path
) -> GridResult:
    from rksp.grid.run import run_grid

    engine = _engine(work, store, groups)
    with live_progress(lambda what: not _COUNT.fullmatch(what)) as progress:
        return run_grid(
            plan,
            store,
            options=options,
            engine=engine,
            timeout=work.timeout,
            retry_failed=work.retry_failed,
            progress=progress,
        )


def _is_store(source: str, allow_hub: bool) -> bool:
    from rksp.models.names import path_of

    path = Path(source)
    try:
        if path.suffix in _FILES and not path.exists():
            raise InputError(absent(source))
        if not path.is_file() or path_of(source, allow_hub=allow_hub) is None:
            return False
    except OSError as error:  # as where no file system takes the name
        raise InputError(f"The grid {source[:200]!r} cannot be read: {error.strerror}.") from None
    return is_store(path)


def _announce(plan: GridPlan, options: Options) -> int:
    from rksp.grid.cell import init_keys

    shared.say(plan.notes)
    groups = len(set(init_keys(plan.cells, options)))
    shared.say([f"cells: {len(plan.cells)}; models to measure: {groups}"])
    return groups


def _list(plan: GridPlan, options: Options) -> None:
    from rksp.grid.axes import check_names
    from rksp.grid.cell import unnamed_settings
    from rksp.recipe_files.said.origin import line_of

    notes = check_names(plan.cells)
    _announce(plan, options.model_copy(update={"allow_hub": False}))
    for note in (*notes, line_of(plan.assumed)):
        if note:
            shared.say([note])
    for cell in plan.cells:
        settings = unnamed_settings(cell.overrides, cell.labels)
        print(json.dumps({"target": cell.target, "seed": cell.seed, **settings, **cell.labels}))


def _engine(work: shared.EngineOptions, store: Path, groups: int) -> Engine | None:
    if work.engine == "ray":
        from rksp.grid.engines.remote import RayEngine

        return RayEngine(work.workers, address=work.address)
    if work.engine == "slurm":
        from rksp.grid.engines.remote import SlurmEngine
        from rksp.recipe_files.parse.content import parse_yaml

        typed = assignments(work.slurm, "--slurm")
        parameters = {name: parse_yaml(value) for name, value in typed.items()}
        folder = store.with_suffix(".jobs")
        return SlurmEngine(folder, work.workers or groups, parameters=parameters)
    if work.workers is None:
        return None
    from rksp.grid.engines.local import LocalEngine

    return LocalEngine(work.workers)


def _shown(result: GridResult, gate: Gate, view: shared.ViewOptions, files: list[Output]) -> int:
    with collector_paused():
        from rksp.report.grid import grid_report

    is_long = view.output_format == "text" and len(result.rows) > _MOST_SHOWN
    top = view.top or (_FIRST if is_long else None)
    with collector_paused():
        document = grid_report(result, gate, conditions=view.where, top=top)
        for path in view.export:
            _export(result, gate, path)
        emit(document, view.output_format, files)
    return conclude(document, exit_zero=view.exit_zero)


def _export(result: GridResult, gate: Gate, path: Path) -> None:
    from rksp.grid.table import JUDGED, TABLES, export, export_cells

    found = result.records(gate.bar)
    if path.suffix in TABLES:
        export(found, path)
        return
    kept = [cell for cell in found if cell.verdict in JUDGED and not gate.fails(cell)]
    export_cells(result.settings(kept), path)
    shared.say([f"{path} holds the {len(kept)} of {len(found)} cells that pass the gate."])
