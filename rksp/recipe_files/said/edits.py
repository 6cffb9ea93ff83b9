"""Changes of a run as edits of its file's text: only what, read again, changes that and no more."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import isclose
from pathlib import Path
from typing import Any

from rksp.documents.finding import Edit, applied
from rksp.ground.budgets import RUN_FILE
from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.recipe import Recipe
from rksp.recipe_files.registry import read_recipe_file
from rksp.recipe_files.said.origin import Origin, OriginKind, plain

_TOKEN = re.compile(r"[-+]?[A-Za-z0-9_.][\w.+-]*")
_GIVEN = re.compile(r"[\]\"']*\s*[:=]")  # behind a key: a value is given to it
_UNIT = re.compile(r"\d+([A-Za-z]+)")
_MOST = 12  # places that are tried for one change
# What may move with a field: a floor that the file states as a rate, a decay after the warm-up.
_FOLLOWS = {"learning_rate": {"min_lr_ratio"}, "warmup_steps": {"decay_steps"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunText:
    """The text of a run file, and how it is read.

    Attributes:
        path: The file; `FILE.py::NAME` chooses one of several configurations.
        recipe: What was read from it, and typed.
        origins: Field -> where it comes from.
        keys: Field -> the trainer's key that takes its value in rksp's units.
        trainer: The reader, where it was named.
        devices: Number of devices, where it was given.
        text: The content, with the ends of lines as they are.
    """

    path: str
    recipe: Recipe
    origins: Mapping[str, Origin]
    keys: Mapping[str, str] = field(default_factory=dict)
    trainer: str | None = None
    devices: int | None = None
    text: str = ""

    def edit(self, name: str, value: str) -> Edit:
        """Return the change of one field; without a place where the text cannot be edited."""
        was, to = getattr(self.recipe, name), _typed(value)
        change = Edit(field=name, was=was, to=to)
        origin = self.origins.get(name)
        if not self.text or (origin is not None and origin.kind is OriginKind.FLAG):
            return change
        before = self._read(self.text) or {}
        may_move = {name, *_FOLLOWS.get(name, ())}
        for place in islice(self._places(name, was, origin, value), _MOST if before else 0):
            after = self._read(applied(self.text, [place]))
            moved = {one for one, old in before.items() if after is not None and after[one] != old}
            if after is not None and _is(after[name], to) and moved <= may_move:
                file = self.path.partition("::")[0]
                return place.model_copy(update={"was": was, "to": to, "file": file})
        return change

    def key_edit(self, key: str, to: bool | float | str) -> Edit | None:
        """Return the edit of a trainer's key that stands once in the text, with a value."""
        name = re.escape(key).replace("_", "[-_]")
        given = re.compile(
            rf"^[^#]*?(?<![\w.])(?<![\w.]-){name}[\"']?(?:\s*[:=]\s*|\s+)[\"']?([-+\w.]+)"
        )
        lines = enumerate(self.text.split("\n"), start=1)
        found = [(number, match) for number, line in lines if (match := given.search(line))]
        if len(found) != 1:
            return None
        (number, match), new = found[0], str(to)
        if isinstance(to, bool):
            if match[1].lower() not in ("true", "false"):
                return None
            new = new if match[1][0].isupper() else new.lower()
        edit = _edit(key, number, match.start(1) + 1, match[1], new)
        file = self.path.partition("::")[0]
        return edit.model_copy(update={"was": _typed(match[1]), "to": _typed(new), "file": file})

    def _places(self, name: str, was: object, origin: Origin | None, value: str) -> Iterator[Edit]:
        lines = self.text.split("\n")
        own = origin.line if origin is not None and origin.line else 0
        new = plain(value)
        for token in _TOKEN.finditer(lines[own - 1] if 0 < own <= len(lines) else ""):
            if re.match(r"-[A-Za-z]", token[0]) or _GIVEN.match(lines[own - 1], token.end()):
                continue  # an option or a key
            unit = _UNIT.fullmatch(token[0])  # 100ba
            own_new = _like(token[0], value) + (unit[1] if unit else "")
            yield _edit(name, own, token.start() + 1, token[0], own_new)
        for number, line in enumerate(lines, start=1) if isinstance(was, int | float) else ():
            for token in _TOKEN.finditer(line):
                if number != own and _is(token[0], was):
                    yield _edit(name, number, token.start() + 1, token[0], _like(token[0], value))
        key = self.keys.get(name, "").rsplit(".", 1)[-1]
        if re.search(rf"\b{re.escape(key)}\b", self.text):
            return  # a second value of one key
        for anchor in ("learning_rate", "max_steps", "weight_decay"):
            beside = self.origins.get(anchor)
            if beside is None or not beside.line or not beside.keys:
                continue
            line = lines[beside.line - 1] if beside.line <= len(lines) else ""
            known = re.escape(beside.keys[0].rsplit(".", 1)[-1]).replace("_", "[-_]")
            found = re.match(rf"(.*?){known}([\"']?\s*(?:[:=]\s*|\s+)[\"']?)([-+.\w]+)", line)
            if found is not None:
                rest = re.match(r"[\"']?(\\n)?(,|\s*\\)?(\\n)?[\"']?,?", line[found.end() :])
                added = f"{found[1]}{key}{found[2]}{new}{rest[0] if rest else ''}\n"
                yield _edit(name, beside.line, 1, "", added)

    def _read(self, text: str) -> dict[str, object] | None:
        file, mark, part = self.path.partition("::")
        typed = [n for n, o in self.origins.items() if o.kind is OriginKind.FLAG]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, Path(file).name)
            copy.write_bytes(text.encode())
            try:
                read = read_recipe_file(
                    Path(f"{copy}{mark}{part}"),
                    trainer=self.trainer,
                    devices=self.devices,
                    given={n: getattr(self.recipe, n) for n in typed},
                )
                return read.recipe().model_dump()
            except InputError:
                return None

    @classmethod
    def of(cls, path: str, text: str = "", **known: Any) -> RunText:
        """Read the file, unless its text is known; `known` holds the other fields."""
        text = text or read_text(Path(path.partition("::")[0]), RUN_FILE)
        return cls(path=path, text=text, **known)


def _edit(name: str, line: int, column: int, old: str, new: str) -> Edit:
    return Edit(field=name, was=None, to=new, line=line, column=column, old=old, new=new)


def _like(old: str, value: str) -> str:
    """Write a number with a power of ten where the old one has it: 1.0e-3 in place of 3.0e-4."""
    if re.fullmatch(r"[-+.\d]+[eE][-+\d]+", old) is None:
        return plain(value)
    mantissa, power = f"{float(value):e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    dot = ".0" * ("." in old and "." not in mantissa)
    return f"{mantissa}{dot}e{int(power)}"


def _typed(value: str) -> int | float | str:
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value


def _is(value: object, wanted: object) -> bool:
    try:
        return isclose(float(str(value)), float(str(wanted)), rel_tol=1e-6)
    except ValueError:
        return str(value) == str(wanted)
