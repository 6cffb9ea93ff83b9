"""`rksp bench`: what rksp costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

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
    """Keep `rksp bench` a group of commands, whatever their number."""


@app.command()
def score(
    target: Annotated[str, typer.Argument(help="A target, as for rksp score.")] = "gpt2",
    width: Annotated[int, typer.Option(help="Width of the compared spectrum.")] = 768,
    states: Annotated[int, typer.Option(help="States of the compared spectrum.")] = 2048,
    rounds: Annotated[
        int, typer.Option(min=1, help="Repeat the score; the least time counts.")
    ] = 1,
) -> None:
    """Measure every stage of a score in forward passes, and one spectrum against PyDMD's."""
    import torch  # not for --help

    from rksp.bench.imports import import_cost
    from rksp.bench.score import score_cost
    from rksp.bench.spectra import compare_with_pydmd

    torch.set_num_threads(1)
    typer.echo("Processor seconds:")
    for row in import_cost(rounds):
        typer.echo(f"{row['stage']:<28}{row['seconds']:>8.2f} {row['torches']:>8.2f} import torch")
    with freed_memory_kept():
        rows = score_cost(target, rounds=rounds)
    for row in rows:
        typer.echo(f"{row['stage']:<28}{row['seconds']:>8.2f} {row['forward_passes']:>8.2f} passes")
    found = compare_with_pydmd(width=width, states=states)
    typer.echo(f"\nOne spectrum of width {width} from {states} states, processor seconds:")
    for whose, total in (("stages", "seconds_with_extras"), ("pydmd_stages", "pydmd_seconds")):
        typer.echo(f"  {'rksp' if whose == 'stages' else 'PyDMD':<38}{found[total]:>8.3f}")
        for stage, seconds in found[whose].items():
            typer.echo(f"    {stage:<36}{seconds:>8.3f}")
    typer.echo(
        f"  PyDMD's fit takes {found['speedup']:.2f} times ours; with the condition and the "
        f"residuals that\n  ours gives too, {found['speedup_same_outputs']:.2f} times. Largest "
        f"eigenvalue gap {found['eigenvalue_gap']:.1e}."
    )
