"""A trainer's configuration file as data: its settings with their lines, and what they refer to."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath

from rksp.ground.budgets import CODE, DEPTH, REFERENCES
from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.recipe_files.parse.content import SHELL_SUFFIXES, content_of, text_of
from rksp.recipe_files.parse.places import beside
from rksp.recipe_files.parse.python_loop import ABOUT
from rksp.recipe_files.parse.python_script import Call
from rksp.recipe_files.parse.shell import read_shell
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved, underscored

_LONGEST = 4096  # characters of a value that references are filled into
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


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
                names = self._names[id(value)] = {underscored(k): k for k in reversed(list(value))}
            name = names.get(underscored(part))
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
    text, suffix = text_of(path)
    loaded = _loaded(path, text, suffix)
    return dataclasses.replace(loaded, text=text) if str(path) == "-" else loaded


def _loaded(path: Path, text: str, suffix: str) -> Document:
    if suffix in SHELL_SUFFIXES:
        CODE.check(len(text), path)
        command = read_shell(text, partial(_included, [path]))
        scripts = [text for name, text in command.written.items() if name.endswith(SHELL_SUFFIXES)]
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
    content = content_of(path, text, suffix)
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


def _collect(value: Parsed, prefix: str, found: list[str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _collect(inner, f"{prefix}.{name}" if prefix else str(name), found)
    elif value is not None:
        found.append(prefix)
