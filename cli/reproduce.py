"""`rksp reproduce`: our results beside a published table."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from rksp.ground.errors import InputError, nearest

# The experiments that are shipped; lab/experiments made them and makes them again.
SHIPPED = {
    "kss": "Koopman Spectral Shaping against its alternatives, in the paper's task.",
    "kss-learns": "Koopman Spectral Shaping where runs learn the task.",
    "msign-learns": "MSign where runs learn the task.",
    "msign": "MSign where training diverges.",
    "msign-deep": "MSign where a deep model stalls.",
    "cross-talk": "Which monitor sees which fault, and how early.",
    "failures": "Public failures replayed beside healthy twins.",
    "profiles": "Near-unit mass, stable rank and QK rank over runs that learn.",
    "cost": "What interventions add to a step.",
    "kss-frontier": "What settings of Koopman Spectral Shaping and MSign save, and at which loss.",
    "shaping": "What saves a run that fails: step clip, clipping, MSign, half the rate.",
}


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(SHIPPED)}.")],
    stored: Annotated[
        bool, typer.Option("--stored", help="Print the results that rksp ships.")
    ] = False,
) -> None:
    """Print a published experiment beside our results, as Markdown.

    To train it again takes the repository: lab/README.md says how.
    """
    if name not in SHIPPED:
        hint = nearest(name, SHIPPED) or f"; choose among {', '.join(SHIPPED)}."
        raise InputError(f"There is no experiment {name!r}{hint}")
    if not stored:
        raise InputError(
            f"Training {name} again takes hours and rksp's repository, where lab/README.md "
            "says how; give --stored for the shipped results."
        )
    typer.echo(shipped_file(name).read_text(encoding="utf-8"), nl=False)


def shipped_file(name: str) -> Path:
    """Return the file of an experiment's tables."""
    return Path(str(files("rksp.confirm") / "results" / f"{name}.md"))
