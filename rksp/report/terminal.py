"""Blocks on a terminal and in a log file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from rksp.documents.base import Document
from rksp.ground.text import one_line
from rksp.report import blocks as page

LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
STYLES = {"ok": "bold green", "risk": "bold red"}
DOUBTFUL = "bold yellow"
_SENTENCES = {"lead": "", "advice": "bold", "hint": "dim"}
_SHADES = "·░▒▓█"  # of a map, for P(failed) from 0 %, 20 %, …
_GAP = 2  # blanks between columns
_HANGING = 4  # blanks in front of what goes on


def render(document: Document) -> Group:
    """Return the page of a document, as rich prints it."""
    return Group(*_all(page.blocks_of(document)))


def _all(blocks: Sequence[page.Block], indent: int = 0) -> Iterator[RenderableType]:
    return (part for block in blocks for part in _drawn(block, indent))


def _drawn(block: page.Block, indent: int) -> Iterator[RenderableType]:
    match block:
        case page.Title():
            about = f"  {_text(block.about)}" if block.about else ""
            yield Line(Text.assemble((one_line(block.name), "bold"), about))
        case page.Verdict():
            style = STYLES.get(block.tone, DOUBTFUL)
            counted = f"  {_text(block.odds[1])} {block.odds[0]}" if block.odds else ""
            said = f"  {one_line(block.headline)}{counted}"
            yield Line(Text.assemble((block.word, style), said))
            yield from _all(block.blocks, indent=2)
        case page.Section():
            if not block.is_record:
                yield from (Text(), Text(block.title, style="bold"))
                yield from _all(block.blocks)
        case page.Sentence():
            yield Line(Text(_text(block.said), style=_SENTENCES[block.look]), indent)
        case page.Notes():
            yield from (Line(Text(f"· {_text(said)}", style="dim"), indent) for said in block.said)
        case page.Figure():
            yield from [Text(block.text, style="dim")] if block.text else []
        case page.Command():
            yield Line(Text(block.said), indent, is_command=True)
        case page.Table():
            yield from _tabled(block, indent)


def _tabled(table: page.Table, indent: int) -> Iterator[RenderableType]:
    if table.look == "items":
        for level, code, message, fix, _ in table.rows:
            named = " ".join(filter(None, (_text(level), _text(code))))
            style = LEVEL_STYLES.get(_text(level), "bold")
            yield Line(Text.assemble((named, style), f" {_text(message)}"), indent)
            yield from [Line(Text(_text(fix)), indent + _HANGING)] if fix else []
    elif table.look == "figures":
        for name, value, note in table.rows:
            rest = f" ({_text(note)})"
            yield Line(
                Text.assemble(f"{_inner(_text(name))} ", (_text(value), "bold"), rest), indent
            )
    else:
        yield Columns(table, table.shown)


@dataclass(frozen=True, slots=True)
class Columns:
    """A table that no terminal cuts.

    The columns for which there is no room follow under each row, by their heads; those of a map
    make a further table.
    """

    table: page.Table
    places: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, places = self.table, self.places
        rows = [[_cell(table, row[n]) for n in places] for row in table.rows]
        lines = [[table.head[n] for n in places], *rows]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        ends = accumulate(width + _GAP for width in widths)
        fits = max(1, sum(end - _GAP <= options.max_width for end in ends))
        under = places[fits:]
        for number, cells in enumerate(lines):
            padded = (
                cell.rjust(width) if table.is_number(place) else set_cell_size(cell, width)
                for place, cell, width in zip(places[:fits], cells, widths, strict=False)
            )
            yield Line(Text((" " * _GAP).join(padded).rstrip(), style="" if number else "bold"))
            told = [
                f"{_inner(table.head[place])} {cell}"
                for place, cell in zip(under, cells[fits:], strict=True)
                if cell not in ("", page.MISSING)
            ]
            if number and told and table.look != "map":
                yield Line(Text("; ".join(told), style="dim"), _HANGING)
        if under and table.look == "map":
            yield Columns(table, [places[0], *under])


def _cell(table: page.Table, cell: page.Words) -> str:
    said = _text(cell)
    if table.look != "map" or not isinstance(cell, page.Number):
        return said
    return f"{_SHADES[min(len(_SHADES) - 1, int(cell.value * len(_SHADES)))]} {said}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line, which goes on indented where the width ends: nothing is cut.

    Attributes:
        text: The line.
        indent: Blanks in front of it.
        is_command: It goes on as a shell reads it, after a backslash.
    """

    text: Text
    indent: int = 0
    is_command: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        room = options.max_width - self.indent
        parts: Sequence[Text] = [self.text]
        if cell_len(self.text.plain) > room:
            wrapped = self.text.wrap(console, room - _HANGING)
            parts = _continued(self.text, room) if self.is_command else list(wrapped)
        for number, part in enumerate(parts):
            hanging = _HANGING * (number > 0 and not self.is_command)
            line = Text.assemble(" " * (self.indent + hanging), part)
            line.rstrip()
            line.no_wrap, line.overflow = True, "ignore"
            yield line


def _continued(line: Text, width: int) -> list[Text]:
    pieces, shown = [], ""
    for part in re.split(r" (?=--)", line.plain.partition("   (")[0]):
        if shown and cell_len(f"{shown} {part} \\") > width:
            pieces.append(Text(f"{shown} \\", style=line.style))
            shown = f"    {part}"
        else:
            shown = f"{shown} {part}" if shown else part
    return [*pieces, Text(shown, style=line.style)]


def _inner(title: str) -> str:
    """Return a title as it stands within a line: a letter by itself, as of P(failed), is a name."""
    return title[:1].lower() + title[1:] if title[1:2].isalpha() else title


def _text(said: page.Words) -> str:
    return one_line("".join(said))
