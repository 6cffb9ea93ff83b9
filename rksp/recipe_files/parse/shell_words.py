"""The words of a shell script, as quotes, brackets and the ends of statements part them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ELSEWHERE = "\0"  # stands in a word where something is not known
JOINED = "\v\n"  # stands in quotes for a line that goes on in the next
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


@dataclass(frozen=True, slots=True)
class Word:
    """One word, its line, and a mark if quotes keep it whole."""

    text: str
    line: int
    whole: bool = False


class WordReader:
    """One pass over a script, character by character."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.words: list[Word] = []  # of the current statement
        self.pieces: list[str] = []  # of the current word
        self.start, self.in_word, self.is_whole, self.in_array = 1, False, False, False
        self.subshells = 0  # that are open
        self.ended_by = ""  # what stands after the last statement: a line's end, ;, |, && or ||

    def statements(self) -> Iterator[list[Word]]:
        """Yield statements as lists of words; array elements are between `NAME=(` and `)`."""
        while self.at < len(self.text):
            if not self.in_word:
                self.start = self.line
            if not self._read_group():
                done = self._read_character()
                if done:
                    yield done
        self._end_word()
        if self.words:
            yield self.words

    def _read_group(self) -> bool:
        """Read an escape, a quotation, an expansion or a comment; return False without one."""
        text, at = self.text, self.at
        c = text[at]
        if c == "\\" and at + 1 < len(text):
            self.at += 2
            if text[at + 1] == "\n":
                self.line += 1
                self._end_word()
            else:
                self._add(text[at + 1])
        elif text.startswith("$'", at):
            end = _closing(text, at + 1, "'", escape="'")
            self.is_whole = self.is_whole or not self.in_word
            self._add_through(re.sub(r"\\(.)", r"\1", text[at + 2 : end], flags=re.S), end)
        elif c in "'\"":
            end = _closing(text, at, c)
            inside = text[at + 1 : end].replace("\\\n", JOINED) if c == '"' else text[at + 1 : end]
            self.is_whole = self.is_whole or not self.in_word or self._is_assignment()
            self._add_through(inside, end)
        elif c == "`" or (c == "$" and text.startswith(("$(", "${"), at)):
            end = _closing(text, at, c) if c == "`" else balanced(text, at + 1)
            self._add_through(text[at : end + 1], end)
        elif c in "<>" and text.startswith("(", at + 1) and not self.in_word:
            end = balanced(text, at + 1)  # a command in the place of a file
            self._add_through(text[at : end + 1], end)
        elif text.startswith("((", at) and not self.in_word and not self.words:
            end = balanced(text, at)
            self._add_through(text[at : end + 1], end)
        elif c == "#" and not self.in_word:
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        else:
            return False
        return True

    def _read_character(self) -> list[Word]:
        c, done = self.text[self.at], []
        if c == "(" and self._is_assignment():
            self.pieces.append(c)
            self._end_word()
            self.in_array = True
        elif c == ")" and self.in_array:
            self._end_word()
            self.words.append(Word(")", self.line))
            self.in_array = False
        elif c == "(" and not self.in_word and not self.words:
            self.words.append(Word(c, self.line))
            self.subshells += 1
        elif c == ")" and self.subshells:
            self._end_word()
            done, self.words, self.ended_by = self.words, [Word(c, self.line)], ";"
            self.subshells -= 1
        elif c in " \t\r" or (c == "\n" and self.in_array):
            self._end_word()
        elif c in "\n;|" or self.text.startswith("&&", self.at):
            self._end_word()
            done, self.words = self.words, []
            if done:
                self.ended_by = c * (1 + self.text.startswith(c * 2, self.at)) if c in "|&" else c
            self.at += self.text.startswith("&&", self.at)
        else:
            self._add(c)
        self.line += c == "\n"
        self.at += 1
        return done

    def _add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.in_word = True

    def _add_through(self, piece: str, end: int) -> None:
        self._add(piece)
        self.line += self.text.count("\n", self.at, end)
        self.at = end + 1

    def _end_word(self) -> None:
        if self.in_word:
            self.words.append(Word("".join(self.pieces), self.start, self.is_whole))
        self.pieces.clear()
        self.in_word, self.is_whole = False, False

    def _is_assignment(self) -> bool:
        return len(self.pieces) < 256 and ASSIGNMENT.fullmatch("".join(self.pieces)) is not None


def _closing(text: str, i: int, quote: str, escape: str = '"') -> int:
    j = i + 1
    while j < len(text) and text[j] != quote:
        j += 2 if text[j] == "\\" and quote == escape else 1
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


def is_flag(word: Word) -> bool:
    """Tell whether a word is a flag, such as `--lr`; quotes do not change that."""
    return re.match(r"--?[A-Za-z]\S*$" if word.whole else "--?[A-Za-z]", word.text) is not None


def is_end(word: Word) -> bool:
    """Tell whether the arguments of a command end at a word, such as `>` or `&`."""
    return not word.whole and re.fullmatch(r"[0-9&]*[<>]+.*|&|\|", word.text) is not None
