"""Options of the answer: when it fails a pipeline, and where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rksp.ground.flags import Flag
from rksp.ground.model import Finite
from rksp.report.formats import formats_of


class GateOptions(Finite):
    """Options of the exit code."""

    fail_on: Annotated[
        str,
        Flag(
            "--fail-on",
            "Exit with 1 from this P(failed) on, or give error, warning or never.",
            unit="bar",
        ),
    ] = "0.5"
    exit_zero: Annotated[bool, Flag("--exit-zero", "Never exit with 1.")] = False
    select: Annotated[
        list[str],
        Flag(
            "--select",
            "Report only these checks: codes, beginnings of codes, or names; repeatable.",
            unit="check",
        ),
    ] = []
    ignore: Annotated[
        list[str], Flag("--ignore", "Do not report these checks; repeatable.", unit="check")
    ] = []
    levels: Annotated[
        list[str],
        Flag(
            "--level",
            "Set the level of a check, such as RKSP503=note; repeatable.",
            unit="check=level",
        ),
    ] = []
    baseline: Annotated[
        Path | None,
        Flag(
            "--baseline",
            ("An older JSON report; only new and worse issues count for the exit code."),
        ),
    ] = None


class RiskOptions(Finite):
    """Options of the estimate of the risk."""

    risk: Annotated[
        float,
        Flag(
            "--risk",
            "Probability that the edge lies below the learning rate not to exceed.",
            unit="probability",
        ),
    ] = Field(default=0.05, gt=0, lt=1)
    classifier: Annotated[
        Path | None,
        Flag(
            "--classifier",
            ("A model of the edge from rksp lab fit; the default is the shipped one."),
        ),
    ] = None
    runs: Annotated[
        list[Path],
        Flag(
            "--runs",
            "Learn from past runs: files or folders, as for rksp runs; repeatable.",
            unit="path",
        ),
    ] = []


class ScoreOutput(Finite):
    """Options of the output of `rksp score`."""

    output_format: Annotated[
        Literal[tuple(formats_of("score"))],  # type: ignore[valid-type]  # a table
        Flag("--format", "Format of the output on stdout."),
    ] = "text"
    verbose: Annotated[
        bool,
        Flag("--verbose", "Print every measurement instead of the short page.", aliases=("-v",)),
    ] = False
    output: Annotated[
        list[str],
        Flag(
            "--output",
            "Also write FILE (.json .md .sarif .xml .html .txt) or FORMAT=FILE; repeatable.",
            aliases=("-o",),
            unit="file",
        ),
    ] = []

    @property
    def format(self) -> str:
        """The format of stdout: the full text where it was asked for."""
        return "full" if self.verbose and self.output_format == "text" else self.output_format


class ConfirmOutput(Finite):
    """Options of the output of `rksp confirm`."""

    output_format: Annotated[
        Literal[tuple(formats_of("confirm"))],  # type: ignore[valid-type]  # a table
        Flag("--format", "Format of the output on stdout."),
    ] = "text"
    output: Annotated[
        list[str],
        Flag(
            "--output",
            "Also write FILE (.json .md .sarif .xml .html .txt) or FORMAT=FILE; repeatable.",
            aliases=("-o",),
            unit="file",
        ),
    ] = []
