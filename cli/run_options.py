"""Options of the run: its file, and from which weights it starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rksp.cli.options import Given, flag_names
from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.flags import Flag
from rksp.ground.model import Finite
from rksp.ground.text import one_line
from rksp.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rksp.classifiers.edge_model import EdgeModel
    from rksp.run import Question, Run


class RunOptions(Finite):
    """Options of the run beside the fields of its recipe."""

    recipe_file: Annotated[
        Path | None, Flag("--recipe", "A trainer's run file; options override its settings.")
    ] = None
    devices: Annotated[
        int | None,
        Flag(
            "--devices",
            "Number of devices in the run; needed where a run file gives the batch per device.",
            unit="devices",
        ),
    ] = None
    as_format: Annotated[
        str | None,
        Flag(
            "--as",
            "Read the run file as this trainer's; the default is to recognize the trainer.",
            unit="trainer",
        ),
    ] = None
    is_pretrained: Annotated[
        bool | None,
        Flag(
            "--pretrained/--from-scratch",
            "The run starts from trained weights, or from random ones; the default is what the "
            "target and the run file show.",
        ),
    ] = None

    is_strict: Annotated[
        bool, Flag("--strict", "Refuse a run file with a setting that rksp does not know.")
    ] = False

    def run(self, target: str, given: Given[Recipe]) -> Run:
        """Return the run of a target; what is to be known about its file is said on stderr.

        Raises:
            InputError: See `rksp.run.Run.read`.
        """
        from rksp.run import Run

        with reading(f"the run file {one_line(str(self.recipe_file or target), 200)}"):
            run = Run.read(
                target,
                {name: given.values[name] for name in given.typed},
                file=self.recipe_file,
                devices=self.devices,
                trainer=self.as_format,
                strict=self.is_strict,
                flags=flag_names(Recipe),
            )
        say(run.notes)
        return replace(run, is_pretrained=self.is_pretrained)


class SoftwareOptions(Finite):
    """Options of the software and the hardware that train."""

    env: Annotated[
        Path | None,
        Flag(
            "--env",
            "The software that trains, where it is not this Python: what pip freeze prints, a "
            "lock file, requirements, environment.yml or a Dockerfile.",
        ),
    ] = None
    gpu: Annotated[
        str | None, Flag("--gpu", "The accelerator that trains, such as h100.", unit="name")
    ] = None


def learned(question: Question, paths: Sequence[Path], prior: EdgeModel | None = None) -> Question:
    """Return the question to a classifier that knows past runs; say if they move nothing.

    Raises:
        InputError: A path holds no run that can be read.
    """
    if not paths:
        return question.learning((), prior)
    with reading(f"the runs {one_line(', '.join(map(str, paths)), 200)}", PAST_RUNS):
        question = question.learning(paths, prior)
    if question.unlearned:
        say([f"nothing is learned from the runs: {question.unlearned}"])
    return question


def say(notes: Iterable[str]) -> None:
    """Print notes on stderr, a line each."""
    for note in notes:
        print(f"rksp: {one_line(note)}", file=sys.stderr)
