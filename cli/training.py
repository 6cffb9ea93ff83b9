"""`rksp confirm`: a few short runs that test the prediction, or a sweep that answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rksp.cli import process
from rksp.cli import shared_options as shared
from rksp.cli.options import RUN, Given, Panel, brief, is_typed, refuse_unused, with_options
from rksp.cli.rendering import command_line, conclude, emit, made_with, outputs
from rksp.confirm.options import TrialOptions
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.model import definite
from rksp.ground.text import short
from rksp.question.next_step import MAX_TRAINED
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.confirm.calibrate import Shown
    from rksp.documents.confirm import ConfirmReport
    from rksp.documents.score import ScoreReport
    from rksp.models.source import ModelSource
    from rksp.question.run import Run

_RECORD = Path("runs.jsonl")
_SWEEP_STEPS = 100
_OF_ARMS = "arms seeds faults monitors keep runs bar exit_zero"
# Of a tiny twin, whose batch need not be the target's: what nobody typed is made small too.
_TWIN = {"batch_size": 8, "sequence_length": 64}
Target = Annotated[str, typer.Argument(help="A target, as for rksp score.")]
_Given = Annotated[Given[Recipe], Panel(title="Recipe")]
_Of = Annotated[shared.RunOptions, Panel(title="Recipe")]
_TRAINS = Panel(title="Model", defaults={"max_params": MAX_TRAINED})
_Model = Annotated[shared.ModelOptions, _TRAINS]


_PREDICTION = Panel(
    title="Measurement",
    only=("evidence", "seed", "threads", "data"),
    helps={
        "evidence": "How much the prediction may spend; with --sweep config by default.",
        "seed": "The first seed.",
    },
)
Sweep = Annotated[
    bool,
    typer.Option(
        "--sweep",
        help="Train a short sweep of learning rates in place of arms, and answer with it.",
        rich_help_panel="Runs",
    ),
]


class _Trials(TrialOptions):
    exit_zero: shared.ExitZero = False


def trained_source(options: TrialOptions, run: Run, model: shared.ModelOptions) -> ModelSource:
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


@with_options
@brief(f"target {RUN} data shrink arms steps seeds keep sweep output")
def confirm(
    context: typer.Context,
    target: Target,
    recipe: _Given,
    of: _Of,
    measure: Annotated[MeasureOptions, _PREDICTION],
    model: _Model,
    trials: Annotated[_Trials, Panel(title="Runs")],
    output: Annotated[shared.ConfirmOutput, Panel(title="Output")],
    sweep: Sweep = False,
) -> int:
    """Train briefly with all monitors: test the prediction, and what would have helped."""
    if sweep:
        refuse_unused(context, _OF_ARMS, "--sweep trains no arms")
        if not is_typed(context, "steps"):
            trials = trials.model_copy(update={"steps": _SWEEP_STEPS})
        if not is_typed(context, "evidence"):
            measure = measure.model_copy(update={"evidence": "config"})
        return _swept(context, target, recipe, of, measure, model, trials, output)
    files = outputs(output.output_format, output.output, "confirm")
    if trials.record is not None:
        check_writable(trials.record, "--record")
    run = of.run(target, recipe)
    shared.say(run.unread_lines)
    kept = process.goes_on_from(trials.keep, "--keep FOLDER", "runs")
    with process.stdout_for_us_alone(), process.told_if_interrupted(kept):
        report = _confirmed(run, measure, model, trials)
    command = made_with(context)
    report = report.model_copy(update={"provenance": report.provenance | command})
    emit(report, output.output_format, files)
    return conclude(report, exit_zero=trials.exit_zero)


def _confirmed(
    run: Run, measure: MeasureOptions, model: shared.ModelOptions, trials: TrialOptions
) -> ConfirmReport:
    # Here and not above: --help must not wait for torch.
    from rksp.confirm.confirm import confirm as run_confirmation

    measure = process.with_threads(measure)
    process.quiet_transformers()
    source = trained_source(trials, run, model)
    notes = filter(None, [run.assumed])
    with process.live_progress(lambda what: ": step " not in what) as progress:

        def begun(what: str, done: float, total: float) -> None:
            shared.say(notes)  # once, where no input error is left
            progress(what, done, total)

        return run_confirmation(
            source, run.recipe, trials, measure=measure, cache=True, progress=begun
        )


def _swept(
    context: typer.Context,
    target: str,
    recipe: Given[Recipe],
    of: shared.RunOptions,
    measure: MeasureOptions,
    model: shared.ModelOptions,
    ladder: TrialOptions,
    output: shared.ConfirmOutput,
) -> int:
    files = outputs(output.output_format, output.output)
    record = _record(ladder.record)
    run = of.run(target, recipe)
    shared.say(run.unread_lines)
    with process.stdout_for_us_alone():
        again = f"the same command with --record {record} goes on from there"
        with process.told_if_interrupted(f"finished runs are in {record}; {again}"):
            trained = _trained(run, recipe, measure, model, ladder, record)
        if trained is None:
            return 0
        report = _answer(run, measure, model, record)
    report = report.model_copy(update={"provenance": report.provenance | made_with(context)})
    report = _led_on(context, report, trained, ladder.steps)
    emit(report, output.output_format, files)
    if output.output_format == "text":
        print("\n".join(_lines(report, trained)))
    return 0


def _led_on(context: typer.Context, report: ScoreReport, trained: Shown, steps: int) -> ScoreReport:
    """Return the report with the next command; where no model answers, the ladder's rates do."""
    from rksp.question.gate import summarized

    told = _start_on_page(report)
    start = trained.start_here if told is None else told
    changed: dict[str, object] = {"record": None}
    if start is None:
        next_command = command_line(context, changed={"steps": 4 * steps})
    else:
        changed |= {"sweep": None, "learning_rate": short(start, 2)}
        next_command = command_line(context, changed=changed)
    report = summarized(report.model_copy(update={"next_command": next_command}))
    if told is not None:
        return report
    rates = {"start_here": trained.start_here, "do_not_exceed": trained.do_not_exceed}
    summary = definite(report.summary).model_copy(update={"why": f"{trained.answer}.", **rates})
    return report.model_copy(update={"summary": summary})


def _start_on_page(report: ScoreReport) -> float | None:
    from rksp.question.gate import deciding

    return deciding(report).risk.number("start_here")


def _lines(report: ScoreReport, trained: Shown) -> Iterator[str]:
    """Yield what the ladder shows, and its runs; the rates too, where the page has none."""
    yield f"\n{trained.answer if _start_on_page(report) is None else trained.said}."
    yield f"{'rate':>10}  {'final loss':>10}"
    for rate, loss, label in trained.runs:
        yield f"{short(rate):>10}  {'–' if loss is None else f'{loss:.3f}':>10}  {label}"


def _record(typed: Path | None) -> Path:
    record = typed or _RECORD
    is_first = os.environ.get("RANK", "0") == "0"  # another process may be later than this one
    if typed is None and is_first and os.path.lexists(record):
        raise InputError(
            f"{record} is there already; type --record {record} to learn from its runs and add to "
            "them, or give another name."
        )
    check_writable(record, "--record")
    return record


def _trained(
    run: Run,
    given: Given[Recipe],
    measure: MeasureOptions,
    model: shared.ModelOptions,
    options: TrialOptions,
    record: Path,
) -> Shown | None:
    """Train the ladder; None in a process that, of those of a launcher, is not to answer."""
    # Here and not above: --help must not wait for torch.
    from rksp.confirm.calibrate import Ranks, make_ladder, shown
    from rksp.confirm.calibrate import calibrate as train

    measure = process.with_threads(measure.model_copy(update={"evidence": "forward"}))
    process.quiet_transformers()
    source = trained_source(options, run, model)
    recipe = run.recipe
    if options.shrink:
        small = {name: value for name, value in _TWIN.items() if name not in given.typed}
        recipe = recipe.model_copy(update=small)
    made = make_ladder(
        source,
        recipe,
        steps=options.steps,
        seed=measure.seed,
        data=measure.data,
        device=options.device,
    )
    ranks = Ranks.launched()
    if ranks.rank:
        train(made, record, ranks=ranks)
        return None
    with process.live_progress(lambda what: ": step " not in what) as progress:
        rates = [short(rate, 2) for rate in made.first_rates()]
        shape, recipe = made.shape, made.recipe
        shared.say(
            [
                f"{len(rates)} runs of {recipe.max_steps} steps ({recipe.batch_size} × "
                f"{recipe.sequence_length} tokens) of {source.target}, width "
                f"{shape.width}, depth {shape.depth}, at {rates[0]} to {rates[-1]}"
            ]
        )
        return shown(train(made, record, progress, ranks), made)


def _answer(
    run: Run, measure: MeasureOptions, model: shared.ModelOptions, record: Path
) -> ScoreReport:
    from rksp.question.question import Question

    # Of the recipe that was trained, so not of what the model shows beside it.
    source = run.started(model.resolve(run.target, run.overrides, counts=False))
    if source.config is None and measure.evidence == "config":
        measure = measure.model_copy(update={"evidence": "gradient"})
    question = shared.learned(Question(run=run, source=source), [record])
    return question.reported([question.evaluated(measure)])
