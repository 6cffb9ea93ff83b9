"""A trainer's configuration file as data: parsed, never executed, with line numbers.

YAML is read by the rules of YAML 1.2, in which `3e-4` is a number and `no` a word: PyYAML follows
YAML 1.1 and returns the first as text and the second as false.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar, NamedTuple

import yaml

from rksp.ground.budgets import CODE, DEPTH, KEY_CHARACTERS, REFERENCES, RUN_FILE, SETTINGS
from rksp.ground.errors import InputError
from rksp.ground.files import parse_toml, read_head, read_text
from rksp.ground.reading import bounded, parse_json
from rksp.recipe_files.parse.python_loop import (
    ABOUT,
    OPTIMIZERS,
    WORDS,
    builds,
    read_loop,
    words_in,
)
from rksp.recipe_files.parse.python_names import modules_of
from rksp.recipe_files.parse.python_script import Call, Script
from rksp.recipe_files.parse.python_source import read_python
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import NUMBER, WHOLE, Parsed, Section, Unresolved, as_section

_MODULES = 20  # beside a script, that it imports
_LONGEST = 4096  # characters of a value that references are filled into
# What PyYAML raises beside its own errors for a scalar that its tag does not fit.
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_SHELL = (".sh", ".bash", ".slurm", ".sbatch")
_COMMAND = re.compile(r"^#!.*sh\b|^[ \t]*[^#\s:][^:\n]*\s--?[A-Za-z]|\.py\s+\w+=", re.M)
_CODE = re.compile(r"^(from\s+[\w.]+\s+)?import\s+\w", re.M)
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One value with its dotted key, and its line if the format has lines.

    It is `open` if it stands in for what the file leaves to another place, in the file's words.
    """

    key: str
    value: Parsed
    line: int | None = None
    open: str = ""

    def as_text(self) -> FoundText | None:
        """Return what was found if it is a text."""
        if not isinstance(self.value, str):
            return None
        return FoundText(key=self.key, value=self.value, line=self.line, open=self.open)

    def as_number(self, value: float | None) -> FoundNumber | None:
        """Return what was found with the number that it stands for, if it does for one."""
        if value is None:
            return None
        return FoundNumber(key=self.key, value=value, line=self.line, open=self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNumber(Found):
    """A number with its key."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundText(Found):
    """A text with its key."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A configuration file.

    Attributes:
        path: The file.
        syntax: `yaml`, `json`, `toml`, `python`, `shell`, or `script` for one that calls a trainer.
        data: Nested settings as written; `find` follows references.
        lines: Dotted key → line, counted from one.
        calls: The calls of a script around a trainer that rksp knows.
        program: The program that a command line starts, such as `pretrain_gpt.py`.
        launcher: The flags of the launcher, such as torchrun.
        script: The program with its folder.
        file: The configuration file that a command names.
        written: The files that a script writes, by name.
        text: What standard input held; empty for a file.
        defaults: A key that the command leaves out → the script whose default it has.
        lost: What it says that it is made of, and where; none of it was found.
    """

    path: Path
    syntax: str
    data: Section
    lines: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    _followed: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)
    program: str = ""
    launcher: Section = field(default_factory=dict)
    script: str = ""
    file: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    _names: dict[int, dict[str, str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find(self, *keys: str) -> Found | None:
        """Return the first of these dotted keys with a value; hyphens count as underscores.

        References `${a.b}` are followed; null counts as absent.
        """
        for key in keys:
            actual, value = self._walk(key)
            if value is not None:
                value = self._follow(value, 0, actual.rpartition(".")[0])
            if value is not None:
                return Found(key=actual, value=value, line=self.lines.get(actual))
        return None

    def leaves(self) -> tuple[str, ...]:
        """Return the dotted keys of all settings that have a value; a list is one setting."""
        found: list[str] = []
        _collect({k: v for k, v in self.data.items() if k not in ABOUT}, "", found)
        return tuple(found)

    def stated(self) -> Document:
        """Return the document without the defaults of a script, which the run file leaves out."""
        if not self.defaults:
            return self
        data = {key: value for key, value in self.data.items() if key not in self.defaults}
        return dataclasses.replace(self, data=data, defaults={})

    def has(self, *keys: str) -> bool:
        """Return True if all of these dotted keys exist, null or not."""
        return all(self._walk(key)[0] for key in keys)

    def _walk(self, key: str) -> tuple[str, Parsed]:
        value: Parsed = self.data
        actual: list[str] = []
        for part in key.split("."):
            if isinstance(value, Unresolved):  # what stands below stands elsewhere too
                return ".".join(actual), value
            if not isinstance(value, Mapping):
                return "", None
            names = self._names.get(id(value))
            if names is None:  # of two that are the same the first counts
                names = self._names[id(value)] = {_plain(k): k for k in reversed(list(value))}
            name = names.get(_plain(part))
            if name is None:
                return "", None
            actual.append(str(name))
            value = value[name]
        return ".".join(actual), value

    def _follow(self, value: Parsed, depth: int, home: str) -> Parsed:
        """Resolve the references in a value; `${.a}` is relative to the key, as in OmegaConf."""
        if depth > DEPTH.most:
            return Unresolved("a reference to itself")
        if isinstance(value, Mapping):
            return {
                k: self._follow(v, depth + 1, f"{home}.{k}" if home else str(k))
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [self._follow(v, depth + 1, home) for v in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        self._followed[0] += 1
        REFERENCES.check(self._followed[0], self.path)
        if len(value) > _LONGEST:
            return Unresolved(f"{value[:80]}…")
        whole = _REFERENCE.fullmatch(value)
        if whole:
            key, there = self._walk(_absolute(whole[1].strip(), home))
            return self._follow(there, depth + 1, home) if key else Unresolved(value)
        parts = {m[0]: self._follow(m[0], depth + 1, home) for m in _REFERENCE.finditer(value)}
        if not parts or any(isinstance(p, Unresolved | Mapping | list) for p in parts.values()):
            return Unresolved(value)
        for reference, part in parts.items():
            value = value.replace(reference, "" if part is None else str(part))
        return self._follow(value, depth + 1, home)


def lines_below(lines: Mapping[str, int], home: str) -> dict[str, int]:
    """Return the lines of the settings below a dotted key, by the rest of theirs."""
    start = f"{home}."
    return {key.removeprefix(start): n for key, n in lines.items() if key.startswith(start)}


def _absolute(key: str, home: str) -> str:
    """Make an OmegaConf key absolute: one dot is the same level, each further one a level up."""
    if not key.startswith("."):
        return key
    levels = len(key) - len(key.lstrip(".")) - 1
    parts = home.split(".") if home else []
    parts = parts[: len(parts) - levels] if levels else parts
    return ".".join((*parts, key.lstrip(".")))


def load_document(path: Path) -> Document:
    """Parse a configuration file by its suffix.

    Raises:
        InputError: It is missing, too large, malformed (with line and column), or not a mapping.
    """
    text, suffix = _text(path)
    loaded = _loaded(path, text, suffix)
    return dataclasses.replace(loaded, text=text) if str(path) == "-" else loaded


def _loaded(path: Path, text: str, suffix: str) -> Document:
    if suffix in _SHELL:
        CODE.check(len(text), path)
        command = read_shell(text, partial(_included, [path]))
        scripts = [text for name, text in command.written.items() if name.endswith(_SHELL)]
        inner = next((c for c in map(read_shell, scripts) if c.program), command)
        command = command if command.program else inner
        if command.program or "-" not in command.written:
            return Document(path=path, syntax="shell", **command._asdict())
        text, suffix = command.written["-"], ".py"
    return _document(path, text, suffix)


def _included(scripts: list[Path], name: str) -> str:
    there = next((found for one in reversed(scripts) if (found := beside(one, name))), None)
    with contextlib.suppress(InputError):
        if there is not None:
            scripts.append(there)
            return read_text(there, CODE.most)
    return ""


def _document(path: Path, text: str, suffix: str) -> Document:
    content = _parsed(path, text, suffix)
    if not isinstance(content.data, Mapping):
        raise InputError(f"{path} holds a {type(content.data).__name__}, not named settings.")
    if content.shell:
        CODE.check(len(content.shell), path)
        command = read_shell(content.shell)._replace(lines={})  # a cell has its own
        return Document(path=path, syntax="shell", **command._asdict())
    return Document(path=path, syntax=content.syntax, data=content.data, lines=content.lines,
                    calls=content.calls)  # fmt: skip


def named_file(document: Document, name: str) -> Document | None:
    """Load the file that a run file names: one that it writes itself, or one near it.

    Raises:
        InputError: It cannot be parsed.
    """
    for written, text in document.written.items():
        if written == name or PurePath(written).name == PurePath(name).name:
            return _document(document.path, text, PurePath(name).suffix.lower())
    there = beside(document.path, name)
    return None if there is None else load_document(there)


def beside(path: Path, name: str) -> Path | None:
    """Find the named file beside the run file or in a folder above it, within its repository."""
    if Path(name).is_absolute():
        return None
    folders = folders_above(path)
    top = folders[-1].resolve()
    places = [one / name for one in folders]
    if ".." in Path(name).parts:  # where a repository bounds it
        places = [path.parent / name] if (top / ".git").exists() else []
        places = [one for one in places if one.resolve().is_relative_to(top)]
    return next((one for one in places if _is_file(one)), None)


def folders_above(path: Path) -> list[Path]:
    """Return the folder of a file and those above it in its repository, four at most."""
    found = [path.parent]
    for folder in list(path.resolve().parents)[1:5]:
        if (found[-1] / ".git").exists():
            break
        found.append(folder)
    return found


def _is_file(path: Path) -> bool:
    """Tell whether a file is there; none has a name too long for the system."""
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


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
    return _parsed(path, *_text(path))


def _text(path: Path) -> tuple[str, str]:
    if str(path) != "-":
        suffix = path.suffix.lower()
        if suffix in (*_PARSERS, *_SHELL):
            return read_text(path, RUN_FILE), suffix
        convert = next((make for name, make in _AS_SHELL if re.search(name, path.name)), None)
        if convert is None:
            is_script = _is_file(path) and re.match(rb"#!.*sh\b", read_head(path, 80))
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


def _parsed(path: Path, text: str, suffix: str) -> Content:
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
            f"it reads {', '.join(sorted((*_PARSERS, *_SHELL)))}."
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


def _collect(value: Parsed, prefix: str, found: list[str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _collect(inner, f"{prefix}.{name}" if prefix else str(name), found)
    elif value is not None:
        found.append(prefix)


def _plain(key: object) -> str:
    return str(key).replace("-", "_")


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
        other = first.setdefault(_plain(name.value), value)
        both = [one.value for one in (other, value) if isinstance(one, yaml.ScalarNode)]
        if other is not value and len(both) == 2 and both[0] != both[1]:
            for one in (other, value):
                one.tag, one.value = _TWICE, f"given twice, as {both[0]} and as {both[1]}"


def _untwinned(pairs: list[tuple[str, Parsed]]) -> dict[str, Parsed]:
    """Return the settings of a JSON object, unknown where two keys of one name differ."""
    found: dict[str, Parsed] = {}
    first: dict[str, str] = {}
    for name, value in pairs:
        other = first.setdefault(_plain(name), name)
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
