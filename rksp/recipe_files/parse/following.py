"""Follow a configuration to the files that it is made of: Hydra's defaults, `_base_`, `extends`.

Only files within the repository are read. What a configuration says itself replaces what they say.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rksp.ground.budgets import CODE, RUN_FILE
from rksp.ground.errors import InputError
from rksp.ground.files import is_file, read_head, read_text
from rksp.recipe_files.parse.document import Document, load_document
from rksp.recipe_files.parse.places import beside, folders_above
from rksp.recipe_files.parse.python_loop import NAMES, names_in
from rksp.recipe_files.parse.python_names import Names
from rksp.recipe_files.parse.python_values import last_word
from rksp.recipe_files.parse.shell_command import CHOICE
from rksp.recipe_files.parse.shell_words import ELSEWHERE
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved, as_section

_BASES = ("_base_", "_BASE_", "__base__", "base_config", "extends", "inherits", "inherit_from",
          "parent_config")  # fmt: skip
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_MOST, _DEEPEST = 40, 6  # files, and files of files
_GLOBAL = "_global_"


def composed(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a configuration with what the files say that it names, and which these are."""
    if document.syntax not in ("yaml", "json", "toml"):
        return document, ()
    read: list[str] = []
    lost: list[str] = []
    data = _whole(document.path, document.data, read, lost, 0)
    notes = [f"Composed with {', '.join(read)}."] if read else []
    notes += [f"{name}, which the configuration is made of, was not found." for name in lost]
    document = dataclasses.replace(document, data=data) if read else document
    within = [key for key in document.leaves() if "." in key and key.rpartition(".")[2] in _BASES]
    lost += [f"{key}: {found.value}" for key in within if (found := document.find(key)) is not None]
    if _is_overlay(document.path):
        lost.append("the configuration that it is laid over (@package _global_)")
    return dataclasses.replace(document, lost=tuple(lost)), tuple(notes)


def _is_overlay(path: Path) -> bool:
    """Tell whether Hydra lays a file over a whole configuration, which another file begins."""
    return is_file(path) and f"@package {_GLOBAL}" in read_head(path, 200).decode(
        "utf-8", "replace"
    )


def launched(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Return a command's settings with those of the Hydra configuration that its script names."""
    script = _script(document)
    if script is None:
        return document, ()
    with contextlib.suppress(InputError):
        text = read_text(script, RUN_FILE)
        main = _HYDRA.search(text)
        said = {} if main is None else dict(_NAMED.findall(main[1]))
        said |= {key: str(document.data[key]) for key in ("config_path", "config_name")
                 if document.syntax == "shell" and key in document.data}  # fmt: skip
        place = script.parent / said.get("config_path", ".") / said.get("config_name", "config")
        file = place if place.suffix in _SUFFIXES else place.with_name(f"{place.name}.yaml")
        if main is None or not file.is_file():
            return document, ()
        base = load_document(file)
        choices = dict(_choices(document.data))
        listed = base.data.get("defaults")
        groups = [_chosen(one, choices) for one in listed] if isinstance(listed, list) else []
        read: list[str] = []
        whole = _whole(file, {**base.data, "defaults": groups}, read, [], 0)
        is_command = document.syntax == "shell"
        own = {k: v for k, v in document.data.items() if is_command and k not in _OF_LAUNCH}
        data = merged(whole, _without_choices(own, whole))
        lines = {k: line for k, line in document.lines.items() if document.find(k) is not None}
        note = f"Composed with {', '.join([file.name, *read])}, which {script.name} names."
        return dataclasses.replace(document, data=data, lines=lines), (note,)
    return document, ()


def with_defaults(document: Document) -> Document:
    """Return a command with the options that it leaves out, at the defaults of its script."""
    script = _script(document)
    if script is None or document.syntax != "shell" or document.defaults:
        return document
    with contextlib.suppress(InputError, SyntaxError, ValueError, RecursionError, MemoryError):
        text = read_text(script, RUN_FILE)
        CODE.check(len(text), script)
        tree = ast.parse(text)
        names = Names(tree, {})
        given = {key.replace("-", "_") for key in document.data}
        own = {**names.options, **_fixed(names.nodes), NAMES: names_in(names.nodes)}
        left = {key: value for key, value in own.items()
                if key not in given and not isinstance(value, Unresolved)}  # fmt: skip
        return dataclasses.replace(
            document, data={**left, **document.data}, defaults=dict.fromkeys(left, script.name)
        )
    return document


def _fixed(nodes: list[ast.AST]) -> Section:
    """Return the numbers and switches that a script hands to its only `TrainingArguments`."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    makes = [call for call in calls if last_word(call).endswith("TrainingArguments")]
    given = makes[0].keywords if len(makes) == 1 else []
    return {one.arg: one.value.value for one in given if one.arg is not None
            and isinstance(one.value, ast.Constant) and isinstance(one.value.value, int | float)
            }  # fmt: skip


def _script(document: Document) -> Path | None:
    if document.syntax == "python":
        return document.path
    module = str(document.program or document.data.get("m", ""))
    written = document.script.rpartition(ELSEWHERE)[2].lstrip("/")
    plain = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    return beside(document.path, written) or beside(document.path, plain)


_OF_LAUNCH = ("m", "u", "config_path", "config_name")
_HYDRA = re.compile(r"@hydra\.main\((.*?)\)", re.S)
_NAMED = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']*)[\"']")


def _choices(data: Section) -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        word = value.get(CHOICE) if isinstance(value, Mapping) else value
        if isinstance(word, str):
            yield name, word


def _chosen(entry: Parsed, choices: Mapping[str, str]) -> Parsed:
    if not isinstance(entry, Mapping):
        return entry
    return {
        group: choices.get(_group(group), name) if name is None or isinstance(name, str) else name
        for group, name in entry.items()
    }


def _group(name: object) -> str:
    return str(name).removeprefix("optional ").removeprefix("override ").strip().strip("/")


def _without_choices(own: Section, whole: Section) -> dict[str, Parsed]:
    found: dict[str, Parsed] = {}
    for name, value in own.items():
        if isinstance(value, Mapping):
            value = {k: v for k, v in value.items() if k != CHOICE}
        elif isinstance(whole.get(name), Mapping):
            continue
        found[name] = value
    return found


def _whole(path: Path, data: Section, read: list[str], lost: list[str], depth: int) -> Section:
    own = {k: v for k, v in data.items() if k != "defaults" and k not in _BASES}
    found: dict[str, Parsed] = {}
    is_last = True
    for package, name in _named(data):
        if name == "_self_":
            found, is_last = merged(found, own), False
            continue
        there = _place(path, name)
        if there is None or depth >= _DEEPEST or len(read) >= _MOST:
            lost += [name] if there is None else []
            continue
        with contextlib.suppress(InputError):
            inner = load_document(there).data
            read.append(
                there.name if there.parent == path.parent else f"{there.parent.name}/{there.name}"
            )
            inner = _whole(there, inner, read, lost, depth + 1)
            for part in reversed(() if _is_overlay(there) else package):
                inner = {part: inner}
            found = merged(found, inner)
    return merged(found, own) if is_last else found


def _named(data: Section) -> Iterator[tuple[tuple[str, ...], str]]:
    bases = [data.get(key) for key in _BASES]
    defaults = data.get("defaults")
    bases += [defaults] if isinstance(defaults, str) else []
    for base in bases:
        for one in base if isinstance(base, list) else [base]:
            if isinstance(one, str):
                yield (), one
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            yield (), entry
        for group, name in entry.items() if isinstance(entry, Mapping) else ():
            plain, _, at = _group(group).partition("@")
            package = () if at == _GLOBAL else tuple((at or plain).replace("/", ".").split("."))
            for one in name if isinstance(name, list) else [name]:
                if isinstance(one, str):
                    yield package, f"{plain}/{one}"


def _place(path: Path, name: str) -> Path | None:
    names = [name] if name.endswith(_SUFFIXES) else [f"{name}{suffix}" for suffix in _SUFFIXES]
    root = folders_above(path)[-1].resolve()
    for folder in folders_above(path):
        for one in names:
            with contextlib.suppress(OSError, ValueError):
                there = (folder / one.lstrip("/")).resolve()
                if there.is_file() and there != path.resolve() and there.is_relative_to(root):
                    return there
    return None


def merged(below: Section, above: Section) -> dict[str, Parsed]:
    """Return settings with others above them, section by section."""
    found = dict(below)
    for key, value in above.items():
        other = found.get(key)
        are_sections = isinstance(other, Mapping) and isinstance(value, Mapping)
        found[key] = merged(as_section(other), as_section(value)) if are_sections else value
    return found
