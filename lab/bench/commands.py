"""`python -m lab bench`: what rksp costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from rksp.cli.options import as_count
from rksp.ground.allocator import freed_memory_kept

app = typer.Typer(
    name="bench",
    help="Measure the cost of rksp on this machine, as ratios within one run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@app.callback()
def bench() -> None:
    """Keep `bench` a group of commands, whatever their number."""


@app.command()
def score(
    target: Annotated[str, typer.Argument(help="A target, as for rksp score.")] = "gpt2",
    rounds: Annotated[
        int,
        typer.Option(
            metavar="ROUNDS", parser=as_count(1), help="Repeat the score; the least time counts."
        ),
    ] = 1,
) -> None:
    """Measure every stage of a score, in forward passes, and whole commands in starts of Python."""
    import torch  # not for --help

    from lab.bench.command_cost import command_cost
    from lab.bench.cost import import_cost, score_cost

    torch.set_num_threads(1)
    typer.echo("Processor seconds:")
    for row in import_cost(rounds):
        typer.echo(f"{row['stage']:<28}{row['seconds']:>8.2f} {row['torches']:>8.2f} import torch")
    with freed_memory_kept():
        rows = score_cost(target, rounds=rounds)
    for row in rows:
        typer.echo(f"{row['stage']:<28}{row['seconds']:>8.2f} {row['forward_passes']:>8.2f} passes")
    forward = rows[0]["seconds"]
    typer.echo("Whole commands, with the most memory of one process:")
    for cost in command_cost(target):
        seconds, peak = cost.usage.seconds, cost.usage.peak / 1e6
        typer.echo(
            f"{cost.stage:<28}{seconds:>8.2f} {seconds / forward:>8.2f} passes "
            f"{cost.starts:>8.1f} starts {peak:>8,.0f} MB"
        )
