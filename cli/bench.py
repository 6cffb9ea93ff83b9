"""`rksp bench`: what rksp costs on this machine."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rksp.cli.options import assignments

app = typer.Typer(
    name="bench",
    help="What rksp costs on this machine, as ratios within one run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
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


@app.command()
def monitors(
    rounds: Annotated[int, typer.Option(help="Steps of every kind.")] = 3,
    output_format: Annotated[
        Literal["text", "json"], typer.Option("--format", help="What to print.")
    ] = "text",
) -> None:
    """Every monitor and intervention as a share of a training step at its default cadence."""
    import json

    import torch  # not for --help

    from rksp.bench.monitors import monitor_cost

    torch.set_num_threads(1)
    rows = monitor_cost(rounds=rounds)
    if output_format == "json":
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        every = f"every {row['every']}" if "every" in row else ""
        time = f"{row['ms']:>9.1f} ms" if "ms" in row else ""
        share = f"{row['share']:>8.2%}" if "share" in row else row["reason"]
        typer.echo(f"{row['name']:<32}{every:<11}{time:<13}{share}")


@app.command()
def alarms(
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "0",
    steps: Annotated[int, typer.Option(help="Of every run, 50 of them warm-up.")] = 500,
    densest: Annotated[
        int | None, typer.Option(help="Read every monitor at least this often.")
    ] = None,
) -> None:
    """False alarms of the whole set of monitors in healthy runs of six small models."""
    import torch  # not for --help

    from rksp.bench.alarms import FAMILIES, false_alarms, healthy_run

    torch.set_num_threads(1)
    runs = [
        healthy_run(family, int(seed), steps=steps, densest=densest)
        for seed in seeds.split(",")
        for family in FAMILIES
    ]
    typer.echo(f"{sum(part.steps for part in runs)} healthy steps after warm-up")
    for row in false_alarms(runs):
        typer.echo(f"{row['monitor']:<22}{row['readings']:>8} readings{row['alarms']:>5} alarms")


@app.command()
def stream(
    target: Annotated[
        str,
        typer.Argument(
            help="llama-2-7b, llama-3.1-70b, llama-3.1-405b, deepseek-v3, or as for rksp score."
        ),
    ] = "llama-2-7b",
    tokens: Annotated[int, typer.Option(help="Of the probe.")] = 256,
    layers: Annotated[int | None, typer.Option(help="Cut to so many and extrapolate.")] = None,
    threads: Annotated[int, typer.Option(help="That prepare weights and multiply.")] = 1,
    max_memory: Annotated[str | None, typer.Option(help="As for rksp score.")] = None,
    spectra: Annotated[bool, typer.Option(help="Fit the spectra too.")] = True,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
) -> None:
    """A pass over a model that is never whole in memory: peak, cost, and the floors of both."""
    from rksp.bench.stream import run  # not for --help
    from rksp.sizes import parse_size

    for row in run(
        target,
        tokens=tokens,
        layers=layers,
        threads=threads,
        max_memory=None if max_memory is None else parse_size(max_memory),
        spectra=spectra,
        overrides=assignments(overrides or []),
    ):
        typer.echo(f"{row['name']}: {row['value']}")


@app.command()
def grid(
    target: Annotated[str, typer.Argument(help="As for rksp score.")] = "gpt2",
    models: Annotated[int, typer.Option(help="Distinct initializations.")] = 10,
    cells: Annotated[int, typer.Option(help="Of the whole grid.")] = 1000,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Configuration key=value; repeatable.")
    ] = None,
) -> None:
    """A grid of rates and warm-ups against the sum of its models' profiles."""
    from rksp.bench.grid import grid_cost  # torch, not for --help

    settings = assignments(overrides or [])
    for name, value in grid_cost(target, overrides=settings, models=models, cells=cells).items():
        typer.echo(f"{name}: {value:.4g}")
