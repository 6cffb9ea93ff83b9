"""What a file holds, by its suffix: parsed, never executed, with line numbers.

YAML is read by the rules of YAML 1.2, in which `3e-4` is a number and `no` a word: PyYAML follows
YAML 1.1 and returns the first as text and the second as false.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import yaml

from rksp.ground.budgets import CODE, DEPTH, KEY_CHARACTERS, RUN_FILE, SETTINGS
from rksp.ground.errors import InputError
from rksp.ground.files import parse_toml, read_head, read_text
from rksp.ground.reading import bounded, parse_json
from rksp.recipe_files.parse.places import beside, is_there
from rksp.recipe_files.parse.python_loop import OPTIMIZERS, WORDS, builds, read_loop, words_in
from rksp.recipe_files.parse.python_names import modules_of
from rksp.recipe_files.parse.python_script import Call, Script
from rksp.recipe_files.parse.python_source import read_python
from rksp.recipe_files.parse.values import (
    NUMBER,
    WHOLE,
    Parsed,
    Unresolved,
    as_section,
    underscored,
)

_MODULES = 20  # beside a script, that it imports
# What PyYAML raises beside its own errors for a scalar that its tag does not fit.
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_COMMAND = re.compile(r"^#!.*sh\b|^[ \t]*[^#\s:][^:\n]*\s--?[A-Za-z]|\.py\s+\w+=", re.M)
_CODE = re.compile(r"^(from\s+[\w.]+\s+)?import\s+\w", re.M)
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class Content(NamedTuple):
    """What a file holds, the line of each key, a script's calls and a notebook's shell commands."""

    syntax: str
    data: Parsed
    lines: dict[str, int]
    calls: tuple[Call, ...] = ()
    shell: str = ""


def parse_file(path: Path) -> Content:
    """Return what a file holds.

    Raises:
        InputError: As in `load_document`, but any content is accepted.
    """
    return content_of(path, *text_of(path))


def text_of(path: Path) -> tuple[str, str]:
    """Return the text of a file, or of standard input for `-`, and the suffix it is read by."""
    if str(path) != "-":
        suffix = path.suffix.lower()
        if suffix in (*_PARSERS, *SHELL_SUFFIXES):
            return read_text(path, RUN_FILE), suffix
        convert = next((make for name, make in _AS_SHELL if re.search(name, path.name)), None)
        if convert is None:
            is_script = is_there(path) and re.match(rb"#!.*sh\b", read_head(path, 80))
            return (read_text(path, RUN_FILE), ".sh") if is_script else ("", suffix)
        return convert(read_text(path, RUN_FILE)), ".sh"
    text = sys.stdin.read(RUN_FILE + 1)
    if len(text) > RUN_FILE:
        raise InputError(f"Standard input holds more than {RUN_FILE} characters; give a run file.")
    start = text.lstrip()[:1]
    guess = ".json" if start == "{" else ".sh" if _COMMAND.search(text) else ".yaml"
    return text, ".py" if _CODE.search(text) else guess


def _of_makefile(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        bare = re.sub(r"^\t[@+-]*", "", re.sub(r"\$\((\w+)\)", r"${\1}", line))
        named = re.match(r"(?:export +)?(\w+) *(?:[:?]?:?|(\+))= *+([^\\]*)$", bare)
        if named and line[:1] != "\t":
            bare = f'{named[1]}{named[2] or ""}="{named[3]}"'
        lines.append(bare.replace("$$", "$"))
    return "\n".join(lines)


def _of_dockerfile(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        word, _, rest = line.strip().partition(" ")
        if word.upper() in ("CMD", "ENTRYPOINT", "RUN"):
            with contextlib.suppress(InputError, TypeError):
                rest = shlex.join(map(str, parse_json(rest, "the command")))
            line = rest
        elif word.upper() in ("ENV", "ARG"):
            name, _, value = rest.partition("=" if "=" in rest.split(" ")[0] else " ")
            line = f"{name}={shlex.quote(value.strip().strip(chr(34)))}"
        lines.append(line)
    return "\n".join(lines)


_AS_SHELL = ((r"^(GNUm|m|M)akefile|\.mk$", _of_makefile), (r"(?i)dockerfile", _of_dockerfile))


def content_of(path: Path, text: str, suffix: str) -> Content:
    """Return what a text holds that is read by a suffix; a file's errors name its path."""
    parse = _PARSERS.get(suffix)
    if suffix in _PICKLES:
        raise InputError(
            f"{path} is a pickle, and rksp never opens pickles because they can run code; "
            "write the settings as JSON in the program that made them "
            "(training_args.to_json_string()) and give that file."
        )
    if parse is None:
        raise InputError(
            f"{path} has a format that rksp cannot read; "
            f"it reads {', '.join(sorted((*_PARSERS, *SHELL_SUFFIXES)))}."
        )
    try:
        content = parse(path, text)
        bounded(content.data, path)
        return content
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply for a configuration.") from error


def parse_yaml(text: str) -> Parsed:
    """Parse YAML 1.2 text to plain data; unknown tags become `Unresolved`, nothing runs.

    Raises:
        InputError: It is not YAML.
    """
    try:
        return _composed(Path("the value"), text, {})
    except (*_NOT_YAML, RecursionError) as error:
        raise InputError(f"{text[:200]!r} cannot be read as a value.") from error


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's safe loader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        """Compose a node and count it: PyYAML takes a millisecond for a few of them."""
        self.nodes += 1
        SETTINGS.check(self.nodes, "The YAML text")
        return super().compose_node(parent, index)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(str(node.value).replace("_", "").lstrip("+"))


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(str(node.value).replace("_", ""))


def _elsewhere(loader: _Loader, suffix: str, node: yaml.Node) -> Unresolved:
    value = node.value if isinstance(node, yaml.ScalarNode) else ""
    return Unresolved(f"!{suffix} {value}".strip())


_TWICE = "rksp:twice"
_Loader.add_constructor(_TWICE, lambda loader, node: Unresolved(str(node.value)))
_START = list("-+.0123456789")
for _kind, _pattern, _first in (
    ("bool", r"(true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("null", r"(~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("int", WHOLE.pattern, _START),
    ("float", NUMBER.pattern, _START),
    ("merge", "<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern + "$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_multi_constructor("!", _elsewhere)


def _yaml(path: Path, text: str) -> Content:
    lines: dict[str, int] = {}
    try:
        data = _composed(path, text, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(f"{path}{where}: not valid YAML, {error.problem or error}.") from error
    except InputError:
        raise
    except (*_NOT_YAML, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML ({error!s:.200}).") from error
    return Content("yaml", {} if data is None else data, lines)


def _composed(path: Path, text: str, lines: dict[str, int]) -> Parsed:
    loader = _Loader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _number_lines(path, node, "", lines, [0, 0], 0)
    data: Parsed = loader.construct_document(node)
    return data


def _number_lines(
    path: Path, node: yaml.Node, prefix: str, lines: dict[str, int], seen: list[int], depth: int
) -> None:
    seen[0] += 1
    SETTINGS.check(seen[0], path)
    DEPTH.check(depth, path)
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _number_lines(path, part, f"{prefix}[]", lines, seen, depth + 1)
    if isinstance(node, yaml.MappingNode):
        _mark_twins(node)
        for name, value in node.value:
            key = f"{prefix}.{name.value}" if prefix else str(name.value)
            seen[1] += len(key)
            KEY_CHARACTERS.check(seen[1], path)
            lines[key] = name.start_mark.line + 1
            _number_lines(path, value, key, lines, seen, depth + 1)


def _mark_twins(node: yaml.MappingNode) -> None:
    """Make values unknown that two keys of one name give, and that differ."""
    first: dict[str, yaml.Node] = {}
    for name, value in node.value:
        other = first.setdefault(underscored(name.value), value)
        both = [one.value for one in (other, value) if isinstance(one, yaml.ScalarNode)]
        if other is not value and len(both) == 2 and both[0] != both[1]:
            for one in (other, value):
                one.tag, one.value = _TWICE, f"given twice, as {both[0]} and as {both[1]}"


def _untwinned(pairs: list[tuple[str, Parsed]]) -> dict[str, Parsed]:
    """Return the settings of a JSON object, unknown where two keys of one name differ."""
    found: dict[str, Parsed] = {}
    first: dict[str, str] = {}
    for name, value in pairs:
        other = first.setdefault(underscored(name), name)
        if other in found and found[other] != value:
            value = Unresolved(f"given twice, as {found[other]!s:.80} and as {value!s:.80}")
            found[other] = value
        found[name] = value
    return found


def _json(path: Path, text: str) -> Content:
    return Content("json", parse_json(text, path, pairs=_untwinned), _lines_of_json(text))


def _lines_of_json(text: str) -> dict[str, int]:
    """Find the lines of JSON by parsing it as YAML; tabs, which YAML forbids, are replaced.

    Large or deep files get no lines.
    """
    lines: dict[str, int] = {}
    try:
        node = _Loader(text.replace("\t", " ")).get_single_node()
        _number_lines(Path(), node, "", lines, [0, 0], 0)
    except (*_NOT_YAML, InputError, RecursionError):
        return {}
    return lines


def _toml(path: Path, text: str) -> Content:
    def untwinned(value: Parsed) -> Parsed:
        if not isinstance(value, dict):
            return value
        return _untwinned([(name, untwinned(inner)) for name, inner in value.items()])

    return Content("toml", untwinned(parse_toml(path, text)), {})


def _python(path: Path, text: str) -> Content:
    CODE.check(len(text), path)
    try:
        tree = ast.parse(text)  # raises MemoryError for what is nested too deeply
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(f"{path}{f':{line}' if line else ''}: not valid Python.") from error
    data, lines = read_python(tree)
    script = Script(tree, _modules(path, tree), wanted=builds)
    if calls := script.of_trainer:
        data[WORDS] = words_in(script.names.nodes)
        return Content("python", data, lines, tuple(calls))
    data = {name: value for name, value in data.items() if name not in script.names.unused}
    made = {name: held for name, held in script.names.made.items() if name in data}
    own, places = read_loop(script)
    return Content("python", {**data, **made, **own}, lines | places)


def _modules(path: Path, tree: ast.Module) -> dict[str, ast.Module]:
    places = {name: beside(path, f"{name.replace('.', '/')}.py") for name in modules_of(tree)[:60]}
    there = [(name, place) for name, place in places.items() if place is not None]
    return {name: _module(place) for name, place in there[:_MODULES]}


def _module(path: Path) -> ast.Module:
    try:
        text = read_text(path, RUN_FILE)
        CODE.check(len(text), path)
        return ast.parse(text)
    except (InputError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _notebook(path: Path, text: str) -> Content:
    """Read the code of a Jupyter notebook as one script, without lines: a cell has its own."""
    cells = as_section(_json(path, text).data).get("cells")
    code = [
        "".join(map(str, source)) if isinstance(source, list) else str(source)
        for cell in (cells if isinstance(cells, list) else [])
        if isinstance(cell, Mapping) and cell.get("cell_type") == "code"
        for source in [cell.get("source", "")]
    ]
    python, shell = _cells(code)
    read = _python(path, python)
    trains = read.calls or OPTIMIZERS in as_section(read.data)
    calls = tuple(call.without_lines() for call in read.calls)
    return read._replace(lines={}, calls=calls, shell="" if trains else shell)


_CELL = re.compile(r"\s*%%(bash|sh|shell|script bash|writefile|file|time|timeit|capture)\b(.*)")


def _cells(code: list[str]) -> tuple[str, str]:
    """Return the Python of a notebook's cells and their shell commands.

    A file that a cell writes is a here-document of the commands.
    """
    python, shell = [], []
    for cell in code:
        first, _, rest = cell.lstrip("\n").partition("\n")
        magic = _CELL.match(first)
        if magic and magic[1] in ("writefile", "file"):
            shell.append(f"cat > {magic[2].split()[-1] if magic[2].split() else '-'} <<'ENDOFCELL'")
            shell += [rest, "ENDOFCELL"]
        elif magic and magic[1] not in ("time", "timeit", "capture"):
            shell.append(rest)
        elif magic or not first.lstrip().startswith("%%"):
            is_command = False
            for line in (rest if magic else cell).splitlines():
                bare = line.lstrip()
                is_more = is_command and shell[-1].endswith("\\")
                is_command = is_more or bare.startswith("!")
                if is_command:  # `{lr}` is a name of the notebook's
                    words = bare if is_more else bare.lstrip("!")
                    shell.append(re.sub(r"(?<!\$)\{(\w+)\}", r"${\1}", words))
                is_magic = bare.startswith(("%", "?")) or re.match(r"[\w, ]+=\s*[!%]", bare)
                blank = "" if is_more else f"{line[: len(line) - len(bare)]}pass"
                python.append(blank if is_command or is_magic else line)
    return "\n".join(python), "\n".join(shell)


_PARSERS = {
    ".ipynb": _notebook,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": _json,
    ".toml": _toml,
    ".py": _python,
}
