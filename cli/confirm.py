"""`rksp confirm`: a short run, several arms side by side, against the prediction."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.score import (
    _assignments,
    _default_threads,
    _quiet_transformers,
    _stdout_for_us_alone,
)
from rksp.errors import InputError
from rksp.recipe import Recipe

_SPARSE_SECONDS = 30.0  # between progress lines where stderr is no terminal
_LIVE_SECONDS = 0.5


def confirm(
    target: Annotated[str, typer.Argument(help="As for rksp score.")],
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
    optimizer: Annotated[str, typer.Option(help="adamw, sgd, lion, adafactor or muon.")] = "adamw",
    warmup_steps: Annotated[int, typer.Option(help="Linear warm-up.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Optimizer steps of the full run.")] = 1000,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "cosine",
    batch_size: Annotated[int, typer.Option(help="Sequences per optimizer step.")] = 32,
    sequence_length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 256,
    clip: Annotated[float, typer.Option(help="Gradient-norm clipping; 0 is off.")] = 1.0,
    weight_decay: Annotated[float, typer.Option()] = 0.0,
    beta2: Annotated[float, typer.Option(help="Adam's second beta.")] = 0.999,
    epsilon: Annotated[float, typer.Option(help="Adam's epsilon.")] = 1e-8,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, fp16, bf16-pure, fp16-pure.")
    ] = "fp32",
    accumulate: Annotated[int, typer.Option(help="Micro-batches per optimizer step.")] = 1,
    evidence: Annotated[str, typer.Option(help="Of the prediction, as for score.")] = "response",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option("--shrink", help="Confirm a tiny model of the same type: another model."),
    ] = False,
    text: Annotated[Path | None, typer.Option(help="Train on this instead of Shakespeare.")] = None,
    fail_on: Annotated[float, typer.Option(help="P(failed) that counts as risk.")] = 0.5,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")] = False,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the JSON report here.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for readings and checkpoints from before trouble."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Default half of the cores.")] = None,
    max_params: Annotated[float, typer.Option(help="Refuse larger models.")] = 2e7,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
    allow_hub: Annotated[bool, typer.Option("--allow-hub", help="Let a Hub id download.")] = False,
) -> int:
    """Trains briefly with every monitor on: did the prediction hold, and what would have helped?"""
    if output_format not in ("text", "json"):
        raise InputError(f"--format {output_format!r} is neither text nor json.")
    for name, value in (("--seeds", seeds), ("--steps", steps)):
        if value < 1:
            raise InputError(f"{name} is {value}; give at least 1.")
    if output is not None and not output.parent.is_dir():
        raise InputError(f"--output {output}: there is no folder {output.parent}.")
    recipe = Recipe.parse(
        {
            "learning_rate": lr,
            "optimizer": optimizer,
            "warmup_steps": warmup_steps,
            "max_steps": max_steps,
            "schedule": schedule,
            "batch_size": batch_size,
            "sequence_length": sequence_length,
            "max_grad_norm": clip or None,
            "weight_decay": weight_decay,
            "adam_beta2": beta2,
            "adam_epsilon": epsilon,
            "precision": precision,
            "gradient_accumulation_steps": accumulate,
        }
    )
    progress = _Progress()
    with _stdout_for_us_alone():
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
        torch.set_num_threads(threads or _default_threads())
        _quiet_transformers()
        source = (
            resolve_tiny(target, max_params=int(max_params))
            if shrink
            else resolve(
                target,
                overrides=_assignments(overrides or []),
                trust_remote_code=trust_remote_code,
                allow_hub=allow_hub,
                max_params=int(max_params),
            )
        )
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
            say=progress,
        )
    progress.close()
    if output is not None:
        output.write_text(report.to_json(), encoding="utf-8")
    if output_format == "json":
        sys.stdout.write(report.to_json())
    else:
        from rich.console import Console

        from rksp.confirm.terminal import render

        render(report, Console(highlight=False))
    return 1 if report.verdict == "failed" and not exit_zero else 0


class _Progress:
    """One line on stderr that is rewritten where that is possible, and sparse lines elsewhere."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._said = 0.0
        self._run = ""

    def __call__(self, line: str) -> None:
        run, now = line.partition(":")[0], time.monotonic()
        wait = _LIVE_SECONDS if self._is_live else _SPARSE_SECONDS
        if run == self._run and now - self._said < wait and ": step " in line:
            return
        self._run, self._said = run, now
        if self._is_live:
            print(f"\r\x1b[Krksp: {line}", end="", file=sys.stderr, flush=True)
        else:
            print(f"rksp: {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line that was being rewritten."""
        if self._is_live:
            print(file=sys.stderr)
