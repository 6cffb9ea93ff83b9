"""Options of the answer: when it fails a pipeline, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rksp.flags import Flag


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GateOptions(_Options):
    """When the exit code is 1."""

    fail_on: Annotated[
        str,
        Flag(
            "--fail-on",
            "P(failed) at which the exit code is 1; or error, warning, never.",
            unit="bar",
        ),
    ] = "0.5"
    exit_zero: Annotated[bool, Flag("--exit-zero", "Never exit with 1.")] = False
    baseline: Annotated[
        Path | None, Flag("--baseline", "Older JSON report: only what is new or worse counts.")
    ] = None


class RiskOptions(_Options):
    """How evidence becomes a probability and a safe rate."""

    risk: Annotated[
        float, Flag("--risk", "Upper bound of P(failed) at the safe rate.", unit="probability")
    ] = Field(default=0.05, gt=0, lt=1)
    classifier: Annotated[
        Path | None,
        Flag("--classifier", "A classifier that rksp lab fit wrote; default the shipped one."),
    ] = None


class ScoreOutput(_Options):
    """Where a report of `rksp score` goes."""

    output_format: Annotated[
        Literal["text", "json", "markdown", "sarif", "junit", "github", "gitlab", "html"],
        Flag("--format", "What to print."),
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


class ConfirmOutput(_Options):
    """Where a report of `rksp confirm` goes."""

    output_format: Annotated[
        Literal["text", "json", "html"], Flag("--format", "What to print.")
    ] = "text"
    output: Annotated[
        list[str],
        Flag(
            "--output",
            "Also write FILE (.json .html .txt); repeatable.",
            aliases=("-o",),
            unit="file",
        ),
    ] = []
