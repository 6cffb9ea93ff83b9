"""`rksp score`: one target, one recipe, one answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksp.cli.model_options import ModelOptions
from rksp.cli.next_step import next_command
from rksp.cli.options import (
    AsFormat,
    Devices,
    Given,
    Panel,
    RecipeFile,
    assignments,
    brief,
    with_options,
)
from rksp.cli.output_options import GateOptions, RiskOptions, ScoreOutput
from rksp.cli.process import (
    collector_paused,
    counted_threads,
    quiet_transformers,
    reading,
    stdout_for_us_alone,
    with_threads,
)
from rksp.cli.progress import live_progress
from rksp.cli.recipe_source import RequestedRun, requested_run
from rksp.cli.rendering import conclude, emit, load, made_with, outputs
from rksp.ground.allocator import freed_memory_kept
from rksp.ground.text import one_line
from rksp.options import MeasureOptions
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from rksp.documents.score import ScoreReport
    from rksp.models.source import ModelSource

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
        min=1,
        help="Score this many seeds, starting at --seed, and report the spread.",
        metavar="SEEDS",
        rich_help_panel="Measurement",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Measure anew, and keep nothing for the next score of this model.",
        rich_help_panel="Measurement",
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
) -> int:
    """Say how likely the run is to fail, why, and at which learning rate to start."""
    from rksp.checks.selection import select_findings
    from rksp.recipe_files.said.reported import with_origins
    from rksp.report.diff import compare
    from rksp.report.gate import Gate

    files = outputs(output.output_format, output.output)
    bar = Gate.parse(gate.fail_on)
    older = None if gate.baseline is None else load(gate.baseline)
    levels = assignments(gate.levels, "--level")
    select_findings((), gate.select, gate.ignore, levels)  # before the work
    run = requested_run(target, recipe, recipe_file, devices, as_format)
    with stdout_for_us_alone():
        try:
            result = _scored(
                target,
                run,
                measure,
                model,
                risk,
                seeds=seeds,
                threshold=bar.bar,
                is_cached=not no_cache,
            )
        except KeyboardInterrupt:
            print(f"rksp: {_how_to_go_on(measure)}", file=sys.stderr)
            raise
    result = _as_asked(result, gate, levels, assignments(model.overrides))
    result = _as_the_file_asks(result, run)
    changed = None if older is None else compare(older, result, strict=True)
    result = result.model_copy(
        update={
            "provenance": result.provenance | made_with(context),
            "gate": bar.judge(result, changed),
            "baseline": changed,
        }
    )
    result = with_origins(result, run.origins, run.keys)
    result = result.model_copy(update={"next_command": next_command(context, result)})
    emit(result, output.format, files)
    return conclude(result, exit_zero=gate.exit_zero)


def _how_to_go_on(measure: MeasureOptions) -> str:
    again = "nothing was kept; the same command starts again"
    cheap = "--evidence config answers within seconds"
    return again if measure.evidence == "config" else f"{again}, and {cheap}"


def _told(report: Any, title: str, done: float, total: float, step: str) -> None:
    report(f"{title}: {step}", done, total)


def _scored(
    name: str,
    run: RequestedRun,
    measure: MeasureOptions,
    model: ModelOptions,
    risk: RiskOptions,
    *,
    seeds: int,
    threshold: float,
    is_cached: bool,
) -> ScoreReport:
    """Measure every seed, or read what was kept of it, and report them together."""
    from rksp.assessment.store import MeasurementStore  # not for --help

    classifier = _classifier(risk.classifier)
    if measure.evidence == "config" and seeds > 1:
        print("rksp: A configuration has no seed, so there is one answer.", file=sys.stderr)
        seeds = 1
    measure = counted_threads(measure)
    at_seeds = [
        measure.model_copy(update={"seed": seed})
        for seed in range(measure.seed, measure.seed + seeds)
    ]
    store = MeasurementStore.of(is_cached)
    with collector_paused():
        source = run.started(model.resolve(run.target, run.overrides, counts=False))
        from rksp.assessment.gathering import is_known
        from rksp.assessment.pipeline import evaluate
        from rksp.assessment.report import score_report
    if all(is_known(source, options, run.recipe, store) for options in at_seeds):
        memory: AbstractContextManager = nullcontext()
    else:
        source, memory = _ready(source, measure)
    evaluations = []
    with live_progress() as report, memory:
        for options in at_seeds:
            label = f"{one_line(name, 60)} seed {options.seed}"
            evaluation = evaluate(
                source,
                run.recipe,
                options,
                threshold=threshold,
                risk=risk.risk,
                classifier=classifier,
                alternatives=run.alternatives,
                store=store,
                progress=partial(_told, report, label),
            )
            evaluations.append(evaluation)
    return score_report(run.recipe, evaluations)


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
    streams = should_stream(
        source,
        measure.streaming,
        measure.max_memory,
        with_response=measure.evidence != "forward",
    )
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


def _as_the_file_asks(report: ScoreReport, run: RequestedRun) -> ScoreReport:
    """Leave out the findings that comments of the run file silence, and say which; never errors."""
    from rksp.checks.registry import CHECKS
    from rksp.documents.score import NotRunReport
    from rksp.documents.verdict import combined
    from rksp.recipe_files.said.ignored import apply_comments

    fields = {check.code: check.field for check in CHECKS}
    found = apply_comments(report.findings, fields, run.origins, run.file)
    for finding, place in found.refused:
        said = f"{place} cannot ignore {finding.code}, an error; type --ignore {finding.code}"
        print(f"rksp: {one_line(said)}", file=sys.stderr)
    silenced = [
        NotRunReport(code=finding.code, name=finding.name, reason=f"{one_line(place)} ignores it")
        for finding, place in found.silenced
    ]
    return report.model_copy(
        update={
            "findings": found.kept,
            "not_run": [*report.not_run, *silenced],
            "verdict": combined(report.risk_verdict, found.kept),
        }
    )


def _classifier(file: Path | None):
    """Return the classifier of a file; None stands for the shipped one."""
    from rksp.classifiers.edge_model import load_edge_model

    if file is None:
        return None
    with reading(f"the model of the edge {one_line(str(file), 200)}"):
        return load_edge_model(file)
