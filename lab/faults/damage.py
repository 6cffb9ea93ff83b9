"""Hypothesis strategies for damaged files: real ones with a few changes, and hostile values."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence

from hypothesis import strategies as st

_DEEP: object = 0
for _ in range(60):
    _DEEP = [_DEEP]

# What breaks parsers, arithmetic, paths and terminals, as text of YAML, JSON, TOML or a shell.
TEXTS = (
    *("0", "-1", "1", "3", "0.5", "-0.0", "1e400", "-1e400", ".inf", ".nan", "NaN", "1e-400"),
    *("9" * 5000, "1" + "0" * 25, "2147483648", "-9223372036854775809", "1e30", "1e-30"),
    *("null", "~", "true", "no", "''", "[]", "{}", "[[[[]]]]", "{a: {b: {c: 1}}}", "[1, [2], {}]"),
    *("!!bool x", "!!python/object:os.system x", "!!binary AA==", "!!set {a}", "!!float x"),
    *("&a [*a]", "*a", "<<: *a", "${a.b}", "${learning_rate}", "${oc.env:HOME}", "$(id)", "`id`"),
    *("evil:run", "/dev/zero", "../../etc/passwd", "~nosuchuser", "a" * 300, "file://x", "%s%n"),
    *("\x1b[31m", "a\x00b", "\u202e", "é模型", "\ud7ff", "2024-01-01", "0x1F", "0o17", "1_000"),
    *("1:30", "3d", "10ba", "1ep", "1.5.2", "-", "--", "=", ":", "#", "|", ">", "'", '"', "\\"),
)
# The same as values of JSON.
VALUES: tuple[object, ...] = (
    *(0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan),
    *(10**25, -(10**25), 2**31, 2**63, 10**4, 10**6, 10**9, None, True, False, "", "x", " "),
    *([], {}, [None], [0, -1], {"a": {}}, [[1, 2], [3]], _DEEP, "9" * 5000, "nan", "1e-3", "a:b"),
    *("evil:run", "/dev/zero", "../x", "\x1b[31m", "a\x00b", "\u202e", "float16", "gelu", "auto"),
)
_VALUE = re.compile(r"(?<=[:=\s])[^\s#,:=}\]\[{]+")
_WORD = re.compile(r"[A-Za-z_][\w.-]*(?=\s*[:=])")
_MOST_PLACES = 5000  # of a document, beyond which nothing is changed
_SPOT = st.integers(0, 2**16 - 1)
Change = tuple  # its kind, the spot, and what it needs


def damaged_text(originals: Sequence[str]) -> st.SearchStrategy[str]:
    """Return real texts, each with up to four changes."""
    changes = st.lists(_change(), min_size=1, max_size=4)
    return st.builds(lambda text, found: _all(text, found, originals), _one(originals), changes)


def damaged_bytes(originals: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return real files with bytes flipped, cut off, repeated or inserted."""
    return st.builds(
        _bytes_changed, _one(originals), st.lists(_byte_change(), min_size=1, max_size=4)
    )


def damaged_json(originals: Sequence[object]) -> st.SearchStrategy[str]:
    """Return documents with values replaced, deleted, moved or doubled."""
    change = st.tuples(
        st.sampled_from(("value", "value", "value", "delete", "move", "add")),
        _SPOT,
        st.one_of(_one(VALUES), st.integers(-3, 70_000), st.floats()),
    )
    return st.builds(
        lambda number, found: json.dumps(_json_changed(originals[number], found)),
        st.integers(0, len(originals) - 1),
        st.lists(change, min_size=1, max_size=4),
    )


def file_of(name: str, text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, bytes]]:
    """Return one file of these texts."""
    return text.map(lambda found: {name: encoded(found)})


def json_file(name: str, whole: Sequence[object]) -> st.SearchStrategy[dict[str, bytes]]:
    """Return one file of these documents, two of three times damaged as JSON, else as text."""
    damaged = damaged_json(whole)
    texts = damaged_text([json.dumps(document, indent=1) for document in whole])
    return st.one_of(file_of(name, damaged), file_of(name, damaged), file_of(name, texts))


def encoded(text: str) -> bytes:
    """Return a text as the bytes of a file, unpaired surrogates included."""
    return text.encode("utf-8", errors="surrogatepass")


def words() -> st.SearchStrategy[str]:
    """Return what somebody could type where rksp wants a word or a number."""
    numbers = st.one_of(st.integers().map(str), st.floats().map(repr))
    typed = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
    hostile = _one([text for text in TEXTS if "\0" not in text])
    return st.one_of(hostile, numbers, typed)


def _one(originals: Sequence) -> st.SearchStrategy:
    return st.integers(0, len(originals) - 1).map(lambda number: originals[number])


def _change() -> st.SearchStrategy[Change]:
    value = st.one_of(_one(TEXTS), st.integers(-2, 10**6).map(str), st.floats().map(str))
    piece = _one((*TEXTS, "\t", "\r", "\n- ", "---\n", "\ufeff"))
    how = st.sampled_from(("drop", "double", "indent", "cut"))
    return st.one_of(
        st.tuples(st.just("value"), _SPOT, value),
        st.tuples(st.just("value"), _SPOT, value),
        st.tuples(st.just("value of another"), _SPOT, _SPOT),
        st.tuples(st.just("line"), _SPOT, how),
        st.tuples(st.just("word of another"), _SPOT, _SPOT),
        st.tuples(st.just("insert"), _SPOT, piece),
        st.tuples(st.just("splice"), _SPOT, _SPOT, _SPOT),
    )


def _all(text: str, changes: Sequence[Change], originals: Sequence[str]) -> str:
    for change in changes:
        text = _changed(text, change, originals)
    return text


def _changed(text: str, change: Change, originals: Sequence[str]) -> str:
    lines = text.splitlines(True)
    match change:
        case ("value", spot, value):
            return _put(text, _VALUE, spot, value)
        case ("value of another" | "word of another" as kind, spot, other):
            pattern = _VALUE if kind.startswith("value") else _WORD
            found = pattern.findall(originals[other % len(originals)])
            return _put(text, pattern, spot, found[other % len(found)]) if found else text
        case ("insert", spot, piece):
            at = spot % (len(text) + 1)
            return text[:at] + piece + text[at:]
        case ("splice", spot, other, end):
            more, at = originals[other % len(originals)].splitlines(True), spot % (len(lines) + 1)
            return "".join([*lines[:at], *more[: end % (len(more) + 1)], *lines[at:]])
        case (_, spot, how):
            lines = lines or [""]
            at = spot % len(lines)
            line = lines[at]
            new = {"drop": "", "double": line * 2, "indent": f"  {line}"}
            return "".join([*lines[:at], new.get(how, line[: len(line) // 2]), *lines[at + 1 :]])
    raise ValueError(change)


def _put(text: str, pattern: re.Pattern[str], spot: int, value: str) -> str:
    places = list(pattern.finditer(text))
    if not places:
        return text + value
    place = places[spot % len(places)]
    return text[: place.start()] + value + text[place.end() :]


def _byte_change() -> st.SearchStrategy[tuple[str, int, bytes]]:
    kinds = st.sampled_from(("flip",) * 6 + ("cut", "repeat", "insert"))
    return st.tuples(kinds, st.integers(0, 2**32), st.binary(min_size=1, max_size=8))


def _bytes_changed(content: bytes, changes: Sequence[tuple[str, int, bytes]]) -> bytes:
    for kind, spot, piece in changes:
        at = spot % (len(content) + 1)
        if kind == "cut":
            content = content[:at]
        elif kind == "repeat":
            content = content[:at] + content[at : at + 64] * 20 + content[at:]
        else:
            content = content[:at] + piece + content[at + (len(piece) if kind == "flip" else 0) :]
    return content


def _json_changed(document: object, changes: Sequence[tuple[str, int, object]]) -> object:
    document = {"root": copy.deepcopy(document)}
    for kind, spot, original in changes:
        value = copy.deepcopy(original)  # each its own: one object in itself has no JSON
        places = _places(document)[1:] or [(document, "root")]
        holder, key = places[spot % len(places)]
        if kind == "delete" and holder is not document:
            del holder[key]
        elif kind == "move":
            other, name = places[(spot * 31 + 7) % len(places)]
            holder[key] = copy.deepcopy(other[name])
        elif kind == "add" and isinstance(holder[key], dict):
            holder[key][str(value)[:20]] = value
        else:
            holder[key] = value
    return document["root"]


def _places(document: object) -> list[tuple[dict | list, object]]:
    """Return each container and key of a document, those on the outside first."""
    found, waiting = [], [document]
    while waiting and len(found) < _MOST_PLACES:
        holder = waiting.pop(0)
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return found
