"""`rksp calibrate`: a short sweep of real runs, then the answer that knows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rksp.cli.options import Given, Panel, brief, with_options
from rksp.cli.process import live_progress, quiet_transformers, stdout_for_us_alone, with_threads
from rksp.cli.rendering import command_line, emit, made_with, outputs
from rksp.cli.shared_options import ModelOptions, RunOptions, ScoreOutput, learned, say
from rksp.cli.training import measurement_panel, trained_source
from rksp.confirm.options import LadderOptions
from rksp.documents.options import MeasureOptions
from rksp.ground.errors import InputError
from rksp.ground.files import check_writable
from rksp.ground.flags import count
from rksp.ground.model import definite
from rksp.ground.text import one_line, short
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.confirm.calibrate import Ladder, Shown
    from rksp.documents.score import ScoreReport
    from rksp.run import Run

_RECORD = Path("runs.jsonl")
# Of a tiny twin, whose batch need not be the target's: what nobody typed is made small too.
_TWIN = {"batch_size": 8, "sequence_length": 64}


_MEASURE = measurement_panel(
    "How much the answer may spend.", "Of initialization and data.", evidence="config"
)


@brief(
    *("target", "learning_rate", "recipe_file", "warmup_steps", "max_steps", "batch_size"),
    *("sequence_length", "optimizer", "overrides", "task", "data", "shrink", "steps", "record"),
    *("output", "verbose"),
)
@with_options
def calibrate(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A target, as for rksp score.")],
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[RunOptions, Panel(title="Recipe")],
    measure: Annotated[MeasureOptions, _MEASURE],
    model: Annotated[ModelOptions, Panel(title="Model", defaults={"max_params": 2e7})],
    ladder: Annotated[LadderOptions, Panel(title="Runs")],
    output: Annotated[ScoreOutput, Panel(title="Output")],
) -> int:
    """Train a short sweep of learning rates, on the model or its tiny twin, and answer with it."""
    files = outputs(output.output_format, output.output)
    record = _record(ladder.record)
    run = of.run(target, recipe)
    say(run.unread_lines)
    with stdout_for_us_alone():
        try:
            trained = _trained(run, recipe, measure, model, ladder, record)
        except KeyboardInterrupt:
            say(
                [
                    f"finished runs are in {record}; the same command with --record {record} goes "
                    "on from there"
                ]
            )
            raise
        if trained is None:
            return 0
        report = _answer(run, measure, model, record)
    report = report.model_copy(update={"provenance": report.provenance | made_with(context)})
    report = _led_on(context, report, trained)
    emit(report, output.format, files)
    if output.output_format == "text":
        print("\n".join(_lines(report, trained)))
    return 0


def _led_on(context: typer.Context, report: ScoreReport, trained: Shown) -> ScoreReport:
    """Return the report with the next command; where no model answers, the ladder's rates do."""
    from rksp.report.finish import summarized

    told = _told(report)
    start = trained.start_here if told is None else told
    changed: dict[str, object] = {"record": None}
    if start is None:
        next_command = command_line(context, changed={"steps": 4 * context.params["steps"]})
    else:
        confirm = cast(Any, context.find_root().command).commands["confirm"]
        next_command = command_line(context, confirm, changed | {"learning_rate": short(start, 2)})
    report = summarized(report.model_copy(update={"next_command": next_command}))
    if told is not None:
        return report
    rates = {"start_here": trained.start_here, "do_not_exceed": trained.do_not_exceed}
    summary = definite(report.summary).model_copy(update={"why": f"{trained.answer}.", **rates})
    return report.model_copy(update={"summary": summary})


def _told(report: ScoreReport) -> float | None:
    """Return the rate to start with that the page has, if it has one."""
    from rksp.report.gate import deciding

    risk = deciding(report).risk
    return None if risk is None else risk.start_here


def _lines(report: ScoreReport, trained: Shown) -> Iterator[str]:
    """Yield what the ladder shows, and its runs; the rates too, where the page has none."""
    yield f"\n{trained.answer if _told(report) is None else trained.said}."
    yield f"{'rate':>10}  {'final loss':>10}"
    for rate, loss, label in trained.runs:
        yield f"{short(rate):>10}  {'–' if loss is None else f'{loss:.3f}':>10}  {label}"


def _record(typed: Path | None) -> Path:
    """Return the file of runs.

    Raises:
        InputError: It cannot be written; or nobody typed it, and there is one that others may have
            made.
    """
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
    model: ModelOptions,
    options: LadderOptions,
    record: Path,
) -> Shown | None:
    """Train the ladder; None in a process that, of those of a launcher, is not to answer."""
    # Here and not above: --help must not wait for torch.
    from rksp.confirm.calibrate import Ranks, make_ladder, shown
    from rksp.confirm.calibrate import calibrate as train
    from rksp.datasets.own_data import read_own_rows

    measure = with_threads(measure.model_copy(update={"evidence": "forward"}))
    quiet_transformers()
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
        text=options.text,
        data=None if measure.data is None else read_own_rows(measure.data),
        device=options.device,
    )
    ranks = Ranks.launched()
    if ranks.rank:
        train(made, record, ranks=ranks)
        return None
    with live_progress(lambda what: ": step " not in what) as progress:
        progress("timing a few steps", 0, 1)
        _announce(made, ranks.count)
        return shown(train(made, record, progress, ranks), made)


def _announce(ladder: Ladder, processes: int) -> None:
    """Say what the ladder is and what it costs, before it starts."""
    from rksp.confirm.calibrate import cost

    seconds, size = cost(ladder)
    seconds /= processes
    rates = ladder.first_rates()
    minutes = "under a minute" if seconds < 60 else f"about {seconds / 60:.0f} min"
    recipe = ladder.recipe
    say(
        [
            f"{len(rates)} runs of {recipe.max_steps} steps ({recipe.batch_size} × "
            f"{recipe.sequence_length} tokens) of "
            f"{one_line(ladder.trainee.source.target, 60)}, width "
            f"{ladder.shape.width}, depth {ladder.shape.depth}, at {short(rates[0], 2)} to "
            f"{short(rates[-1], 2)}: {minutes}, {count(size)}B of memory and more"
            f"{f' in each of {processes} processes' if processes > 1 else ''}"
        ]
    )


def _answer(run: Run, measure: MeasureOptions, model: ModelOptions, record: Path) -> ScoreReport:
    """Return the score of the target that knows the ladder."""
    from rksp.run import Question

    # Of the recipe that was trained, so not of what the model shows beside it.
    source = run.started(model.resolve(run.target, run.overrides, counts=False))
    if source.config is None and measure.evidence == "config":
        measure = measure.model_copy(update={"evidence": "gradient"})
    question = learned(Question(run=run, source=source), [record])
    return question.reported([question.evaluated(measure)])
