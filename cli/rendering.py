"""Reading and writing of documents, shared by score, confirm, grid, report and diff."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from rksp.ground.budgets import reading
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import atomic_write, check_writable, read_limited
from rksp.ground.model import definite
from rksp.ground.text import one_line, printable, safe_strings, short, words
from rksp.report.formats import (
    PLAIN_WIDTH,
    Output,
    check_format,
    one_of,
    render,
    rendering,
)

if TYPE_CHECKING:
    from rksp.documents.base import Document
    from rksp.documents.score import ScoreReport

_Kind = TypeVar("_Kind")
_LARGEST = 64 * 2**20  # bytes of a stored report; a grid of 10,000 cells has some 10 MB
_MARKUP = ("html", "junit")  # what a stream cannot encode has a form of its own here
# What changes where the answer goes or how it counts, but not the answer.
_NOT_THE_ANSWER = words(
    "output_format output exit_zero fail_on baseline threads keep help_all no_cache"
)


def load(file: Path) -> ScoreReport:
    """Read a stored report of `rksp score`.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: It is not a report of this schema.
    """
    with reading(f"the report {one_line(str(file), 200)}"):
        return _validated(file, _read(file), schema_of("score"))


def load_any(file: Path) -> Document:
    """Read a stored document of any kind; raises as `load`."""
    with reading(f"the report {one_line(str(file), 200)}"):
        content = _read(file)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None  # the schema will say what is wrong
        kind = document.get("kind", "score") if isinstance(document, dict) else "score"
        return _validated(file, content, schema_of(kind))


def schema_of(kind: str) -> type[Any]:
    """Return the schema of the document that a command makes.

    Raises:
        InputError: No command of that name makes a report.
    """
    from rksp.documents.kinds import DOCUMENTS  # not for --help

    if kind not in DOCUMENTS:
        makers = one_of(tuple(DOCUMENTS), "and")
        raise InputError(f"There is no report of {kind!r}; the commands {makers} make reports.")
    return DOCUMENTS[kind]


def _read(file: Path) -> bytes:
    """Read a stored report and escape control characters: it may come from a stranger."""
    content = read_limited(file, _LARGEST)
    try:
        return json.dumps(safe_strings(json.loads(content))).encode()
    except (ValueError, RecursionError):
        return content  # the schema will say what is wrong


def _validated(file: Path, content: bytes, kind: Any) -> Any:
    """Read a report of this major schema; fields of a later minor one are left out."""
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        errors = error.errors()
        document = _document(content)
        _check_schema(file, document)
        has_more = all(one["type"] == "extra_forbidden" for one in errors)
        if document and has_more and _is_later(document["schema_version"]):
            for one in errors:
                _drop(document, one["loc"])
            return _validated(file, json.dumps(document).encode(), kind)
        first = errors[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        place = f" The field {one_line(where, 200)} is wrong: {said}." if where else f" {said}."
        raise ArtifactError(f"{file} is not a report of this rksp.{place}") from None


def _document(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _check_schema(file: Path, document: dict[str, Any] | None) -> None:
    """Refuse a report of another major schema, which no reader here understands.

    Raises:
        ArtifactError: It is one.
    """
    from rksp.documents.base import MAJOR

    version = (document or {}).get("schema_version")
    if isinstance(version, str) and version.partition(".")[0] != MAJOR:
        raise ArtifactError(
            f"{file} is not a report of this rksp: it has schema {one_line(version, 20)}, and "
            f"{MAJOR}.x is read; score it again with this version."
        )


def _is_later(version: str) -> bool:
    """Return True if a version of this major schema is later than this rksp's."""
    from rksp.documents.base import SCHEMA_VERSION

    minor = lambda text: int(text.partition(".")[2] or 0)
    return minor(version) > minor(SCHEMA_VERSION)


def _drop(document: Any, place: tuple[str | int, ...]) -> None:
    """Leave out the field at a place of a document."""
    *path, name = place
    for part in path:
        document = document[part]
    document.pop(name, None)


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
    """Return what a report says of its command: how to repeat it, and which defaults a file set."""
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
            words += [word for part in many for word in (_long(parameter), _typed(part))]
    return shlex.join(words)


def _typed(value: object) -> str:
    """Write a value as people type it: 6e-4 and not 0.0006; it reads back as the same number."""
    brief = short(value, 12) if isinstance(value, float) and 0 < value < 0.01 else str(value)
    return brief if isinstance(value, float) and float(brief) == value else str(value)


def _long(parameter: Any) -> str:
    """Return the first long name of an option; aliases follow it."""
    return next(name for name in parameter.opts if name.startswith("--"))
