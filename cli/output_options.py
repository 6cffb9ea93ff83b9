"""Options of the answer: when it fails a pipeline, and where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rksp.ground.flags import Flag
from rksp.ground.model import Finite
from rksp.report.formats import FORMATS, formats_of, suffixes_of

FailOn = Annotated[
    list[str],
    Flag(
        "--fail-on",
        "Exit with 1 from this P(failed) on, or at a finding of level error or warning; never is "
        "off. With unknown, exit with 4 where rksp cannot tell. Repeatable.",
        unit="bar",
        from_file=True,  # only where it makes the gate stricter
    ),
]
ExitZero = Annotated[bool, Flag("--exit-zero", "Exit with 0 in place of 1 and 4.")]


def format_of(kind: str | None) -> Any:
    """Return the type of `--format` for one kind of document, or for any."""
    names = formats_of(kind) if kind else tuple(found.name for found in FORMATS)
    return Annotated[Literal[names], Flag("--format", "Format of the output on stdout.")]


def files_of(kind: str | None) -> Any:
    """Return the type of `--output` for one kind of document, or for any."""
    said = f"Also write FILE ({suffixes_of(kind)}) or FORMAT=FILE; repeatable."
    return Annotated[list[str], Flag("--output", said, aliases=("-o",), unit="file")]


class GateOptions(Finite):
    """Options of the exit code."""

    fail_on: FailOn = ["0.5"]
    exit_zero: ExitZero = False
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
            ("A model of the edge from python -m lab fit; the default is the shipped one."),
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

    output_format: format_of("score") = "text"  # type: ignore[valid-type]  # a table
    verbose: Annotated[
        bool,
        Flag(
            "--verbose",
            "Print every measurement instead of the short page.",
            aliases=("-v",),
            from_file=True,
        ),
    ] = False
    output: files_of("score") = []  # type: ignore[valid-type]  # a table

    @property
    def format(self) -> str:
        """The format of stdout: the full text where it was asked for."""
        return "full" if self.verbose and self.output_format == "text" else self.output_format


class ConfirmOutput(Finite):
    """Options of the output of `rksp confirm`."""

    output_format: format_of("confirm") = "text"  # type: ignore[valid-type]  # a table
    output: files_of("confirm") = []  # type: ignore[valid-type]  # a table


class ReportOutput(Finite):
    """Options of the output of `rksp report`."""

    output_format: format_of(None) = "text"  # type: ignore[valid-type]  # a table
    output: files_of(None) = []  # type: ignore[valid-type]  # a table


class DiffOutput(Finite):
    """Options of the output and exit code of `rksp diff`."""

    fail_on: FailOn = ["error"]
    exit_zero: ExitZero = False
    output_format: format_of("diff") = "text"  # type: ignore[valid-type]  # a table
