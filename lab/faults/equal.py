"""What must be equal between equal runs, and by how much two answers differ."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator

# Times of JUnit, of a table, of the report inside an HTML page.
_TIME = re.compile(rb' time="[\d.]+"|(?<=\| )[\d.]+ s(?= \|)|"timings":\{[^}]*\}')
_TIMED = (b"seconds", b"timings/", b"overhead", b" s/step", b"took ")  # lines of text
# What differs between equal runs and says so: times, and what names the machine's state.
_VARIES = ("seconds", "timings", "overhead", "threads", "created", "command", "progress")


def untimed(value: object) -> object:
    """Return a document without what differs between equal runs."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not any(word in k for word in _VARIES)}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def steady(name: str, content: bytes) -> bytes:
    """Return an answer, a file of this name, without its timings."""
    if name.endswith(".parquet"):
        import pyarrow.parquet as parquet

        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
        return repr([{k: v for k, v in row.items() if k != "seconds"} for row in rows]).encode()
    try:
        return json.dumps(untimed(json.loads(content)), sort_keys=True).encode()
    except ValueError:
        lines = content.splitlines()
        kept = [line for line in lines if not any(word in line for word in _TIMED)]
        return b"\n".join(_TIME.sub(b"", line) for line in kept)


def difference(one: bytes | None, other: bytes | None) -> str:
    """Say in one line how two answers differ: JSON by its largest relative difference."""
    if one is None or other is None:
        return "in one of the two only"
    try:
        gaps = sorted(_gaps(json.loads(one), json.loads(other), ""), reverse=True)
        return f"{len(gaps)} values, the worst by {gaps[0][0]:.1e} of itself at {gaps[0][1]}"
    except ValueError:
        pairs = itertools.zip_longest(one.split(b"\n"), other.split(b"\n"))
        return next(f"{a!s:.150} is {b!s:.150}" for a, b in pairs if a != b)


def _gaps(one: object, other: object, place: str) -> Iterator[tuple[float, str]]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from _gaps(one[name], other[name], f"{place}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _gaps(a, b, f"{place}[{number}]")
    elif one != other:
        are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
        gap = abs(one - other) / max(abs(one), abs(other)) if are_numbers else float("inf")
        yield gap, place
