"""Look up a word of the output by any of its spellings; glossary.toml holds the words."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

NO_RANGE = "no known range"


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
    usual: tuple[float, float] | None = None
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
    """Return every word, in the order of the file."""
    text = (files("rksp.report") / "glossary.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["word"]
    return tuple(Word(**{key: _frozen(value) for key, value in row.items()}) for row in rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def find_word(wanted: str) -> Word | None:
    """Return the word of this name or spelling; case, hyphens and underscores do not matter."""
    return _by_key().get(_key(wanted))


def _key(text: str) -> str:
    return text.strip().lower().replace("_", " ").replace("-", " ")


@cache
def _by_key() -> dict[str, Word]:
    return {_key(name): word for word in words() for name in (word.name, *word.spellings)}
