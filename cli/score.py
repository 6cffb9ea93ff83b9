"""`rksp score`: one target, one recipe, one answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli.first_answer import FirstAnswerStands, standing, terminal_of_stdout
from rksp.cli.model_options import ModelOptions
from rksp.cli.next_step import next_command
from rksp.cli.options import (
    AsFormat,
    Devices,
    Given,
    NoCache,
    Panel,
    RecipeFile,
    as_count,
    assignments,
    brief,
    with_options,
)
from rksp.cli.output_options import GateOptions, RiskOptions, ScoreOutput
from rksp.cli.own_runs import learned_from
from rksp.cli.process import counted_threads, quiet_transformers, stdout_for_us_alone, with_threads
from rksp.cli.progress import live_progress
from rksp.cli.recipe_source import RequestedRun, requested_run
from rksp.cli.rendering import conclude, emit, load, made_with, outputs
from rksp.ground.allocator import freed_memory_kept
from rksp.ground.budgets import SEEDS, reading
from rksp.ground.collector import collector_paused, loading
from rksp.ground.model import definite
from rksp.ground.text import one_line
from rksp.options import MeasureOptions
from rksp.recipe import Recipe
from rksp.report.formats import rendering

if TYPE_CHECKING:
    from rich.console import Console

    from rksp.assessment.pipeline import Evaluation
    from rksp.classifiers.edge_model import EdgeModel, EdgePredictor
    from rksp.documents.score import ScoreReport
    from rksp.models.source import ModelSource
    from rksp.models.streaming.meter import Progress
    from rksp.recipe_files.said.edits import RunText
    from rksp.report.gate import Gate

Target = Annotated[
    str,
    typer.Argument(
        help=(
            "A model type (gpt2), a config.json, a checkpoint folder, a Hub id, module:factory, "
            "or a trainer's run file that describes its model."
        )
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
Apply = Annotated[
    str | None,
    typer.Option(
        "--apply",
        help="Answer as if these levers were pulled: qk_norm,warmup=500; "
        "rksp explain levers lists them.",
        metavar="LEVERS",
        rich_help_panel="Recipe",
    ),
]
_MAX_PARAMS = "Stream larger models; refuse them with --stream never."


@brief(
    *("target", "learning_rate", "recipe_file", "warmup_steps", "max_steps", "batch_size"),
    *("sequence_length", "optimizer", "precision", "overrides", "evidence", "output", "fail_on"),
    "verbose",
)
@with_options
def score(
    context: typer.Context,
    target: Target,
    recipe: Annotated[Given[Recipe], Panel(title="Recipe")],
    measure: Annotated[MeasureOptions, Panel(title="Measurement")],
    model: Annotated[ModelOptions, Panel(title="Model", helps={"max_params": _MAX_PARAMS})],
    risk: Annotated[RiskOptions, Panel(title="Measurement")],
    gate: Annotated[GateOptions, Panel(title="Output")],
    output: Annotated[ScoreOutput, Panel(title="Output")],
    recipe_file: RecipeFile = None,
    devices: Devices = None,
    as_format: AsFormat = None,
    seeds: Seeds = 1,
    no_cache: NoCache = False,
    apply: Apply = None,
) -> int:
    """Say how likely the run is to fail, why, and at which learning rate to start."""
    with loading():
        from rksp.checks.selection import select_findings
        from rksp.report.gate import Gate
    with collector_paused():
        files = outputs(output.output_format, output.output)
        bar = Gate.parse(gate.fail_on)
        older = None if gate.baseline is None else load(gate.baseline)
        select_findings((), gate.select, gate.ignore, assignments(gate.levels, "--level"))  # first
        run = requested_run(target, recipe, recipe_file, devices, as_format)
    with (
        terminal_of_stdout(is_wanted=output.format == "text") as terminal,
        stdout_for_us_alone(),
        collector_paused() if measure.evidence == "config" else nullcontext(),
    ):
        try:
            source, run = _met(run, model)
            if source.shape_from and _is_default(context, "evidence"):
                measure = measure.model_copy(update={"evidence": "config"})
            prior = _classifier(risk.classifier)
            classifier, own_runs = learned_from(risk.runs, source, run.recipe, prior)
            run, classifier = _with_levers(run, source, apply, classifier)
            finished = partial(_finished, context, run, gate, assignments(model.overrides))
            asked = _Asked(
                name=target,
                run=run,
                source=source,
                measure=measure,
                answer={"risk": risk.risk, "classifier": classifier, "threshold": bar.bar},
                seeds=seeds,
                is_cached=not no_cache,
                shown=lambda report: rendering(finished(report), "text"),
            )
            result = _scored(asked, terminal)
            result = result.model_copy(update={"own_runs": own_runs}).finite()
        except FirstAnswerStands:
            raise
        except KeyboardInterrupt:
            print(f"rksp: {_how_to_go_on(measure)}", file=sys.stderr)
            raise
    with collector_paused():
        result = finished(result, older, is_last=True)
        emit(result, output.format, files)
    return conclude(result, exit_zero=gate.exit_zero)


def _is_default(context: typer.Context, name: str) -> bool:
    """Tell whether nobody gave an option: random weights are not measured for trained ones."""
    return getattr(context.get_parameter_source(name), "name", "") == "DEFAULT"


def _finished(
    context: typer.Context,
    run: RequestedRun,
    gate: GateOptions,
    overrides: Mapping[str, str],
    report: ScoreReport,
    older: ScoreReport | None = None,
    *,
    is_last: bool = False,
) -> ScoreReport:
    """Return a report as the options and the run file want it: findings, exit code, next command.

    What it has to say on stderr is said for the last report alone.
    """
    from rksp.recipe_files.said.reported import with_origins
    from rksp.report.gate import Gate
    from rksp.report.summary import summarized

    report = _as_asked(report, gate, assignments(gate.levels, "--level"), overrides)
    bar = Gate.parse(gate.fail_on)
    report, refused = _as_the_file_asks(report, run, bar)
    for said in refused if is_last else ():
        print(f"rksp: {one_line(said)}", file=sys.stderr)
    changed = None
    if older is not None:
        from rksp.report.diff import compare

        changed = compare(older, report, strict=True)
    report = report.model_copy(
        update={
            "provenance": report.provenance | made_with(context),
            "gate": bar.judge(report, changed),
            "baseline": changed,
        }
    )
    report = with_origins(report, run.origins, run.keys, _text(context, run, report, is_last))
    report = report.model_copy(update={"next_command": next_command(context, report)})
    return summarized(report)


def _text(
    context: typer.Context, run: RequestedRun, report: ScoreReport, is_last: bool
) -> RunText | None:
    """Return the run file's text, in which the last report finds the places of its fixes."""
    from rksp.recipe_files.said.edits import RunText

    if run.file is None or not is_last:
        return None
    asked = context.params
    return RunText.of(
        str(asked["recipe_file"] or asked["target"]),
        recipe=report.recipe,
        origins=run.origins,
        keys=run.keys,
        trainer=asked["as_format"],
        devices=asked["devices"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What was asked for: the run, how it is measured and judged, and how a page of it is drawn."""

    name: str
    run: RequestedRun
    source: ModelSource
    measure: MeasureOptions
    answer: Mapping[str, Any]
    seeds: int
    is_cached: bool
    shown: Callable[[ScoreReport], Any]


def _how_to_go_on(measure: MeasureOptions) -> str:
    again = "nothing was kept; the same command starts again"
    cheap = "--evidence config answers within seconds"
    return again if measure.evidence == "config" else f"{again}, and {cheap}"


def _silent(done: float, total: float, step: str) -> None:
    """Report no progress."""


def _told(report: Any, title: str, done: float, total: float, step: str) -> None:
    report(f"{title}: {step}", done, total)


def _scored(asked: _Asked, terminal: Console | None) -> ScoreReport:
    """Measure every seed, or read what was kept of it, and report them together.

    On a terminal the configuration's answer stands there meanwhile.
    """
    seeds = asked.seeds
    if asked.measure.evidence == "config" and seeds > 1:
        print("rksp: A configuration has no seed, so there is one answer.", file=sys.stderr)
        seeds = 1
    measure, run, source = counted_threads(asked.measure), asked.run, asked.source
    at_seeds = [
        measure.model_copy(update={"seed": seed})
        for seed in range(measure.seed, measure.seed + seeds)
    ]
    store = None
    if measure.evidence != "config":
        from rksp.assessment.store import MeasurementStore  # not for --help

        store = MeasurementStore.of(asked.is_cached)
    with collector_paused():
        from rksp.assessment.gathering import known
        from rksp.assessment.pipeline import evaluate, judge
        from rksp.assessment.report import score_report

    def evaluated(options: MeasureOptions, progress: Progress = _silent) -> Evaluation:
        return evaluate(
            source,
            run.recipe,
            options,
            **asked.answer,
            alternatives=run.alternatives,
            store=store,
            progress=progress,
        )

    evidence = [known(source, options, run.recipe, store) for options in at_seeds]
    if all(evidence):
        judged = [
            judge(definite(one), run.recipe, **asked.answer, alternatives=run.alternatives)
            for one in evidence
        ]
        return score_report(run.recipe, judged)
    page = None
    if terminal is not None and source.config is not None:
        configured = evaluated(measure.model_copy(update={"evidence": "config"}))
        if configured.risk is not None:
            page = asked.shown(score_report(run.recipe, [configured]))
    with live_progress() if page is None else standing(page, definite(terminal)) as report:
        source, memory = _ready(source, measure)
        evaluations = []
        with memory:
            for options in at_seeds:
                label = f"{one_line(asked.name, 60)} seed {options.seed}"
                evaluations.append(evaluated(options, partial(_told, report, label)))
    return score_report(run.recipe, evaluations)


def _met(run: RequestedRun, model: ModelOptions) -> tuple[ModelSource, RequestedRun]:
    """Return the model as its configuration shows it, and the run with what it shows of it."""
    with collector_paused():
        run, source = run.met(
            model.resolve(run.target, run.overrides, counts=False, is_typed=run.is_typed)
        )
        return source, run


def _with_levers(
    run: RequestedRun, source: ModelSource, asked: str | None, classifier: EdgePredictor | None
) -> tuple[RequestedRun, EdgePredictor | None]:
    """Return the run and the model of the edge with the levers that were asked for."""
    if asked is None:
        return run, classifier
    from rksp.assessment.applied import apply_levers
    from rksp.models.declared import Declared

    applied = apply_levers(
        [one for one in map(str.strip, asked.split(",")) if one],
        Declared(source.config, source.task),
        run.recipe,
        is_pretrained=source.holds_trained,
        model=classifier,
    )
    return run.changed(applied.recipe, applied.said), applied.model


def _ready(
    source: ModelSource, measure: MeasureOptions
) -> tuple[ModelSource, AbstractContextManager]:
    """Load what measures, and return the whole source and what memory does meanwhile.

    Freed memory is kept; a stream has buffers of its own.
    """
    with collector_paused():
        with_threads(measure)
        quiet_transformers()
        from rksp.models.streaming.opening import should_stream

        source = source.whole()
    streams = should_stream(source, measure.streaming, measure.max_memory, measure.evidence)
    return source, nullcontext() if streams else freed_memory_kept()


def _as_asked(
    report: ScoreReport,
    gate: GateOptions,
    levels: Mapping[str, str],
    overrides: Mapping[str, str],
) -> ScoreReport:
    """Keep the selected findings, and say which checks were left out and which settings typed."""
    from rksp.checks.selection import left_out, select_findings
    from rksp.documents.score import NotRunReport
    from rksp.documents.verdict import combined

    found = select_findings(report.findings, gate.select, gate.ignore, levels)
    dropped = {check.code: check for check in left_out(gate.select, gate.ignore)}
    not_run = [check for check in report.not_run if check.code not in dropped]
    not_run += [NotRunReport.of(check) for check in dropped.values()]
    target = report.target.model_copy(update={"overrides": sorted(overrides)})
    return report.model_copy(
        update={
            "findings": list(found),
            "verdict": combined(report.risk_verdict, found),
            "not_run": not_run,
            "target": target,
        }
    )


def _as_the_file_asks(
    report: ScoreReport, run: RequestedRun, gate: Gate
) -> tuple[ScoreReport, list[str]]:
    """Leave out the findings that comments of the run file silence, and say which.

    They silence no error, and nothing that fails the gate.

    Returns:
        The report, and a sentence for each comment that cannot silence what it names.
    """
    from rksp.checks.registry import CHECKS
    from rksp.documents.score import NotRunReport
    from rksp.documents.verdict import combined
    from rksp.recipe_files.said.ignored import apply_comments

    fields = {check.code: check.field for check in CHECKS}
    found = apply_comments(report.findings, fields, run.origins, run.file, gate.reaches)
    refused = [
        f"{place} cannot ignore {finding.code}, {_held(finding.level)}; "
        f"type --ignore {finding.code}"
        for finding, place in found.refused
    ]
    silenced = [
        NotRunReport(code=finding.code, name=finding.name, reason=f"{one_line(place)} ignores it")
        for finding, place in found.silenced
    ]
    changes = {
        "findings": found.kept,
        "not_run": [*report.not_run, *silenced],
        "verdict": combined(report.risk_verdict, found.kept),
    }
    return report.model_copy(update=changes), refused


def _held(level: str) -> str:
    return "an error" if level == "error" else f"a {level}, which fails the gate"


def _classifier(file: Path | None) -> EdgeModel | None:
    """Return the classifier of a file; None stands for the shipped one."""
    if file is None:
        return None
    from rksp.classifiers.edge_model import load_edge_model

    with reading(f"the model of the edge {one_line(str(file), 200)}"):
        return load_edge_model(file)
