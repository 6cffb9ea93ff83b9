"""`rksp bench`: what rksp costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

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
) -> None:
    """Measure every stage of a score in forward passes, and one spectrum against PyDMD's."""
    import torch  # not for --help

    from rksp.bench.score import score_cost
    from rksp.bench.spectra import compare_with_pydmd

    torch.set_num_threads(1)
    for row in score_cost(target):
        typer.echo(
            f"{row['stage']:<24}{row['seconds']:>8.2f} s {row['forward_passes']:>8.2f} passes"
        )
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
