"""Collect the words that the renderings print: heads, labels, units, levels, verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from rich.console import Group

from rksp.report.terminal import Columns

_SHOWN = ("th", "dt", "h2", "summary")
_CLASSES = ("badge", "level")


def of_rich(made: object) -> Iterator[str]:
    """Yield the heads of every table that a terminal shows, and the first column's labels."""
    if isinstance(made, Group):
        for part in made.renderables:
            yield from of_rich(part)
    elif isinstance(made, Columns):
        heads = [made.table.head[place] for place in made.table.shown]
        yield from heads
        if heads[0] in ("", "Measured"):
            yield from ("".join(row[0]) for row in made.table.rows)


def of_markdown(text: str) -> Iterator[str]:
    """Yield titles, heads of tables, folded parts, and the labels of tables of measurements."""
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if re.fullmatch(r"\|( --- \|)+", line):
            yield from (cell.strip() for cell in before.strip("|").split("|"))
    for table in re.split(r"\n\n", text):
        if table.startswith(("| Measured", "| Number", "|  |")):
            rows = table.splitlines()[2:]
            yield from (row.strip("|").split("|")[0].strip() for row in rows)
    yield from re.findall(r"<summary>([^<(]+)", text)
    yield from (title for title in re.findall(r"^### ([^:\n]+)", text, re.M))
    yield from re.findall(r"^\| (?:🔴|🟠|🔵) (\w+)", text, re.M)


class _Words(HTMLParser):
    """Texts of heads, terms and badges; a term's label in small print is left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag, attributes):
        classes = (dict(attributes).get("class") or "").split()
        is_word = tag in _SHOWN or (tag == "span" and set(classes) & set(_CLASSES))
        if is_word:
            self.found.append("")
        if tag not in ("meta", "link", "br"):
            self._open.append("word" if is_word else tag)

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        if self._open and self._open[-1] == "word":
            self.found[-1] += data


def of_html(text: str) -> Iterator[str]:
    """Yield heads of tables and sections, labels of numbers, badges and levels."""
    page = _Words()
    page.feed(text)
    rows = re.findall(r'<div class="row"><span>([^<]+)</span><svg', text)
    yield from (word for word in [*page.found, *rows] if word.strip())


def cleaned(words: Iterator[str] | list[str]) -> set[str]:
    """Return distinct words without markup, counts of seeds and numbers in front."""
    found = (
        re.sub(r" \(seed \d+\)$|^\d+ |[`\\]|^All numbers of all ", "", w.strip()) for w in words
    )
    return {word for word in found if word and not re.fullmatch(r"[\d.,e%+–-]+", word)}
