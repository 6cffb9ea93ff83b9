"""Grid and confirm from Python: many recipes judged, and one recipe tried."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.confirm.options import TrialOptions
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Gate, Terms
from rksp.ground.flags import checked
from rksp.question.next_step import MAX_TRAINED
from rksp.question.run import Run

if TYPE_CHECKING:
    from rksp.documents.confirm import ConfirmReport
    from rksp.documents.grid import GridReport


def grid(
    source: str | Path | Mapping[str, object] | Sequence[Mapping[str, object]],
    axes: Mapping[str, Sequence[object]] | Sequence[str] = (),
    *,
    recipe: Mapping[str, object] | None = None,
    target: str | None = None,
    store: str | Path | None = None,
    fail_on: str | Sequence[str] = Terms().fail_on,
    **options: object,
) -> GridReport:
    """Judge every setting of a grid, and rank them by risk.

        >>> import rksp
        >>> found = rksp.grid("gpt2", {"lr": [1e-4, 3e-1]}, evidence="config")
        >>> [cell.verdict for cell in found.cells]
        ['ok', 'risk']

    Args:
        source: A target; a sweep, rows or a run file; or a mapping of lists, with `target`.
        axes: Name → values, or texts such as `lr=1e-4,3e-4`.
        recipe: Fields that no cell varies.
        target: The model, if the source names none.
        store: The file that keeps finished cells, from which the same call goes on; by default
            nothing is kept.
        fail_on: As for `rksp.score`.
        **options: Fields of `rksp.grid.group.Options`: `evidence`, `risk`, `runs`, `threads`, ….

    Returns:
        The document that `rksp grid` writes, with every cell in it, the least risky first.

    Raises:
        InputError: Something cannot be read or used.
    """
    from rksp.grid.group import Options
    from rksp.grid.plan import read_plan
    from rksp.grid.run import run_grid
    from rksp.report.grid import grid_report

    how, gate = checked(Options, options, noun="option"), Gate.parse(fail_on)
    typed: Sequence[str] = ()
    if isinstance(axes, Mapping):
        typed = [f"{name}={','.join(map(str, values))}" for name, values in axes.items()]
    elif not isinstance(axes, str):
        typed = list(axes)
    named = str(source) if isinstance(source, Path) else source
    plan = read_plan(named, typed, target=target, recipe=recipe)
    with tempfile.TemporaryDirectory() as folder:
        found = run_grid(plan, Path(store or Path(folder, "grid.db")), options=how)
        return grid_report(found, gate)


def confirm(
    target: str | Path,
    recipe: Mapping[str, object] | None = None,
    *,
    lr: float | None = None,
    measure: MeasureOptions | None = None,
    **options: object,
) -> ConfirmReport:
    """Train a few short runs with all monitors, and compare them with the prediction.

        >>> import rksp
        >>> small = {"batch_size": 2, "sequence_length": 16}
        >>> few = {"steps": 4, "seeds": 1, "arms": ["baseline"], "monitors": ["loss"]}
        >>> tried = rksp.confirm("gpt2", small, lr=1e-3, shrink=True, **few)
        >>> len(tried.trials), tried.trained.max_steps
        (1, 4)

    Args:
        target: A model type, a config.json, a checkpoint, or a run file that describes its model.
        recipe: Fields of `rksp.Recipe`, which override those of a run file.
        lr: The learning rate, in place of the recipe's.
        measure: How the prediction measures; by default as `rksp.score` does.
        **options: Fields of `rksp.confirm.options.TrialOptions`: `shrink`, `arms`, `steps`, ….

    Returns:
        The document that `rksp confirm` writes.

    Raises:
        InputError: Something cannot be used; raised before anything is trained.
        NotCovered: An intervention or fault finds nothing to act on in this model.
    """
    from rksp.confirm.confirm import confirm as tried
    from rksp.models.resolve import resolve, resolve_tiny

    fields = dict(recipe or {}) | ({} if lr is None else {"learning_rate": lr})
    trials = checked(TrialOptions, options, noun="option")
    run = Run.read(str(target), fields)
    if trials.shrink:
        source = resolve_tiny(run.target, max_params=MAX_TRAINED)
    else:
        source = resolve(run.target, overrides=run.overrides, max_params=MAX_TRAINED)
    return tried(run.started(source), run.recipe, trials, measure=measure)
