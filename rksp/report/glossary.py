"""The words of the output by any spelling, and the JSON Schema of a document that they describe."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rksp.documents.base import SCHEMA_VERSION, Document, Part
from rksp.documents.terms import DEFAULT_BAR, DEFAULT_RISK
from rksp.documents.verdict import words_of
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe
from rksp.recipe.start import Start

NO_RANGE = "no known range"
_ENTRY = re.compile(r"^ {4}([\w, `]+): (.*(?:\n {8}.*)*)", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of the output.

    Attributes:
        name: As the pages print it.
        meaning: One or two sentences, with the unit.
        healthy: What a run that trains well shows; empty where a check or nothing says it.
        check: Code of the check whose threshold is the healthy range.
        usual: The middle 90 % of the labelled models before training, where nothing better is
            known; two significant digits.
        feature: Column of the labelled models that `usual` comes from.
        is_quantity: Whether it is a measured number, which has a healthy range.
        spellings: Other ways to type it.
        source: Who defined it; empty where rksp did.
    """

    name: str
    meaning: str
    healthy: str = ""
    check: str = ""
    usual: Sequence[float] | None = None
    feature: str = ""
    is_quantity: bool = False
    spellings: tuple[str, ...] = ()
    source: str = ""

    @property
    def range(self) -> str:
        """The healthy range in words: the check's own, or the usual one, or that none is known."""
        if self.check:
            from rksp.checks.registry import find_check

            return find_check(self.check).texts.healthy
        if self.usual is not None:
            return f"usually {self.usual[0]:,g} to {self.usual[1]:,g}"
        return self.healthy or NO_RANGE


@cache
def words() -> tuple[Word, ...]:
    """Return every word, in the order of the file.

    A key is a word and its other spellings; what is known beside its meaning stands in `facts`.
    """
    text = (files("rksp.report") / "glossary.toml").read_text(encoding="utf-8")
    said = {str(word): told for word, told in words_of(DEFAULT_RISK, DEFAULT_BAR).items()}
    for name, told in (said | {"share": f"{DEFAULT_RISK:.0%}"}).items():
        text = text.replace(f"{{{name}}}", told)
    table: dict[str, Any] = tomllib.loads(text)
    facts: dict[str, dict[str, Any]] = table.pop("facts")
    named = ((*key.split(" | "), meaning) for key, meaning in table.items())
    return tuple(
        Word(name=name, spellings=tuple(others), meaning=meaning, **facts.get(name, {}))
        for name, *others, meaning in named
    )


def find_word(wanted: str) -> Word | None:
    """Return the word of this name or spelling; case, hyphens and underscores do not matter."""
    return _by_key().get(_key(wanted))


def _key(text: str) -> str:
    return text.strip().lower().replace("_", " ").replace("-", " ")


@cache
def _by_key() -> dict[str, Word]:
    return {_key(name): word for word in words() for name in (word.name, *word.spellings)}


def described(kind: type[Document]) -> dict[str, Any]:
    """Return the schema of a kind of document; docstrings and the glossary describe its fields."""
    schema = kind.model_json_schema()
    classes = {one.__name__: one for one in _parts(Part)} | {
        one.__name__: one for one in (Recipe, Start)
    }
    for name, part in {**schema.get("$defs", {}), kind.__name__: schema}.items():
        said = _said(classes[name]) if name in classes else {}
        for field, entry in part.get("properties", {}).items():
            word = find_word(field)
            told = said.get(field) or (word.meaning if word else "")
            if told and "description" not in entry:
                entry["description"] = told
        if "description" in part:
            part["description"] = part["description"].partition("\n\nAttributes:")[0]
    name = str(schema["properties"]["kind"].get("default", kind.__name__))
    example = {"kind": name, "schema_version": SCHEMA_VERSION, "verdict": "ok"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:rksp:schema:{name}:{SCHEMA_VERSION}",
        "examples": [example],
        **schema,
    }


def _parts(of: type[object]) -> Iterator[type[object]]:
    yield of
    for one in of.__subclasses__():
        yield from _parts(one)


def _said(part: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in reversed(part.__mro__):
        text = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2]
        for names, told in _ENTRY.findall(text):
            for name in names.replace("`", "").split(","):
                found[name.strip()] = " ".join(told.split())
    if part is Recipe:
        found = {name: flag.help for name, flag in flags_of(Recipe).items()} | found
    return found
