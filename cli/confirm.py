"""`rksp confirm`: a short run with several arms that tests the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Given, Panel, brief, with_options
from rksp.cli.process import live_progress, quiet_transformers, stdout_for_us_alone, with_threads
from rksp.cli.rendering import conclude, emit, made_with, outputs
from rksp.cli.shared_options import ConfirmOutput, ExitZero, ModelOptions, RunOptions, say
from rksp.cli.training import measurement_panel, trained_source
from rksp.confirm.options import TrialOptions
from rksp.documents.options import MeasureOptions
from rksp.ground.files import check_writable
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.documents.confirm import ConfirmReport
    from rksp.run import Run


class _Trials(TrialOptions):
    """The options of the runs, and what their failure does."""

    exit_zero: ExitZero = False


_PREDICTION = measurement_panel("How much the prediction may spend.", "The first seed.")


@brief(
    *("target", "learning_rate", "recipe_file", "warmup_steps", "max_steps", "batch_size"),
    *("sequence_length", "optimizer", "overrides", "data", "shrink", "arms", "steps", "seeds"),
    *("keep", "output"),
)
@with_options
def confirm(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A target, as for rksp score.")],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[RunOptions, Panel(title="Recipe")],
    measure: Annotated[MeasureOptions, _PREDICTION],
    model: Annotated[ModelOptions, Panel(title="Model", defaults={"max_params": 2e7})],
    trials: Annotated[_Trials, Panel(title="Runs")],
    output: Annotated[ConfirmOutput, Panel(title="Output")],
) -> int:
    """Train briefly with all monitors: test the prediction, and what would have helped."""
    files = outputs(output.output_format, output.output, "confirm")
    if trials.record is not None:
        check_writable(trials.record, "--record")
    run = of.run(target, recipe)
    say(run.unread_lines)
    if run.assumed:
        say([run.assumed])
    with stdout_for_us_alone():
        try:
            report = _confirmed(run, measure, model, trials)
        except KeyboardInterrupt:
            say([_how_to_go_on(trials.keep)])
            raise
    command = made_with(context)
    report = report.model_copy(update={"provenance": report.provenance | command})
    emit(report, output.output_format, files)
    return conclude(report, exit_zero=trials.exit_zero)


def _confirmed(
    run: Run, measure: MeasureOptions, model: ModelOptions, trials: TrialOptions
) -> ConfirmReport:
    # Here and not above: --help must not wait for torch.
    from rksp.confirm.confirm import confirm as run_confirmation

    measure = with_threads(measure)
    quiet_transformers()
    source = trained_source(trials, run, model)
    with live_progress(lambda what: ": step " not in what) as progress:
        return run_confirmation(
            source, run.recipe, trials, measure=measure, cache=True, progress=progress
        )


def _how_to_go_on(keep: Path | None) -> str:
    if keep is None:
        return "nothing was kept; with --keep FOLDER finished runs are, and the command goes on"
    return f"finished runs are in {keep}; the same command goes on from there"
