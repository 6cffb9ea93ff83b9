"""Blocks on a terminal and in a log file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from rksp.documents.base import Document
from rksp.ground.text import one_line
from rksp.report import blocks as page

LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
STYLES = {"ok": "bold green", "risk": "bold red"}
DOUBTFUL = "bold yellow"
_SENTENCES = {"lead": "", "advice": "bold", "hint": "dim"}
_SHADES = "·░▒▓█"  # of a map, for P(failed) from 0 %, 20 %, …
_WIDEST = 10_000  # columns: a row of numbers is not broken


def render(document: Document) -> Group:
    """Return the page of a document, as rich prints it."""
    return Group(*_all(page.blocks_of(document)))


def _all(blocks: Sequence[page.Block]) -> Iterator[RenderableType]:
    return (part for block in blocks for part in _drawn(block))


def _drawn(block: page.Block) -> Iterator[RenderableType]:
    match block:
        case page.Title():
            about = f"  {_text(block.about)}" if block.about else ""
            yield Text.assemble((one_line(block.name), "bold"), about)
        case page.Verdict():
            style = STYLES.get(block.tone, DOUBTFUL)
            counted = f"  {_text(block.odds[1])} {block.odds[0]}" if block.odds else ""
            yield Text.assemble((block.word, style), f"  {one_line(block.headline)}{counted}")
            yield from (Lines(part, indent=2) for part in _all(block.blocks))
        case page.Section():
            if not block.is_record:
                yield from (Text(), Text(block.title, style="bold"))
                yield from _all(block.blocks)
        case page.Sentence():
            yield Text(_text(block.said), style=_SENTENCES[block.look])
        case page.Notes():
            yield from (Text(f"· {_text(said)}", style="dim") for said in block.said)
        case page.Figure():
            yield from [Text(block.text, style="dim")] if block.text else []
        case page.Command():
            yield Text(block.said, no_wrap=True, overflow="ignore")
        case page.Table():
            yield from _tabled(block)


def _tabled(table: page.Table) -> Iterator[RenderableType]:
    if table.look == "items":
        for level, code, message, fix, _ in table.rows:
            named = " ".join(filter(None, (_text(level), _text(code))))
            style = LEVEL_STYLES.get(_text(level), "bold")
            yield Text.assemble((named, style), f" {_text(message)} ", (_text(fix), "italic"))
    elif table.look == "figures":
        for name, value, note in table.rows:
            rest = f" ({_text(note)})"
            lower = _text(name)[:1].lower() + _text(name)[1:]
            yield Text.assemble(f"{lower} ", (_text(value), "bold"), rest)
    else:
        yield Lines(_grid(table), width=_WIDEST)


def _grid(table: page.Table) -> Grid:
    shown = [n for n, title in enumerate(table.head) if title in (table.narrow or table.head)]
    made = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    is_map = table.look == "map"
    for place in shown:
        side: Literal["left", "right"] = "right" if table.is_number(place) else "left"
        made.add_column(table.head[place], justify=side, no_wrap=True)
    for row in table.rows:
        made.add_row(*(_shade(row[n]) if is_map and n else Text(_text(row[n])) for n in shown))
    return made


def _shade(cell: page.Words) -> Text:
    if not isinstance(cell, page.Number):
        return Text(_text(cell))
    dark = min(len(_SHADES) - 1, int(cell.value * len(_SHADES)))
    return Text(f"{_SHADES[dark]} {cell}")


@dataclass(frozen=True, slots=True)
class Lines:
    """Something with an indent or a width of its own, whose lines have no blanks at their ends.

    Attributes:
        inner: What rich draws.
        indent: Blanks in front of each line.
        width: Columns where those of the terminal do not count: it breaks the lines of a table
            that is wider, and a file keeps them.
    """

    inner: RenderableType
    indent: int = 0
    width: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        options = options.update(max_width=(self.width or options.max_width) - self.indent)
        for line in console.render_lines(self.inner, options, pad=False):
            text = Text.assemble(" " * self.indent, *((s.text, s.style or "") for s in line))
            text.rstrip()
            text.no_wrap, text.overflow = True, "ignore"
            yield text


def _text(said: page.Words) -> str:
    return one_line("".join(said))
