"""`rksp confirm`: a short run, several arms side by side, against the prediction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.confirm_progress import live_progress
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
    RecipeFile,
    Schedule,
    SequenceLength,
    Threads,
    TrustRemoteCode,
    WarmupSteps,
    WeightDecay,
    assignments,
)
from rksp.cli.process import default_threads, quiet_transformers, stdout_for_us_alone
from rksp.cli.recipe_source import asked_for
from rksp.cli.rendering import conclude, emit, format_help, made_with, output_help, outputs
from rksp.errors import InputError
from rksp.recipe import Recipe


def confirm(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="As for rksp score.")],
    recipe_file: RecipeFile = None,
    devices: Devices = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help="baseline, rate=0.3, or an intervention (kss, clip=0.5, kss:weight=1+clip=1); "
            "repeatable. Default baseline and rate=0.3.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Of every run; the schedule is shrunk to them.")] = 200,
    seeds: Annotated[int, typer.Option(help="Seeds, from --seed on; arms share them.")] = 3,
    seed: Annotated[int, typer.Option(help="The first one.")] = 0,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", help="Plant a defect (bitflip:step=50); repeatable."),
    ] = None,
    monitors: Annotated[
        list[str] | None,
        typer.Option("--monitor", help="Only these (name or name:every=5); repeatable."),
    ] = None,
    optimizer: OptimizerName = "adamw",
    warmup_steps: WarmupSteps = 0,
    max_steps: Annotated[int, typer.Option(help="Optimizer steps of the full run.")] = 1000,
    schedule: Schedule = "cosine",
    batch_size: BatchSize = 32,
    sequence_length: SequenceLength = 256,
    clip: Clip = 1.0,
    weight_decay: WeightDecay = 0.0,
    beta2: Beta2 = 0.999,
    epsilon: Epsilon = 1e-8,
    precision: Precision = "fp32",
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Micro-batches per optimizer step.")
    ] = None,
    evidence: Annotated[str, typer.Option(help="Of the prediction, as for score.")] = "response",
    overrides: Overrides = None,
    shrink: Annotated[
        bool,
        typer.Option("--shrink", help="Confirm a tiny model of the same type: another model."),
    ] = False,
    text: Annotated[Path | None, typer.Option(help="Train on this instead of Shakespeare.")] = None,
    fail_on: Annotated[float, typer.Option(help="P(failed) that counts as risk.")] = 0.5,
    exit_zero: ExitZero = False,
    output_format: Annotated[str, typer.Option("--format", help=format_help("confirm"))] = "text",
    output: Annotated[
        list[str] | None,
        typer.Option("-o", "--output", help=output_help("confirm")),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder for finished runs, readings and checkpoints from before trouble; the "
            "same command goes on from there."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Threads = None,
    max_params: Annotated[float, typer.Option(help="Refuse larger models.")] = 2e7,
    trust_remote_code: TrustRemoteCode = False,
    allow_hub: AllowHub = False,
) -> int:
    """Trains briefly with every monitor on: did the prediction hold, and what would have helped?"""
    files = outputs(output_format, output, "confirm")
    for name, value in (("--seeds", seeds), ("--steps", steps)):
        if value < 1:
            raise InputError(f"{name} is {value}; give at least 1.")
    asked = asked_for(context, target, recipe_file, devices)
    recipe = asked.recipe
    if accumulate is not None:
        recipe = Recipe.parse(recipe.model_dump() | {"gradient_accumulation_steps": accumulate})
    with stdout_for_us_alone():
        # Here and not above: --help must not wait for torch.
        import torch

        from rksp.confirm.arms import parse_arms
        from rksp.confirm.confirm import confirm as run_confirmation
        from rksp.features import Evidence
        from rksp.models.resolve import resolve, resolve_tiny

        if evidence.upper() not in Evidence.__members__ or evidence == "config":
            raise InputError(f"--evidence {evidence!r} is none of forward, response, micro.")
        if device != "cpu" and not torch.cuda.is_available():
            raise InputError(f"--device {device!r} is not at hand; use cpu.")
        if shrink and overrides:
            raise InputError("--shrink chooses the sizes itself; leave out --set, or --shrink.")
        torch.set_num_threads(threads or default_threads())
        quiet_transformers()
        source = (
            resolve_tiny(asked.target, max_params=int(max_params))
            if shrink
            else resolve(
                asked.target,
                overrides={**asked.overrides, **assignments(overrides or [])},
                trust_remote_code=trust_remote_code,
                allow_hub=allow_hub,
                max_params=int(max_params),
            )
        )
        try:
            with live_progress() as say:
                report = run_confirmation(
                    source,
                    recipe,
                    parse_arms(arms or ["rate=0.3"]),
                    steps=steps,
                    seeds=range(seed, seed + seeds),
                    faults=faults or (),
                    monitors=monitors or ("all",),
                    evidence=Evidence.parse(evidence),
                    threshold=fail_on,
                    text=text,
                    device=device,
                    folder=keep,
                    say=say,
                )
        except KeyboardInterrupt:
            print(f"rksp: {_how_to_go_on(keep)}", file=sys.stderr)
            raise
    command = made_with(context)
    report = report.model_copy(update={"provenance": report.provenance | command})
    emit(report, output_format, files)
    return conclude(report, exit_zero=exit_zero)


def _how_to_go_on(keep: Path | None) -> str:
    if keep is None:
        return "nothing was kept; with --keep FOLDER finished runs are, and the command goes on"
    return f"finished runs are in {keep}; the same command goes on from there"
