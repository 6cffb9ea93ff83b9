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
from rksp.cli.own_runs import learned_from
from rksp.cli.process import (
    collector_paused,
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
    from rksp.classifiers.edge_model import EdgeModel, EdgePredictor
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
    apply: Apply = None,
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
            source, run = _met(run, model, measure)
            classifier = _classifier(risk.classifier)
            classifier, own_runs = learned_from(risk.runs, source, run.recipe, classifier)
            run, classifier = _with_levers(run, source, apply, classifier)
            answer = {"risk": risk.risk, "classifier": classifier, "threshold": bar.bar}
            result = _scored(target, run, source, measure, answer, seeds=seeds)
            result = result.model_copy(update={"own_runs": own_runs}).finite()
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


def _met(
    run: RequestedRun, model: ModelOptions, measure: MeasureOptions
) -> tuple[ModelSource, RequestedRun]:
    """Return the model, and the run with what its model shows of it."""
    counts = measure.evidence != "config"
    with collector_paused():
        if counts:
            quiet_transformers()
        run, source = run.met(model.resolve(run.target, run.overrides, counts=counts))
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


def _scored(
    name: str,
    run: RequestedRun,
    source: ModelSource,
    measure: MeasureOptions,
    answer: Mapping[str, Any],
    *,
    seeds: int,
) -> ScoreReport:
    """Measure every seed, and report them together."""
    with collector_paused():
        measure = with_threads(measure)
    # Here and not above: --help does not need them.
    with collector_paused():
        from rksp.assessment.pipeline import evaluate
        from rksp.assessment.report import score_report
    if measure.evidence == "config" and seeds > 1:
        print("rksp: A configuration has no seed, so there is one answer.", file=sys.stderr)
        seeds = 1
    evaluations = []
    with live_progress() as report, _memory(source, measure):
        for seed in range(measure.seed, measure.seed + seeds):
            evaluation, probe = evaluate(
                source,
                run.recipe,
                measure.model_copy(update={"seed": seed}),
                **answer,
                alternatives=run.alternatives,
                progress=partial(_told, report, f"{one_line(name, 60)} seed {seed}"),
            )
            evaluations.append(evaluation)
    shown = "nothing" if probe is None else probe.description
    return score_report(source, run.recipe, evaluations, shown)


def _memory(source: ModelSource, measure: MeasureOptions) -> AbstractContextManager:
    """Keep freed memory while a model is measured; a stream has buffers of its own."""
    if measure.evidence == "config":
        return nullcontext()
    from rksp.models.streaming.opening import should_stream

    streams = should_stream(
        source,
        measure.streaming,
        measure.max_memory,
        with_response=measure.evidence != "forward",
    )
    return nullcontext() if streams else freed_memory_kept()


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


def _classifier(file: Path | None) -> EdgeModel | None:
    """Return the classifier of a file; None stands for the shipped one."""
    from rksp.classifiers.edge_model import load_edge_model

    if file is None:
        return None
    with reading(f"the model of the edge {one_line(str(file), 200)}"):
        return load_edge_model(file)
