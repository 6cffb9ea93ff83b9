"""The spellings of a run file's settings, and what a document has under them."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from operator import getitem
from typing import Any, NamedTuple

from rksp.ground.tables import packaged_toml, row_of
from rksp.recipe_files.parse.document import Document, Found, FoundText
from rksp.recipe_files.parse.values import Parsed, Unresolved, read_number
from rksp.recipe_files.said.origin import DECISIVE

# Fields that hold a run on preferences or rewards.
PREFERRED = ("preference_beta",)
REWARDED = ("kl_coefficient", "generations", "clip_range")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_OFF = ("", "none", "null", "false", "0", "0.0", "no", "off")
_PASSED = re.compile(r"^[A-Za-z_][\w.\[\]'\"]*$")  # the name of what stands elsewhere
_SHORTEST, _SHORT = 7, 11  # letters of a name that may be misspelt, once or twice
_ALIKE = str.maketrans("аеорсухіјѕԁɡоνιαο", "aeopcyxijsdgoviao")  # letters of other alphabets
_OTHERS = (
    ("max", "min"),
    ("batch", "patch"),
    ("train", "eval"),
    ("steps", "seqs"),
)  # words that are no misspellings


class _Leaf(NamedTuple):
    key: str
    parts: tuple[str, ...]
    is_foremost: bool
    is_elsewhere: bool
    is_laid_over: bool  # on the same setting of the file's other sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Keys that show the objective: by their values' words, or by a value within bounds."""

    names: str
    words: bool = False
    parts: str = ""  # words that count where they are a part of the value
    allows: str = ""
    least: float | None = None
    most: float | None = None
    weak: bool = False


def _thesaurus(*path: str) -> Any:
    return reduce(getitem, path, packaged_toml("rksp.recipe_files", "thesaurus.toml"))


def units(part: str, *within: str) -> dict[str, str]:
    """Return unit → spellings, with blanks between, of a field or another part that is there."""
    return {**_thesaurus(part, *within)} if part in _thesaurus() else {}


@cache
def spelt(*path: str) -> tuple[str, ...]:
    """Return the spellings of a part of the table, such as `learning_rate`, or of one unit."""
    found = _thesaurus(*path)
    return tuple((found if isinstance(found, str) else " ".join(found.values())).split())


@cache
def signs() -> tuple[Sign, ...]:
    """Return what shows the objective, the surest first."""
    rows = _thesaurus("objective", "signs")
    return tuple(row_of(Sign, row, where="thesaurus.toml [objective] signs") for row in rows)


def meant_by(words: set[str]) -> list[str]:
    """Return the objectives that one of these words of a program or a value allows; mostly none."""
    listed = units("objective", "words").items()
    return next((meaning.split() for meaning, known in listed if words & {*known.split()}), [])


def plain(name: str) -> str:
    """Return a key in small letters with underscores: `learningRate` and `learning-rate` too."""
    return _HUMP.sub("_", name).lower().replace("-", "_")


class Names:
    """The settings of a document by the meaning of their keys.

    Sections called like one of `besides` are of another stage than the run's.
    """

    def __init__(self, document: Document, besides: Iterable[str] = ()) -> None:
        self.document = document
        elsewhere, foremost = {*spelt("elsewhere"), *besides}, set(spelt("foremost"))
        between = set(spelt("between"))
        self._by_last: dict[str, list[_Leaf]] = {}
        for key in document.leaves():
            parts = [part for part in map(plain, key.split(".")) if part.strip("()")]
            parts = [*(part for part in parts[:-1] if part not in between), *parts[-1:]]
            if not parts:
                continue
            leaf = _Leaf(
                key=key,
                parts=tuple(parts),
                is_foremost=bool(foremost.intersection(parts[:-1])),
                is_elsewhere=bool(elsewhere.intersection(parts[:-1])),
                is_laid_over=_is_laid_over(document, key),
            )
            self._by_last.setdefault(parts[-1], []).append(leaf)

    def find(self, spellings: Iterable[str], *, anywhere: bool = False) -> list[Found]:
        """Return what stands under these spellings, the best first, references followed.

        What is switched off, or left to the trainer, does not stand there, nor, unless `anywhere`
        counts, what belongs to another model or to evaluation.
        """
        found: list[tuple[tuple[bool, bool, int, int], Found]] = []
        for place, leaf in self._under(spellings):
            is_dotted = "." in [*spellings][place]
            if leaf.is_laid_over or (leaf.is_elsewhere and not (anywhere and is_dotted)):
                continue
            one = self.document.find(leaf.key)
            if one is not None:
                is_passed = isinstance(one.value, Unresolved) and _PASSED.search(one.value.text)
                depth = len(leaf.parts) - 1
                found.append(((bool(is_passed), not leaf.is_foremost, place, depth), one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def laid_over(self, spellings: Iterable[str]) -> list[Found]:
        """Return what a section of the file, such as a profile, may set again under these."""
        leaves = [leaf for _, leaf in self._under(spellings) if leaf.is_laid_over]
        found = (self.document.find(one.key) for one in leaves if not one.is_elsewhere)
        return [one for one in found if one is not None]

    def _under(self, spellings: Iterable[str]) -> Iterator[tuple[int, _Leaf]]:
        for place, spelling in enumerate(spellings):
            *home, last = spelling.split(".")
            for leaf in self._by_last.get(last, ()):
                above = leaf.parts[:-1]
                if not home or list(above[-len(home) :]) == home:
                    yield place, leaf

    def like(self, pattern: re.Pattern[str]) -> Iterator[Found]:
        """Yield what is on under keys like a pattern, of the trained model."""
        for leaf in (leaf for leaves in self._by_last.values() for leaf in leaves):
            is_other = leaf.is_elsewhere or leaf.is_laid_over
            is_like = not is_other and pattern.search(leaf.key.lower())
            found = self.document.find(leaf.key) if is_like else None
            if found is not None and is_on(found.value):
                yield found


def _is_laid_over(document: Document, key: str) -> bool:
    """Tell whether a key is that of another setting under one section more, or two."""
    parts = key.split(".")
    return any(document.has(".".join(parts[n:])) for n in (1, 2) if len(parts) > n + 1)


def texts(found: Iterable[Found]) -> list[FoundText]:
    """Return what is text among what was found."""
    return [text for one in found if (text := one.as_text()) is not None]


def number(value: Parsed) -> float | None:
    """Return the number that a value is, or is written as; None if it is none."""
    if isinstance(value, list) and len(value) == 1:  # a rate for each epoch, of which one is given
        value = value[0]
    if isinstance(value, str):
        value = read_number(value)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def is_on(value: object) -> bool:
    """Tell whether a value switches something on, or names it."""
    return value is True or str(value).lower() not in _NOT_OFF


@cache
def misspelt(key: str) -> str:
    """Return the field that a key nearly names; mostly empty.

    It is one without which there is no answer, or one that holds a run on preferences or rewards.
    Two letters may be wrong, one in a short name, and letters may look like others or not be seen.
    """
    parts = [*map(_as_seen, key.rstrip(".").split("."))]
    written = [*map(plain, key.split("."))]
    near = ""
    for field, spelling in _spelt_fields():
        size = spelling.count(".") + 1
        seen = ".".join(parts[-size:])
        if spelling == seen:
            return "" if written[-size:] == parts[-size:] else field
        is_told = size == 1 or field not in DECISIVE  # sections have many names
        if is_told and not near and len(spelling) >= _SHORTEST and _is_near(seen, spelling):
            near = field
    return near


def spoken_of(key: str) -> str:
    """Return the field that the words of a key speak of, though its name is none of those known."""
    *home, name = map(plain, key.split("."))
    words = set() if {*home} & {*spelt("elsewhere")} else set(re.split(r"[^a-z0-9]+|_", name))
    for needed, field in units("spoken").items():
        if all(words.intersection(some.split("|")) for some in needed.split()):
            return field
    return ""


@cache
def _spelt_fields() -> tuple[tuple[str, str], ...]:
    fields = [
        name for name in (*DECISIVE, *PREFERRED, *REWARDED) if name not in ("objective", "peft")
    ]  # a table of another kind, and short words
    return tuple((name, one) for name in fields for one in spelt(name))


def _as_seen(name: str) -> str:
    whole = unicodedata.normalize("NFKC", name)
    shown = "".join(c for c in whole if unicodedata.category(c) != "Cf").lower()
    return plain(shown.translate(_ALIKE))


def _is_near(name: str, spelling: str) -> bool:
    most = 2 if len(spelling) > _SHORT else 1
    is_as_long = name.count("_") == spelling.count("_")  # else it says more, or less
    if abs(len(name) - len(spelling)) > most or name[:1] != spelling[:1] or not is_as_long:
        return False
    if any((a in name) != (a in spelling) and (b in name) != (b in spelling) for a, b in _OTHERS):
        return False
    parts = difflib.SequenceMatcher(None, name, spelling, autojunk=False).get_opcodes()
    edits = sum(max(b - a, d - c) for tag, a, b, c, d in parts if tag != "equal")
    return edits <= most
