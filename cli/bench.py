"""`rksp bench`: what rksp costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="bench",
    help="What rksp costs on this machine, as ratios within one run.",
    no_args_is_help=True,
)


@app.command()
def score(
    target: Annotated[str, typer.Argument(help="As for rksp score.")] = "gpt2",
    width: Annotated[int, typer.Option(help="Of the spectrum compared with PyDMD's.")] = 768,
    states: Annotated[int, typer.Option(help="Of the spectrum compared with PyDMD's.")] = 2048,
) -> None:
    """Every stage of a score in forward passes, and one spectrum beside PyDMD's."""
    import torch  # not for --help

    from rksp.bench.score import score_cost
    from rksp.bench.spectra import compare_with_pydmd

    torch.set_num_threads(1)
    for row in score_cost(target):
        typer.echo(
            f"{row['stage']:<24}{row['seconds']:>8.2f} s {row['forward_passes']:>8.2f} passes"
        )
    for name, value in compare_with_pydmd(width=width, states=states).items():
        typer.echo(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")


@app.command()
def kernels() -> None:
    """Every kernel's reference and Triton program against the best library call."""
    from rksp.bench.kernels import run, to_markdown  # torch and triton, not for --help

    typer.echo(to_markdown(run()), nl=False)


@app.command()
def lab() -> None:
    """The lab's training step against a bare loop, and its throughput over processes."""
    from rksp.bench.lab import run  # not for --help

    for row in run():
        typer.echo(", ".join(f"{name} {value}" for name, value in row.items()))
