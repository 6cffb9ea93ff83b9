"""`rksp score`: one target, one recipe, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.options import (
    AllowHub,
    BatchSize,
    Beta2,
    Clip,
    Devices,
    Epsilon,
    ExitZero,
    OptimizerName,
    Overrides,
    Precision,
    ProbeFile,
    RecipeFile,
    RiskBound,
    Schedule,
    SequenceLength,
    Snapshots,
    Threads,
    TrustRemoteCode,
    WarmupSteps,
    WeightDecay,
    assignments,
)
from rksp.cli.process import default_threads, quiet_transformers, stdout_for_us_alone
from rksp.cli.recipe_source import asked_for
from rksp.cli.rendering import (
    conclude,
    emit,
    format_help,
    load,
    made_with,
    output_help,
    outputs,
)
from rksp.errors import InputError
from rksp.report.diff import compare
from rksp.report.gate import Gate


def score(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="Model type (gpt2), config.json, checkpoint folder, Hub id, module:factory, or a "
            "trainer's run file that describes its model."
        ),
    ],
    recipe_file: RecipeFile = None,
    devices: Devices = None,
    lr: Annotated[
        float | None, typer.Option(help="Peak learning rate; without it, which one is safe.")
    ] = None,
    optimizer: OptimizerName = "adamw",
    warmup_steps: WarmupSteps = 0,
    max_steps: Annotated[int, typer.Option(help="Optimizer steps of the run.")] = 1000,
    schedule: Schedule = "cosine",
    batch_size: BatchSize = 32,
    sequence_length: SequenceLength = 256,
    clip: Clip = 1.0,
    weight_decay: WeightDecay = 0.0,
    beta2: Beta2 = 0.999,
    epsilon: Epsilon = 1e-8,
    precision: Precision = "fp32",
    evidence: Annotated[
        str, typer.Option(help="How much to spend: forward, response or micro.")
    ] = "response",
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Of the initialization.")] = 0,
    seeds: Annotated[int, typer.Option(help="Score this many seeds and report the spread.")] = 1,
    probe: ProbeFile = None,
    snapshots: Snapshots = 2048,
    blocks: Annotated[str | None, typer.Option(help="Module path of the list of blocks.")] = None,
    variant: Annotated[str, typer.Option(help="Definition of the spectrum.")] = "rksp-1",
    rank: Annotated[int | None, typer.Option(help="Principal directions kept.")] = None,
    kreiss: Annotated[bool, typer.Option("--kreiss", help="Kreiss constants (slow).")] = False,
    fail_on: Annotated[
        str, typer.Option(help="P(failed) at which the exit code is 1; or error, warning, never.")
    ] = "0.5",
    risk: RiskBound = 0.05,
    exit_zero: ExitZero = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Older JSON report: only what is new or worse counts.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help=format_help("score"))] = "text",
    output: Annotated[
        list[str] | None, typer.Option("-o", "--output", help=output_help("score"))
    ] = None,
    threads: Threads = None,
    max_params: Annotated[
        float, typer.Option(help="Stream larger models; with --stream never, refuse them.")
    ] = 2e9,
    stream: Annotated[
        str, typer.Option(help="Weights come and go block by block: auto, always or never.")
    ] = "auto",
    max_memory: Annotated[
        str | None, typer.Option(help="Refuse what needs more, such as 8GB; default what is free.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_hub: AllowHub = False,
) -> int:
    """How likely the run is to fail, why, and which learning rate is safe."""
    files = outputs(output_format, output)
    gate = Gate.parse(fail_on)
    older = None if baseline is None else load(baseline)
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; give at least 1.")
    asked = asked_for(context, target, recipe_file, devices)
    recipe = asked.recipe
    with stdout_for_us_alone():
        # Here and not above: --help must not wait for torch.
        import torch

        from rksp.features import Evidence
        from rksp.models.resolve import resolve
        from rksp.models.streaming.memory import parse_size
        from rksp.pipeline import evaluate
        from rksp.score_report import score_report

        if evidence.upper() not in Evidence.__members__ or evidence == "config":
            raise InputError(f"--evidence {evidence!r} is none of forward, response, micro.")
        count = threads or default_threads()
        torch.set_num_threads(count)
        quiet_transformers()
        source = resolve(
            asked.target,
            overrides={**asked.overrides, **assignments(overrides or [])},
            trust_remote_code=trust_remote_code,
            allow_hub=allow_hub,
            max_params=int(max_params),
        )
        evaluations = []
        for number in range(seed, seed + seeds):
            evaluation, shown = evaluate(
                source,
                recipe,
                seed=number,
                evidence=Evidence.parse(evidence),
                probe_file=probe,
                num_states=snapshots,
                blocks=blocks,
                variant=variant,
                rank=rank,
                kreiss=kreiss,
                workers=count,
                streaming=stream,
                max_memory=None if max_memory is None else parse_size(max_memory),
                threshold=gate.bar,
                risk=risk,
                progress=lambda step, number=number: _progress(f"{target} seed {number}: {step}"),
            )
            evaluations.append(evaluation)
        result = score_report(source, recipe, evaluations, shown.description)
    changed = None if older is None else compare(older, result, strict=True)
    command = made_with(context)
    result = result.model_copy(
        update={
            "provenance": result.provenance | command,
            "gate": gate.judge(result, changed),
            "baseline": changed,
            "recipe_places": dict(asked.places),
        }
    )
    emit(result, output_format, files)
    return conclude(result, exit_zero=exit_zero)


def _progress(line: str) -> None:
    print(f"rksp: {line} …", file=sys.stderr)
