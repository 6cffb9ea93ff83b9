"""Strangers' files come in by one door, `rksp.ground`: nothing else opens or parses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("rksp", "cli", "classifiers", "kernels", "datasets")
DOOR = ("rksp/ground/files.py", "rksp/ground/reading.py", "rksp/ground/text.py")
OPENS = ("open", "read_text", "read_bytes", "connect", "safe_load")
PARSES = re.compile(r"(json|tomllib|yaml|pickle|torch)\.loads?\(")
# A file by another way is the package's own, and named by where it stands …
OWN_NAMES = ("files(", "__file__", "shipped_file", "_FILE")
# … or one that this process, or its parent, wrote or keeps open, or the operating system does.
OWN_FILES = {
    "rksp/watch/attach": "the log, the options and the past of the command that is watched",
    "rksp/watch/monitors/sinks.py": "the log that is being written",
    "rksp/grid": "the store, under `bound_queries`, and what workers say",
    "rksp/confirm/calibrate.py": "the store of trials",
    "rksp/confirm/trial.py": "a digest of the text that is trained on",
    "rksp/assessment/measurement.py": "a measurement of the cache, checked by digest and schema",
    "rksp/models/streaming/memory.py": "what the system says of its memory",
    "rksp/models/streaming/stream.py": "weights, by safetensors",
    "rksp/models/names.py": "the head of weights, which may be larger than the memory",
    "rksp/models/type_table.py": "rows of the package's own table",
    "rksp/checks/registry.py": "comments of the run file that was read",
    "rksp/checks/advisories.py": "the package's own advisories",
    "rksp/checks/environment.py": "what pip wrote of a package that is installed",
    "rksp/report/playground.py": "the package's own model",
    "rksp/report/glossary.py": "the package's own words",
    "rksp/report/html.py": "a report that was just made",
    "rksp/own_runs/record.py": "the record that is appended to",
    "rksp/calls/fix.py": "the copy that fix makes",
    "cli/rendering.py": "a stored report, read by `read_limited` and checked by its schema",
    "cli/watch.py": "what the command that is watched says",
    "cli/process.py": "standard streams",
    "classifiers/artifacts.py": "a fitted model, checked by its schema",
    "rksp/watch": "taps that open nothing on the disk",
}


def calls(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call that opens a file or parses what one holds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func
            is_method = isinstance(name, ast.Attribute) and name.attr in OPENS
            is_parser = PARSES.match(ast.unparse(node)) is not None
            if is_method or is_parser or (isinstance(name, ast.Name) and name.id == "open"):
                yield node.lineno, ast.unparse(node)


def is_own(file: str, call: str) -> bool:
    return any(word in call for word in OWN_NAMES) or file.startswith(tuple(OWN_FILES))


def around_the_door() -> list[str]:
    found = []
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            for line, call in calls(path.read_text("utf-8")) if file not in DOOR else ():
                if not is_own(file, call):
                    found.append(f"{file}:{line}: {call[:80]}")
    return found


def test_nothing_reads_a_strangers_file_but_the_door():
    assert not around_the_door()


def test_every_exception_is_used():
    rest = [one for one in OWN_FILES if not (ROOT / one).exists()]
    assert not rest


@pytest.mark.parametrize(
    "line",
    ["Path(name).read_text()", "open(name)", "json.loads(text)", "sqlite3.connect(name)",
     "path.open('rb')", "tomllib.load(file)"],
)  # fmt: skip
def test_a_way_around_it_is_seen(line):
    assert list(calls(line)) and not is_own("rksp/recipe_files/new.py", line)
