"""Blocks as Markdown: a job summary, or a comment on a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rksp.documents.base import Document
from rksp.report.blocks import (
    Block,
    Code,
    Command,
    Figure,
    Notes,
    Number,
    Section,
    Sentence,
    Table,
    Title,
    Verdict,
    Words,
    blocks_of,
    pieces,
)

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_MARKS = {"error": "🔴 ", "warning": "🟠 ", "note": "🔵 "}
_MOST = 200  # rows: GitHub drops a summary of more than 1 MiB whole


def render(document: Document) -> str:
    """Return the page of a document; what a reader needs rarely is folded away."""
    return _all(blocks_of(document)) + "\n"


def _all(blocks: Sequence[Block]) -> str:
    return "\n\n".join(part for block in blocks for part in _drawn(block))


def _drawn(block: Block) -> Iterator[str]:
    match block:
        case Title():
            yield f"## {block.eyebrow}: {code(block.name)}"
            yield _text(block.about)
        case Verdict():
            counted = f" — {_text(block.odds[1])} {block.odds[0]}" if block.odds else ""
            yield f"**{block.word}: {_text(block.headline)}**{counted}"
            yield _all(block.blocks)
        case Section():
            body = _all(block.blocks)
            if block.folds and body:
                yield f"<details><summary>{block.title}</summary>\n\n{body}\n\n</details>"
            elif body:
                yield f"### {block.title}\n\n{body}"
        case Sentence():
            yield f"➜ {_text(block.said)}" if block.look == "advice" else _text(block.said)
        case Notes():
            yield "\n".join(f"- {_text(said)}" for said in block.said)
        case Command():
            yield code(block.said)
        case Table():
            yield _tabled(block)
        case Figure():
            pass


def _tabled(table: Table) -> str:
    """Return a pipe table of the columns that say something, and how many rows are left out."""
    kept = [n for n in range(len(table.head)) if any(row[n] for row in table.rows)]
    rows = [[_text(row[n]) for n in kept] for row in table.rows[:_MOST]]
    if table.look == "items":
        rows = [[_MARKS.get(first, "") + first, *rest] for first, *rest in rows]
    lines = [[table.head[n] for n in kept], ["---"] * len(kept), *rows]
    left = len(table.rows) - len(rows)
    more = f"\n\nThe first {len(rows)} of {len(table.rows)} rows." if left else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _text(said: Words) -> str:
    """Escape text, as names come from untrusted files."""
    return "".join(
        code(part)
        if isinstance(part, Code)
        else part
        if isinstance(part, Number)
        else _SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", part))
        for part in pieces(said)
    )


def code(text: str) -> str:
    """Return a code span that is also valid inside a table; empty for empty text."""
    held = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{held}`" if held else ""
