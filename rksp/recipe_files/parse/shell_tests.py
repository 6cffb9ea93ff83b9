"""The branches of a shell script: which of them are taken, where its tests can be decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne

from rksp.recipe_files.parse.shell_words import ASSIGNMENT, ELSEWHERE, Word

_PATTERN = re.compile(r"[^()]*\)")
_COMPARED = {"-eq": eq, "-ne": ne, "-gt": gt, "-ge": ge, "-lt": lt, "-le": le}
_ENDS = {"[": "]", "[[": "]]", "test": ""}


@dataclass(slots=True)
class Block:
    """An `if`, a `case`, a loop or a group while it is read.

    Attributes:
        kind: The word that opens it.
        is_taken: Whether the branch at hand runs; None where that is not known.
        subject: What a `case` compares.
        earlier: What the tests of the branches above came to.
    """

    kind: str
    is_taken: bool | None
    subject: str = ""
    earlier: list[bool | None] = field(default_factory=list)
    _truth: bool | None = None
    _is_testing: bool = False
    _joined: str = ""
    _patterns: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_testing = self.kind == "if"

    def branch(self, keyword: str) -> None:
        """Go on to the next branch of an `if`, at `then`, `elif` or `else`."""
        if self.kind != "if" or keyword == "do":
            return
        self._is_testing, self._joined = keyword == "elif", ""
        truth, self._truth = self._truth, None
        if keyword == "then":
            self._enter(truth)
        elif keyword == "else":
            self._enter(True)
        else:
            self.is_taken = False if True in self.earlier else None

    def test(self, truth: bool | None, ended_by: str) -> None:
        """Take a command of the condition of an `if` with what it comes to."""
        if not self._is_testing:
            return
        before, self._truth = self._truth, truth
        ends = {"&&": False, "||": True}
        if self._joined in ends:
            end = ends[self._joined]
            self._truth = (
                end if end in (before, truth) else (None if None in (before, truth) else not end)
            )
        self._joined = ended_by

    def takes(self, words: Sequence[Word], ended_by: str, fill: Callable[[str], str]) -> bool:
        """Tell whether the first word is a pattern of a `case`, which begins a branch."""
        if self.kind != "case":
            return False
        if len(words) == 1 and ended_by == "|":
            self._patterns.append(words[0].text)
            return True
        if not _PATTERN.fullmatch(words[0].text):
            return False
        patterns = [fill(one) for one in (*self._patterns, words[0].text[:-1])]
        self._patterns.clear()
        is_known = ELSEWHERE not in "".join((self.subject, *patterns))
        self._enter(any(fnmatchcase(self.subject, one) for one in patterns) if is_known else None)
        return True

    def _enter(self, truth: bool | None) -> None:
        is_open = truth and None in self.earlier
        self.is_taken = False if True in self.earlier else None if is_open else truth
        self.earlier.append(truth)


def decided(words: Sequence[Word], fill: Callable[[str], str]) -> bool | None:
    """Return what a test comes to: `[ ]`, `[[ ]]`, `test`, `true`; None where it is not known.

    Args:
        words: The words of one command.
        fill: Fills the known variables into a text.
    """
    first = words[0].text
    if first == "!" and len(words) > 1:
        inner = decided(words[1:], fill)
        return None if inner is None else not inner
    if all(ASSIGNMENT.match(word.text) and not re.search(r"\$\(|`", word.text) for word in words):
        return True
    if len(words) == 1:
        return {"true": True, ":": True, "false": False}.get(fill(first))
    end = _ENDS.get(first)
    if end is None or (end and words[-1].text != end):
        return None
    parts = list(words[1:-1] if end else words[1:])
    is_negated = bool(parts) and parts[0].text == "!"
    truth = _compared(parts[is_negated:], fill, is_own=first == "[[")
    return None if truth is None else truth is not is_negated


def _compared(parts: Sequence[Word], fill: Callable[[str], str], *, is_own: bool) -> bool | None:
    texts = [fill(part.text) for part in parts]
    if ELSEWHERE in "".join(texts):
        return None
    if len(texts) == 2:
        return {"-z": not texts[1], "-n": bool(texts[1])}.get(texts[0])
    if len(texts) != 3:
        return bool(texts[0]) if len(texts) == 1 else None
    left, sign, right = texts
    if sign in _COMPARED:
        is_number = left.lstrip("-").isdecimal() and right.lstrip("-").isdecimal()
        return _COMPARED[sign](int(left), int(right)) if is_number else None
    is_pattern = is_own and not parts[2].whole
    if sign == "=~":
        return _is_like(left, right if is_pattern else re.escape(right))
    same = fnmatchcase(left, right) if is_pattern else left == right
    return {"=": same, "==": same, "!=": not same}.get(sign)


def _is_like(text: str, pattern: str) -> bool | None:
    if len(text) > 200 or not re.fullmatch(r"[\w\s.^$|()\\-]*", pattern) or ")" in pattern:
        return None
    return re.search(pattern, text) is not None
