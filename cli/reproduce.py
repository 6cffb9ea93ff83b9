"""`rksp reproduce`: compare our results with a published table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.progress import counted
from rksp.ground.errors import InputError, nearest
from rksp.ground.files import check_writable

# Here and not in the catalog of experiments, which needs torch.
NAMES = {
    "kss": "Koopman Spectral Shaping against its alternatives, in the paper's task.",
    "kss-learns": "Koopman Spectral Shaping where runs learn the task.",
    "msign-learns": "MSign where runs learn the task.",
    "kss-batch": "Koopman Spectral Shaping at four times the batch.",
    "msign": "MSign where training diverges.",
    "msign-deep": "MSign where a deep model stalls.",
    "cross-talk": "Which monitor sees which fault, and how early.",
    "failures": "Public failures replayed beside healthy twins.",
    "profiles": "Near-unit mass, stable rank and QK rank over runs that learn.",
    "cost": "What interventions add to a step.",
    "table-1": "Spectra at initialization by normalization (arXiv 2602.22988, Table 1).",
    "profiles-vit": "Preset: the paper's ViT on your copy of CIFAR-10 (--data FOLDER).",
    "profiles-gpt2": "Preset: the paper's GPT-2 on your text or Parquet file (--data FILE).",
}


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            help=("Folder for the trials, one file each; the same command resumes from it.")
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your copy of a preset's data; nothing is ever downloaded."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of processes, each with one thread; the default is one per core."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the rows of the table here.")
    ] = None,
    stored: Annotated[
        bool,
        typer.Option(
            "--stored", help=("Train nothing; use the trials in --folder or the shipped ones.")
        ),
    ] = False,
) -> None:
    """Run a published experiment again and print a comparison as Markdown.

    Alarms of cross-talk are judged anew from the stored readings, by the rules of today.
    """
    if name not in NAMES:
        hint = nearest(name, NAMES) or f"; choose among {', '.join(NAMES)}."
        raise InputError(f"There is no experiment {name!r}{hint}")
    if output is not None:
        check_writable(output)
    from rksp.confirm.experiments.run import reproduce as run  # torch, not for --help

    # Only what trains for long has a progress to show.
    shown = counted(f"reproduce {name}", "trials") if folder and not stored else nullcontext()
    with shown as report:
        options = {} if report is None else {"progress": report}
        options |= {} if data is None else {"data": data}
        tables = run(name, folder=folder, workers=workers, output=output, stored=stored, **options)
    typer.echo(tables, nl=False)
