"""How to write what was meant by a text that is no number."""

from __future__ import annotations

import ast
import math
import re
from unicodedata import normalize

from rksp.ground.text import short
from rksp.recipe_files.parse.python_values import literal

_LONGEST = 60  # characters of a text that may have been meant as a number
_VALUE = r"(?:[0-9]*\.?[0-9]+|[0-9]+\.)(?:[eE][+-]?[0-9]+)?"
_RANGE = re.compile(rf"\[?({_VALUE}) *(?:\.\.|:|-|to) *({_VALUE})(?::\d+)?\]?")
_UNIT = re.compile(rf"({_VALUE}(?:[kKMB](?![^\W_]))?)[ _]?([^\d .,][^\d]*)")
# What no option counts, by how its name begins, and what to give in its place.
_INSTEAD = {
    "ep": "steps: epochs × examples / batch size",
    "h|min|day|sec|sample|example": "steps",
    "per|dev|gpu": "the number of all devices together",
}
_SIGNS = str.maketrans({"^": "**", "×": "*", "·": "*", "x": "*", "X": "*", "%": "/100", " ": ""})


def misread(text: str, name: str = "lr", *, instead: str = "use rksp grid TARGET") -> str:
    """Say how to write what was meant by a text that is no number; empty if nobody can tell.

    Args:
        text: Such as `0,001`, `1,000`, `1e-4..1e-2`, `1e-4,1e-3`, `10^-4`, `2**12` or `3%`.
        name: What the value is of, as an axis of a grid; empty if a grid has no such axis.
        instead: What to do for several values, before the axis.
    """
    text = re.sub("%+", "%", re.sub("[‐-―−]", "-", normalize("NFKC", text.strip())))
    if len(text) > _LONGEST or re.fullmatch(rf"-?{_VALUE}", text):
        return ""
    if re.fullmatch(r"0?,\d+", text):
        return f"write the decimal point: 0.{text.partition(',')[2]}."
    if re.fullmatch(r"[1-9]\d{0,2}((,\d{3})+|(\.\d{3}){2,})", text):
        return f"write it without commas or points: {re.sub('[,.]', '', text)}."
    if re.fullmatch(r"\d{1,3}(\.\d{3})+,\d+|\d+,\d+[kKMBT]", text):
        whole = text.replace(".", "").replace(",", ".")
        return f"write the decimal point: {whole}."
    if power := re.fullmatch(r"([\d.]+) ?[x×*·] ?10\^?(-?\d+)", text):
        return f"write it as {power[1]}e{power[2]}."
    bare = re.sub(r"\s|[\])},;.'\"“”„‘’«»]+$|^[\[({~≈<>=“”„‘’«»]+|^\w+=", "", text)
    if re.fullmatch(_VALUE, bare):
        return f"write it as {bare}."
    if re.search("[,;|]", text):
        several = re.sub("[;|]", ",", text)
        return f"for several values {instead} {name}={several}." if name else "give one number."
    if name and (ends := _RANGE.fullmatch(text)) and float(ends[1]) > 0:
        low, high = (f"{math.log10(float(end)):.4g}" for end in ends.groups())
        return f"for a range {instead} '{name}=logspace({low},{high},9)'."
    if (value := _worked_out(text)) is not None:
        return f"write it as {value if isinstance(value, int) else short(value, 6)}."
    if re.search(r"[${}<>]", text):
        return "put the value itself in the place of the variable."
    unit = _UNIT.fullmatch(text)
    if unit and unit[2].lower() not in "kmbgt":  # which may be meant as thousands or millions
        named = unit[2].lower() * (unit[2] != "e")
        instead = next((way for like, way in _INSTEAD.items() if re.match(like, named)), "")
        return f"give {instead}, not {unit[2]}." if instead else f"leave out {unit[2]}: {unit[1]}."
    numbers = re.findall(_VALUE, re.sub("(?<![0-9])[A-Za-z]+", " ", text))
    if name and len(numbers) > 1 and re.search(r"[^\d.]", re.sub(_VALUE, "", text)):
        return f"for several values {instead} {name}={','.join(numbers)}."
    return "" if re.search(r"\d", text) else "give a number, or leave the option out."


def _worked_out(text: str) -> float | None:
    if text.lower().startswith("0x"):
        return None
    try:
        found = literal(ast.parse(text.translate(_SIGNS), mode="eval").body, {})
    except (SyntaxError, ValueError):
        return None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
