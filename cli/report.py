"""`rksp report` and `rksp schema`: stored reports again, and what they look like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.errors import ArtifactError, InputError


def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp score.")],
) -> int:
    """Shows a stored report."""
    from pydantic import ValidationError  # not for --help
    from rich.console import Console

    from rksp.report.schema import Report
    from rksp.report.terminal import render

    try:
        stored = Report.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise ArtifactError(
            f"{file} is not a report of this rksp: {where}: {first['msg']}."
        ) from None
    render(stored, Console(highlight=False))
    return 0


def schema() -> int:
    """Prints the JSON Schema of the report."""
    from rksp.report.schema import Report

    sys.stdout.write(json.dumps(Report.model_json_schema(), indent=1, sort_keys=True) + "\n")
    return 0
