"""`rksp score`: one target, one recipe, one answer."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.recipe_source import asked_for
from rksp.cli.rendering import FORMAT_HELP, OUTPUT_HELP, command_line, emit, load, outputs
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
    recipe_file: Annotated[
        Path | None,
        typer.Option("--recipe", help="A trainer's run file; flags replace what it says."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Of the run, for batches a recipe file gives per device.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Peak learning rate; without it, which one is safe.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, sgd, lion, adafactor or muon.")] = "adamw",
    warmup_steps: Annotated[int, typer.Option(help="Linear warm-up.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Optimizer steps of the run.")] = 1000,
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
    evidence: Annotated[
        str, typer.Option(help="How much to spend: forward, response or micro.")
    ] = "response",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the initialization.")] = 0,
    seeds: Annotated[int, typer.Option(help="Score this many seeds and report the spread.")] = 1,
    probe: Annotated[Path | None, typer.Option(help="Text to show instead of the bundled.")] = None,
    snapshots: Annotated[int, typer.Option(help="Token states per block.")] = 2048,
    blocks: Annotated[str | None, typer.Option(help="Module path of the list of blocks.")] = None,
    variant: Annotated[str, typer.Option(help="Definition of the spectrum.")] = "rksp-1",
    rank: Annotated[int | None, typer.Option(help="Principal directions kept.")] = None,
    kreiss: Annotated[bool, typer.Option("--kreiss", help="Kreiss constants (slow).")] = False,
    fail_on: Annotated[
        str, typer.Option(help="P(failed) at which the exit code is 1; or error, warning, never.")
    ] = "0.5",
    risk: Annotated[float, typer.Option(help="Upper bound of the risk at the safe rate.")] = 0.05,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Older JSON report: only what is new or worse counts.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[list[str] | None, typer.Option("-o", "--output", help=OUTPUT_HELP)] = None,
    threads: Annotated[int | None, typer.Option(help="Default half of the cores.")] = None,
    max_params: Annotated[
        float, typer.Option(help="Stream larger models; with --stream never, refuse them.")
    ] = 2e9,
    stream: Annotated[
        str, typer.Option(help="Weights come and go block by block: auto, always or never.")
    ] = "auto",
    max_memory: Annotated[
        str | None, typer.Option(help="Refuse what needs more, such as 8GB; default what is free.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
    allow_hub: Annotated[bool, typer.Option("--allow-hub", help="Let a Hub id download.")] = False,
) -> int:
    """How likely the run is to fail, why, and which learning rate is safe."""
    files = outputs(output_format, output)
    gate = Gate.parse(fail_on)
    older = None if baseline is None else load(baseline)
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; give at least 1.")
    asked = asked_for(context, target, recipe_file, devices)
    recipe = asked.recipe
    with _stdout_for_us_alone():
        # Here and not above: --help must not wait for torch.
        import torch

        from rksp.features import Evidence
        from rksp.models.resolve import resolve
        from rksp.models.streaming.memory import parse_size
        from rksp.pipeline import evaluate
        from rksp.report.build import build_report

        if evidence.upper() not in Evidence.__members__ or evidence == "config":
            raise InputError(f"--evidence {evidence!r} is none of forward, response, micro.")
        count = threads or _default_threads()
        torch.set_num_threads(count)
        _quiet_transformers()
        source = resolve(
            asked.target,
            overrides={**asked.overrides, **_assignments(overrides or [])},
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
        result = build_report(source, recipe, evaluations, shown.description)
    changed = None if older is None else compare(older, result, strict=True)
    judged = gate.judge(result, changed)
    command = {"command": command_line(context)}
    result = result.model_copy(
        update={
            "provenance": result.provenance | command,
            "gate": judged,
            "baseline": changed,
            "recipe_places": dict(asked.places),
        }
    )
    emit(result, output_format, files)
    if judged.failed:
        print(f"rksp: exit {0 if exit_zero else 1}: {'; '.join(judged.reasons)}", file=sys.stderr)
    return 1 if judged.failed and not exit_zero else 0


def _assignments(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InputError(f"--set {pair!r} is not key=value.")
        found[key] = value
    return found


def _default_threads() -> int:
    """Two on CI, otherwise half of the cores: more threads than free cores cost tenfold."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return 2 if os.environ.get("CI") else max(1, (os.cpu_count() or 2) // 2)


def _progress(line: str) -> None:
    print(f"rksp: {line} …", file=sys.stderr)


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextlib.contextmanager
def _stdout_for_us_alone() -> Iterator[None]:
    """Sends what foreign code prints to stderr: stdout carries the result and nothing else."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # no real stdout, as under a test runner that closed it
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
