"""Options that several commands share: the recipe's and those of every target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rksp.errors import InputError

RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="A trainer's run file; flags replace what it says."),
]
Devices = Annotated[
    int | None, typer.Option(help="Of the run, for batches a recipe file gives per device.")
]
OptimizerName = Annotated[str, typer.Option(help="adamw, sgd, lion, adafactor or muon.")]
WarmupSteps = Annotated[int, typer.Option(help="Linear warm-up.")]
Schedule = Annotated[str, typer.Option(help="constant, linear or cosine.")]
BatchSize = Annotated[int, typer.Option(help="Sequences per optimizer step.")]
SequenceLength = Annotated[int, typer.Option(help="Tokens per sequence.")]
Clip = Annotated[float, typer.Option(help="Gradient-norm clipping; 0 is off.")]
WeightDecay = Annotated[float, typer.Option(help="Decoupled where the optimizer has it.")]
Beta2 = Annotated[float, typer.Option(help="Adam's second beta.")]
Epsilon = Annotated[float, typer.Option(help="Adam's epsilon.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16, fp16, bf16-pure, fp16-pure.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
]
Snapshots = Annotated[int, typer.Option(help="Token states per block.")]
ProbeFile = Annotated[Path | None, typer.Option(help="Text to show instead of the bundled.")]
RiskBound = Annotated[float, typer.Option(help="Upper bound of the risk at the safe rate.")]
ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")]
Threads = Annotated[int | None, typer.Option(help="Default half of the cores.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the model code of a repository.")
]
AllowHub = Annotated[bool, typer.Option("--allow-hub", help="Let a Hub id download.")]


def assignments(pairs: list[str]) -> dict[str, str]:
    """The pairs of `--set`.

    Raises:
        InputError: One is not key=value.
    """
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InputError(f"--set {pair!r} is not key=value.")
        found[key] = value
    return found
