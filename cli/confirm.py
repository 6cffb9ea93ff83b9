"""`rksp confirm`: a short run with several arms that tests the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from rksp.cli.options import Given, Panel, brief, with_options
from rksp.cli.process import live_progress, quiet_transformers, stdout_for_us_alone, with_threads
from rksp.cli.rendering import conclude, emit, made_with, outputs
from rksp.cli.shared_options import ConfirmOutput, ExitZero, ModelOptions, RunOptions, say
from rksp.cli.training import TrainingOptions, measurement_panel
from rksp.documents.options import MeasureOptions
from rksp.ground.budgets import SEEDS
from rksp.ground.files import check_writable
from rksp.ground.flags import Flag
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.documents.confirm import ConfirmReport
    from rksp.run import Run


class TrialOptions(TrainingOptions):
    """Options of the runs to train and compare."""

    arms: Annotated[
        list[str],
        Flag(
            "--arm",
            (
                "baseline, rate=0.3 (a factor on the learning rate), a lever (warmup=60, "
                "optimizer=muon), or an intervention (qk_norm, clip=0.5, zclip+clip=1); "
                "repeatable. The default is baseline, the predicted learning rate to start with "
                "(rate=0.3 where there is none below), and step_clip."
            ),
            unit="arm",
        ),
    ] = []
    steps: Annotated[
        int,
        Flag("--steps", "Steps of every run; the schedule is shortened to them.", unit="steps"),
    ] = Field(default=200, ge=1)
    seeds: Annotated[
        int,
        Flag("--seeds", "Number of seeds, starting at --seed; all arms share them.", unit="seeds"),
    ] = Field(default=3, ge=1, le=SEEDS)
    faults: Annotated[
        list[str],
        Flag(
            "--fault",
            "Plant a defect on purpose (bitflip:step=50,bit=30); repeatable.",
            unit="fault",
        ),
    ] = []
    monitors: Annotated[
        list[str],
        Flag(
            "--monitor",
            "Use only these monitors (name or name:every=5); repeatable.",
            unit="monitor",
        ),
    ] = []
    keep: Annotated[
        Path | None,
        Flag(
            "--keep",
            (
                "Folder for finished runs, readings and checkpoints from before a failure; the "
                "same command resumes from it."
            ),
        ),
    ] = None
    runs: Annotated[
        list[Path],
        Flag(
            "--runs",
            "Let the prediction learn from past runs, as for rksp runs; repeatable.",
            unit="path",
        ),
    ] = []
    record: Annotated[
        Path | None,
        Flag("--record", "File of runs to append these runs to, for --runs of a later command."),
    ] = None
    bar: Annotated[
        float,
        Flag("--bar", "The prediction is a risk from this P(failed) on.", unit="probability"),
    ] = Field(default=0.5, gt=0, le=1)
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
    trials: Annotated[TrialOptions, Panel(title="Runs")],
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
    from rksp.confirm.arms import parse_arms
    from rksp.confirm.confirm import confirm as run_confirmation

    measure = with_threads(measure)
    quiet_transformers()
    source = trials.source(run, model)
    with live_progress(lambda what: ": step " not in what) as progress:
        return run_confirmation(
            source,
            run.recipe,
            parse_arms(trials.arms) if trials.arms else None,
            steps=trials.steps,
            seeds=range(measure.seed, measure.seed + trials.seeds),
            faults=trials.faults,
            monitors=trials.monitors or ("all",),
            options=measure,
            threshold=trials.bar,
            text=trials.text,
            device=trials.device,
            folder=trials.keep,
            past_runs=trials.runs,
            record=trials.record,
            cache=True,
            progress=progress,
        )


def _how_to_go_on(keep: Path | None) -> str:
    if keep is None:
        return "nothing was kept; with --keep FOLDER finished runs are, and the command goes on"
    return f"finished runs are in {keep}; the same command goes on from there"
