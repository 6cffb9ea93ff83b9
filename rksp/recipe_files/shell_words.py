"""The words and statements of a shell script, with quotes and line ends as the shell reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


@dataclass(frozen=True, slots=True)
class Word:
    """One word, its line, and a mark if quotes keep it whole."""

    text: str
    line: int
    whole: bool = False


def statements(text: str) -> Iterator[list[Word]]:
    """Return statements as lists of words; array elements are between `NAME=(` and `)`."""
    words: list[Word] = []
    pieces: list[str] = []  # of the current word
    start, whole, has = 1, False, False
    line, i, in_array = 1, 0, False

    def flush() -> None:
        nonlocal whole, has
        if has:
            words.append(Word("".join(pieces), start, whole))
        pieces.clear()
        whole, has = False, False

    def is_assignment() -> bool:
        return len(pieces) < 256 and ASSIGNMENT.fullmatch("".join(pieces)) is not None

    while i < len(text):
        c = text[i]
        if not has:
            start = line
        if c == "\\" and i + 1 < len(text):
            i += 2
            if text[i - 1] == "\n":
                line += 1
                flush()
            else:
                pieces.append(text[i - 1])
                has = True
            continue
        if c in "'\"":
            end = _closing(text, i, c)
            inside = text[i + 1 : end].replace("\\\n", "\n") if c == '"' else text[i + 1 : end]
            whole = whole or not has or is_assignment()
            pieces.append(inside)
            has = True
            line += text.count("\n", i, end)
            i = end + 1
            continue
        if c == "$" and text.startswith(("$(", "${"), i):
            end = balanced(text, i + 1)
            pieces.append(text[i : end + 1])
            has = True
            line += text.count("\n", i, end)
            i = end + 1
            continue
        if c == "#" and not has:
            i = text.find("\n", i)
            i = len(text) if i < 0 else i
            continue
        if c == "(" and is_assignment():
            pieces.append(c)
            flush()
            in_array = True
        elif c == ")" and in_array:
            flush()
            words.append(Word(")", line))
            in_array = False
        elif c in " \t\r" or (c == "\n" and in_array):
            flush()
        elif c in "\n;|" or text.startswith("&&", i):
            flush()
            if words:
                yield words
            words = []
            i += text.startswith("&&", i)
        else:
            pieces.append(c)
            has = True
        line += c == "\n"
        i += 1
    flush()
    if words:
        yield words


def _closing(text: str, i: int, quote: str) -> int:
    j = i + 1
    while j < len(text) and text[j] != quote:
        j += 2 if text[j] == "\\" and quote == '"' else 1
    return min(j, len(text) - 1)


def balanced(text: str, i: int) -> int:
    """Return the index of the bracket that closes the one at `i`, or the last index."""
    pairs = {"(": ")", "{": "}"}
    close, depth, j = pairs[text[i]], 0, i
    while j < len(text):
        depth += (text[j] == text[i]) - (text[j] == close)
        if depth == 0:
            return j
        j += 1
    return len(text) - 1
