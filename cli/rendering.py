"""Reading and writing of documents, and the command that gives one again or comes next."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from rksp.cli.app import CommandTable
from rksp.cli.mistakes import refuse_other
from rksp.ground.budgets import reading
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import atomic_write, check_writable, read_limited
from rksp.ground.model import definite
from rksp.ground.text import one_line, printable, safe_strings, words
from rksp.question.next_step import as_typed
from rksp.recipe import Recipe
from rksp.report.formats import (
    PLAIN_WIDTH,
    Output,
    check_format,
    render,
    rendering,
    schema_of,
)

if TYPE_CHECKING:
    from rksp.documents.base import Document
    from rksp.documents.score import ScoreReport


_LARGEST = 64 * 2**20  # bytes of a stored report; a grid of 10,000 cells has some 10 MB
_MARKUP = ("html", "junit")  # what a stream cannot encode has a form of its own here
# What changes where the answer goes or how it counts, but not the answer.
_NOT_THE_ANSWER = words(
    "output_format output exit_zero fail_on baseline threads keep help_all no_cache"
)


def load(file: Path, kind: str = "score") -> Any:
    """Read a stored document of a kind, or of any if none is given.

    Its control characters are escaped: it may come from a stranger.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: It is not a report of this schema.
    """
    if file.suffix != ".json":
        refuse_other(str(file), "report")
    with reading(f"the report {one_line(str(file), 200)}"):
        content, document = read_limited(file, _LARGEST), None
        try:
            document = safe_strings(json.loads(content))
            content = json.dumps(document).encode()
        except (ValueError, RecursionError):
            pass  # the schema will say what is wrong
        document = document if isinstance(document, dict) else {}
        return _validated(file, content, document, kind or document.get("kind", "score"))


def _validated(file: Path, content: bytes, document: dict[str, Any], kind: str) -> Any:
    """Read a report of this major schema; fields of a later minor one are left out."""
    from pydantic import ValidationError

    from rksp.documents.base import MAJOR, SCHEMA_VERSION

    try:
        return schema_of(kind).model_validate_json(content)
    except ValidationError as error:
        errors = error.errors()
    version = document.get("schema_version")
    major, _, minor = version.partition(".") if isinstance(version, str) else (MAJOR, "", "")
    if major != MAJOR:
        raise ArtifactError(
            f"{file} is not a report of this rksp: it has schema {one_line(str(version), 20)}, and "
            f"{MAJOR}.x is read; score it again with this version."
        )
    is_later = minor.isdecimal() and int(minor) > int(SCHEMA_VERSION.partition(".")[2])
    if is_later and all(one["type"] == "extra_forbidden" for one in errors):
        for *path, name in (one["loc"] for one in errors):
            reduce(getitem, path, cast(Any, document)).pop(name, None)
        return _validated(file, json.dumps(document).encode(), document, kind)
    where = ".".join(map(str, errors[0]["loc"]))
    said = errors[0]["msg"].removeprefix("Value error, ")
    place = f" The field {one_line(where, 200)} is wrong: {said}." if where else f" {said}."
    raise ArtifactError(
        f"{file} is not a report of this rksp; give what -o NAME.json saved.{place}"
    )


def outputs(output_format: str, files: list[str], kind: str = "score") -> list[Output]:
    """Check `--format` and parse every `-o` before the command starts its work.

    Args:
        output_format: Format of stdout.
        files: The typed values of `-o`.
        kind: The command whose document it is.

    Raises:
        InputError: A format is not among those of that document, or a file cannot be written.
    """
    check_format(output_format, kind=kind)
    found = [Output.parse(file, kind) for file in files]
    for output in found:
        check_writable(output.path)
    return found


@contextlib.contextmanager
def intact(file: Path) -> Iterator[None]:
    """Refuse a stored file of the right form whose values do not belong together.

    Raises:
        InputError: They do not.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{one_line(str(file), 200)} has the right form, but its values do not belong together "
            f"({error!r:.100}); write it again."
        ) from error


def emit(document: Document, output_format: str, files: list[Output]) -> None:
    """Write every file, then print only the chosen format on stdout."""
    rendered = [(file.path, printable(render(document, file.format))) for file in files]
    shown = rendering(document, output_format)
    for path, text in rendered:
        atomic_write(path, text)
    if isinstance(shown, str):
        text = printable(shown)
        if output_format in _MARKUP and (sys.stdout.encoding or "").lower() != "utf-8":
            text = text.encode("ascii", "xmlcharrefreplace").decode()
        sys.stdout.write(text)
        return
    from rich.console import Console

    is_told = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, width=None if is_told else PLAIN_WIDTH).print(shown, crop=False)


def conclude(document: Document, *, exit_zero: bool) -> int:
    """Print on stderr what failed, and return the exit code; `exit_zero` turns 1 and 4 into 0."""
    code = 0 if exit_zero and document.exit_code in (1, 4) else document.exit_code
    if document.exit_code:
        reasons = "; ".join(definite(document.gate).reasons)
        print(f"rksp: exit {code}: {one_line(reasons)}", file=sys.stderr)
    return code


def made_with(context: typer.Context) -> dict[str, str]:
    """Return how to repeat the command of a report, and which defaults a file set."""
    sources = {p.name: context.get_parameter_source(p.name) for p in context.command.params}
    from_file = [
        f"{parameter.opts[-1]} {context.params[parameter.name]}"
        for parameter in context.command.params
        if getattr(sources[parameter.name], "name", "") == "DEFAULT_MAP"
    ]
    said = {"command": command_line(context)}
    return said | {"defaults_from_file": ", ".join(from_file)} if from_file else said


def command_line(
    context: typer.Context, command: Any = None, changed: Mapping[str, object] | None = None
) -> str:
    """Return the command that gives the same answer, with all typed and configured options.

    Options equal to their built-in default, and those that only say where the answer goes, are left
    out.

    Args:
        context: Of the command that runs.
        command: Another command, which is given those of the options that it has too.
        changed: Parameter -> value in place of its own; None leaves the option out.
    """
    values = dict(context.params) | dict(changed or {})
    defaults = {parameter.name: parameter.default for parameter in context.command.params}
    command = command or context.command
    words = [*context.command_path.split()[:-1], command.name]
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.name in _NOT_THE_ANSWER or value in (None, [], ()):
            continue
        many = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            words += map(str, many)
        elif parameter.is_flag and isinstance(value, bool):
            names = parameter.opts if value else parameter.secondary_opts
            words += names[:1] if value != defaults.get(parameter.name) else []
        elif value != defaults.get(parameter.name) or parameter.name in (changed or {}):
            name = next(one for one in parameter.opts if one.startswith("--"))  # aliases follow
            words += [word for part in many for word in (name, as_typed(part))]
    return shlex.join(words)


def next_command(context: typer.Context, report: ScoreReport) -> str:
    """Return the command of the next step, with the options that were typed; may be empty."""
    from rksp.question.next_step import next_step
    from rksp.question.run import is_run_file

    asked = context.params
    step = next_step(
        report,
        target=asked["target"][0],
        has_recipe_file=asked["recipe_file"] is not None,
        has_data=asked.get("data") is not None,
    )
    table = context.find_root().command
    if step is None or not isinstance(table, CommandTable):
        return ""
    if step.word:
        return f"rksp {step.command} {step.word}"
    changed = dict(step.changed)
    if report.carried is not None:  # its rate is known now
        changed = {"tuned": None, "learning_rate": report.recipe.learning_rate} | changed
        if is_run_file(report.carried.small) and not is_run_file(asked["target"][0]):
            changed = {"recipe_file": report.carried.small} | changed
    if "overrides" in changed:  # of the model; --set sets the recipe, too
        of_recipe = [x for x in asked["overrides"] if x.partition("=")[0] in Recipe.model_fields]
        changed["overrides"] = of_recipe
    return command_line(context, table.commands[step.command], changed)
