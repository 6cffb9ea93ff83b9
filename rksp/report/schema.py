"""The JSON Schema of a document, with a description of every field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from rksp.documents.base import SCHEMA_VERSION, Document, Part
from rksp.ground.flags import flags_of
from rksp.recipe import Recipe
from rksp.report.glossary import find_word

_ENTRY = re.compile(r"^ {4}([\w, `]+): (.*(?:\n {8}.*)*)", re.M)


def described(kind: type[Document]) -> dict[str, Any]:
    """Return the schema of a kind of document; docstrings and the glossary describe its fields."""
    schema = kind.model_json_schema()
    classes = {one.__name__: one for one in _parts(Part)} | {Recipe.__name__: Recipe}
    for name, part in {**schema.get("$defs", {}), kind.__name__: schema}.items():
        said = _said(classes[name]) if name in classes else {}
        for field, entry in part.get("properties", {}).items():
            told = said.get(field) or _of_glossary(field)
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


def _parts(of: type[Any]) -> Iterator[type[Any]]:
    yield of
    for one in of.__subclasses__():
        yield from _parts(one)


def _said(part: type[Any]) -> dict[str, str]:
    """Return field -> its entry in the docstring of the class or a base."""
    found: dict[str, str] = {}
    for one in reversed(part.__mro__):
        text = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2]
        for names, told in _ENTRY.findall(text):
            for name in names.replace("`", "").split(","):
                found[name.strip()] = " ".join(told.split())
    if part is Recipe:
        found = {name: flag.help for name, flag in flags_of(Recipe).items()} | found
    return found


def _of_glossary(field: str) -> str:
    word = find_word(field)
    return "" if word is None else word.meaning
