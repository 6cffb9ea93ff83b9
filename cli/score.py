"""`rksp score`: one target, one recipe, one answer."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli import process
from rksp.cli import shared_options as shared
from rksp.cli.mistakes import misplaced
from rksp.cli.options import (
    RUN,
    Given,
    NoCache,
    Panel,
    as_count,
    brief,
    is_typed,
    refuse_unused,
    with_options,
)
from rksp.cli.rendering import conclude, emit, load, made_with, next_command, outputs
from rksp.documents.options import MeasureOptions
from rksp.documents.terms import Terms
from rksp.ground.allocator import collector_paused, freed_memory_kept, loading
from rksp.ground.budgets import SEEDS
from rksp.ground.errors import InputError
from rksp.ground.flags import assignments
from rksp.ground.model import definite
from rksp.ground.text import one_line
from rksp.recipe import Recipe
from rksp.report.formats import rendering

if TYPE_CHECKING:
    from rich.console import Console

    from rksp.cli.process import Report
    from rksp.documents.score import FilesReport, ScoreReport
    from rksp.ground.model import Progress
    from rksp.models.source import ModelSource
    from rksp.question.question import Question
    from rksp.question.run import Run

Target = Annotated[
    str,
    typer.Argument(
        help="A model type (gpt2), a config.json, a checkpoint folder, a Hub id, module:factory, "
        "or a trainer's run file that describes its model."
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(
        help="Run files, folders of them, patterns, a model type (gpt2), a config.json, a "
        "checkpoint folder, a Hub id, or module:factory; several give one table.",
        metavar="TARGET",
        show_default=False,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        parser=as_count(1, SEEDS),
        help="Score this many seeds, starting at --seed, and report the spread.",
        metavar="SEEDS",
        rich_help_panel="Measurement",
    ),
]
Tuned = Annotated[
    str | None,
    typer.Option(
        "--tuned",
        help="Carry the learning rate that was tuned on SMALL, a model or its run file, to TARGET.",
        metavar="SMALL=RATE",
        rich_help_panel="Recipe",
    ),
]
_STEPS = {  # of a measurement, in words
    "build": "building the model",
    "forward and spectra": "measuring the forward pass",
    "gradient": "measuring the first gradient",
}
_ONE_ALONE = "seed seeds probe data states baseline verbose tuned"  # options of one target
_MAX_PARAMS = "Stream larger models; refuse them with --stream never."


@with_options
@brief(f"target {RUN} precision is_pretrained evidence output fail_on verbose")
def score(
    context: typer.Context,
    target: Targets,
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    of: Annotated[shared.RunOptions, Panel(title="Recipe")],
    measure: Annotated[MeasureOptions, Panel(title="Measurement")],
    model: Annotated[shared.ModelOptions, Panel(title="Model", helps={"max_params": _MAX_PARAMS})],
    past: Annotated[shared.LearnOptions, Panel(title="Measurement")],
    gate: Annotated[shared.GateOptions, Panel(title="Terms")],
    output: Annotated[shared.ScoreOutput, Panel(title="Output")],
    seeds: Seeds = 1,
    no_cache: NoCache = False,
    tuned: Tuned = None,
) -> int:
    """Say how likely the run is to fail, why, and at which learning rate to start."""
    with loading():
        from rksp.checks.registry import select_findings
    with collector_paused():
        from rksp.question.files import are_many

        is_many = are_many(target)
        files = outputs(output.output_format, output.output, "files" if is_many else "score")
        terms = Terms(**{name: getattr(gate, name) for name in Terms.model_fields})
        baseline = None if gate.baseline is None else load(gate.baseline)
        select_findings(
            (),
            gate.select,
            gate.ignore,
            assignments(gate.levels, "--level", "CHECK=LEVEL, such as RKSP503=note"),
        )  # first
        if is_many:
            if said := misplaced(target, context):
                raise InputError(said)
            refuse_unused(context, _ONE_ALONE, "several targets are answered together")
            if measure.evidence != "config" and is_typed(context, "evidence"):
                raise InputError(
                    "Several targets are answered by their configurations alone; leave out "
                    f"--evidence {measure.evidence}, or give one target."
                )
            several = _several(target, recipe, of, model, past, terms)
            emit(several, output.output_format, files)
            code = conclude(several, exit_zero=gate.exit_zero)
            is_broken = any(row.is_named and row.report is None for row in several.rows)
            return 2 if is_broken and code != 1 else code
        if measure.evidence == "config":
            refuse_unused(context, "probe blocks variant rank spectra", "nothing is measured")
        small = _tuned(tuned, recipe) if tuned else None
        own = of if small is None else of.beside(target[0], small[0])
        run = own.run(target[0], recipe, needs_model=False)
    cheap = ", and --evidence config answers at once" * (measure.evidence != "config")
    with (
        process.terminal_of_stdout(is_wanted=output.format == "text") as terminal,
        process.stdout_for_us_alone(),
        process.told_if_interrupted(f"nothing was kept; the same command starts again{cheap}"),
        collector_paused() if measure.evidence == "config" else nullcontext(),
    ):
        question = _question(run, model, past, terms)
        if small is not None:
            question = _carried(question, *small, recipe, of.beside(small[0], target[0]), model)
        if question.source.shape_from and not is_typed(context, "evidence"):
            # Nobody asked to measure: random weights do not stand for trained ones.
            measure = measure.model_copy(update={"evidence": "config"})
        question, faults = question.audited()
        shared.say(faults)
        finish = partial(_finished, context, question, assignments(model.overrides))
        shown = lambda report: rendering(finish(report), "text")
        measured = process.counted_threads(measure).at_seeds(seeds)
        if measure.evidence == "config" and seeds > 1:
            shared.say(["A configuration has no seed, so there is one answer."])
        result = _scored(question, measured, terminal, shown, target[0], is_cached=not no_cache)
    with collector_paused():
        result = finish(result, baseline, is_last=True)
        emit(result, output.format, files)
    return conclude(result, exit_zero=gate.exit_zero)


def _several(
    targets: Sequence[str],
    recipe: Given[Recipe],
    of: shared.RunOptions,
    model: shared.ModelOptions,
    past: shared.LearnOptions,
    terms: Terms,
) -> FilesReport:
    from rksp.question.files import answered
    from rksp.question.run import holds_a_run, is_run_file

    process.quiet_transformers()
    config = [MeasureOptions(evidence="config")]

    def answer(name: str, is_of_folder: bool) -> ScoreReport | None:
        if is_of_folder and not holds_a_run(name):
            return None
        plain = of.model_copy(update={"devices": None, "as_format": None})
        with redirect_stderr(io.StringIO()):  # notes on forty files would hide the table
            run = (of if is_run_file(name) else plain).run(name, recipe)
        question = _question(run, model, past, terms)
        return question.audited()[0].answer(config)

    if len(targets) == 2 and len(files := [*filter(is_run_file, targets)]) == 1:
        (other,) = {*targets} - {*files}
        shared.say([f"two answers; for one: rksp score {other} --recipe {files[0]}"])
    with process.stdout_for_us_alone():
        return answered(targets, answer, fail_on=",".join(terms.fail_on))


def _tuned(tuned: str, recipe: Given[Recipe]) -> tuple[str, float | None]:
    name, _, text = tuned.rpartition("=")
    typed: Any = recipe.values["learning_rate"] if "learning_rate" in recipe.typed else None
    try:
        rate = float(text)
    except ValueError:
        return tuned, typed
    if not name or not rate > 0:
        raise InputError(f"--tuned {tuned!r} should be SMALL=RATE, such as gpt2=1e-3.")
    if typed is not None:
        raise InputError(f"--lr and --tuned {tuned} give the same rate; leave out --lr.")
    return name, rate


def _carried(
    question: Question,
    small: str,
    rate: float | None,
    recipe: Given[Recipe],
    of: shared.RunOptions,
    model: shared.ModelOptions,
) -> Question:
    """Return the question at the rate carried from the small model; `--set` is of the target."""
    from rksp.question.carry import carried

    run = of.run(small, recipe)
    if rate is None and run.is_typed:
        raise InputError(f"The rate tuned on {small} is missing; write --tuned {small}=RATE.")
    whole = model.model_copy(update={"overrides": []})
    source = run.sourced(lambda: whole.resolve(run.target, run.overrides, counts=False))
    return carried(question, type(question).of(run, source), rate)


def _question(
    run: Run,
    model: shared.ModelOptions,
    past: shared.LearnOptions,
    terms: Terms,
) -> Question:
    from rksp.question.question import Question

    with collector_paused():
        more = {"counts": False, "is_typed": run.is_typed}
        source = run.sourced(lambda: model.resolve(run.target, run.overrides, **more))
        question = Question.of(run, source, terms)
    return shared.learned(question, past.runs)


def _finished(
    context: typer.Context,
    question: Question,
    overrides: Mapping[str, str],
    report: ScoreReport,
    baseline: ScoreReport | None = None,
    *,
    is_last: bool = False,
) -> ScoreReport:
    """Return a finished report with the command that made it and the one that comes next.

    What it has to say on stderr is said for the last report alone.
    """
    target = report.target.model_copy(update={"overrides": sorted(overrides)})
    made = report.provenance | made_with(context)
    report = report.model_copy(update={"target": target, "provenance": made})
    report, refused = question.finished(report, baseline, partial(next_command, context))
    shared.say(refused if is_last else ())
    return report


def _seed_progress(report: Report, name: str, seed: int) -> Progress:
    title = f"{one_line(name, 60)} seed {seed}"
    return lambda done, total, step: report(f"{title}: {_STEPS.get(step, step)}", done, total)


def _scored(
    question: Question,
    seeds: Sequence[MeasureOptions],
    terminal: Console | None,
    shown: Callable[[ScoreReport], Any],
    name: str,
    *,
    is_cached: bool,
) -> ScoreReport:
    """Measure every seed, or read what was kept of it, and report them together.

    On a terminal the configuration's answer stands there meanwhile.
    """
    first = seeds[0]
    if first.evidence != "config":
        question = question.keeping(is_cached)
    with collector_paused():
        kept = question.known(seeds)
    if kept is not None:
        return kept
    page = None
    if terminal is not None and question.source.config is not None:
        configured = question.evaluated(first.model_copy(update={"evidence": "config"}))
        if configured.risk.verdict != "not assessed":
            page = shown(question.reported([configured]))
    with (
        process.live_progress()
        if page is None
        else process.standing(page, definite(terminal)) as progress
    ):
        source, memory = _ready(question.source, first)
        question = replace(question, source=source)
        with memory:
            evaluations = [
                question.evaluated(options, _seed_progress(progress, name, options.seed))
                for options in seeds
            ]
    return question.reported(evaluations)


def _ready(
    source: ModelSource, measure: MeasureOptions
) -> tuple[ModelSource, AbstractContextManager[object]]:
    """Load what measures, and return the whole source and what memory does meanwhile.

    Freed memory is kept; a stream has buffers of its own.
    """
    with collector_paused():
        process.with_threads(measure)
        process.quiet_transformers()
        from rksp.models.streaming.memory import should_stream

        source = source.whole()
    streams = should_stream(source, measure.streaming, measure.max_memory, measure.evidence)
    return source, nullcontext() if streams else freed_memory_kept()
