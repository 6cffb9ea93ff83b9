"""What the commands that train share: which model, on what, where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rksp.cli.options import Panel
from rksp.cli.shared_options import ModelOptions
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError

if TYPE_CHECKING:
    from rksp.confirm.options import TrainingOptions
    from rksp.models.source import ModelSource
    from rksp.run import Run


def trained_source(options: TrainingOptions, run: Run, model: ModelOptions) -> ModelSource:
    """Return the model that is trained: the target, or its tiny twin.

    Raises:
        InputError: The device is not there, or `--shrink` meets sizes that were set.
    """
    import torch  # here and not above: --help must not wait for it

    if options.device != "cpu" and not torch.cuda.is_available():
        raise InputError(f"--device {options.device!r} is not available; use cpu.")
    if not options.shrink:
        return run.started(model.resolve(run.target, run.overrides))
    if model.overrides:
        raise InputError("--shrink chooses the sizes itself; leave out --set or --shrink.")
    from rksp.models.resolve import resolve_tiny

    task = cast(Any, model.task)
    return run.started(resolve_tiny(run.target, max_params=int(model.max_params), task=task))


def measurement_panel(spend: str, seed: str, **defaults: object) -> Panel:
    """Return the panel of measuring, with the helps of --evidence and --seed, and the defaults."""
    kept = {"evidence", "seed", "threads", "data"}
    return Panel(
        title="Measurement",
        leave_out=tuple({*MeasureOptions.model_fields} - kept),
        defaults=defaults,
        helps={"evidence": spend, "seed": seed},
    )
